"""``mpirun -n 4 python -m hpccoll.doctor``: says what is wrong with this cluster, and how to mend it.

The parts: `findings` is what a check says, `local` checks one host, `gathered` compares what the hosts have said,
`together` has the checks that all ranks make with one another, `picture` draws ranks on cores.
"""
