"""The engine behind the programs: one Case per collective; one sweep, clock, verification and report for all.

Modules, from the ones that need nothing to the ones that need MPI:

``case``        what is particular to a collective (how many blocks, who sends what, bandwidth factor)
``dtypes``      names, sizes and bit patterns of the dtypes
``guidelines``  what a collective should not be slower than
``options``     the shared command line, parsed before MPI is started; ``converters`` its types
``pattern``     the input values and the closed-form expected values
``storage``     guarded, poisoned buffers and their comparison
``rotation``    several sets of them, for cold caches
``stats``       median and interval, percentiles, interval over launches
``histogram``   logarithmic buckets that ranks can add up
``fit``         latency and bandwidth from times, by segments
``model``       what a fit says about more ranks
``results``     header and rows, and their documents
``report``      the table; ``screen`` the same on a terminal
``findings``    what the rows tell together: fits, hints, predictions, late ranks
``clock``       offset, drift and uncertainty of a rank's clock
``gates``       how ranks start together
``timing``      the timed loop
``engines``     what makes the calls
``arrival``     the proof that a barrier waits
``host``        memory, cores and binding of this host
``header``      the conditions of a run, gathered from every rank
``planning``    which rows there are
``measuring``   one row: all engines in shuffled blocks
``rows``        from measurements to rows
``runlog``      the records of a run
``session``     the whole run
``program``     from the command line to the exit status
"""
