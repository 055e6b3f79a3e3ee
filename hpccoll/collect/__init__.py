"""``python -m hpccoll.collect RUN_DIR`` turns the records of a run into tables, a report and a trace.

It runs on a login node, without MPI and torch: docs/collect.md.
"""
