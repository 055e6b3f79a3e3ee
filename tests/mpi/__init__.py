"""Tests that run on every rank of a job: ``mpirun -n 2 python -m pytest tests/mpi --with-mpi``."""
