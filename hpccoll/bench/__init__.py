"""The engine behind the programs: one Case per collective; one sweep, clock, verification and report for all.

Modules, from the ones that need nothing to the ones that need MPI:

``case``      what is particular to a collective (how many blocks, who sends what, bandwidth factor)
``options``   the shared command line, parsed before MPI is started
``dtypes``    names, sizes and bit patterns of the dtypes
``pattern``   the input values and the closed-form expected values
``storage``   guarded, poisoned buffers and their comparison
``engines``   what is timed: the methods of `hpccoll.Comm`, or raw mpi4py
``timing``    the timed loop
``arrival``   the proof that a barrier waits
``host``      memory, cores and binding of this host
``results``   header and rows, and their JSON document
``report``    the table and the progress bar
``header``    the conditions of a run, gathered from every rank
``session``   the sweep
``program``   from the command line to the exit status
"""
