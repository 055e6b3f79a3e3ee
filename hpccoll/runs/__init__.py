"""What the records of a run say: read by DuckDB, checked for holes, turned into tables.

Neither MPI nor torch is needed. `python -m hpccoll.collect` and `python -m hpccoll.compare` show what is found here.
"""
