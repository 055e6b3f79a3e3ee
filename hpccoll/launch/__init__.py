"""``python -m hpccoll.launch -n 4 -- -m hpccoll.allreduce``: starts a program with the launcher that fits its MPI.

The parts: `commands` builds the command from what is wanted and what `hpccoll.probe` found, `runner` runs it and
sees to its end, `monitor` hears from the ranks, each of which `rank` wraps.
"""
