"""``python -m hpccoll.diagnose DUMP_DIR``: says which rank made a job hang, and where.

The parts: `dumps` reads one rank's dump, `reading` finds those of one job, `aligning` lays the ranks' collectives side
by side, `waiting` builds the graph of who waits for whom, `verdicts` names the cause (`circles`: of ranks
that wait for one another; `lost`: of ranks without a dump; `findings`: what a cause can be), `words` puts it into
words.
"""
