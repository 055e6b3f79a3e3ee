"""The end of a rank while a limit is in force: it waits for the others where the watchdog can see it.

Without that a rank that has come to its end early would wait for the others in MPI_Finalize, which Python calls when no
thread runs any more: nothing could be dumped, and the report could not name it.
"""

from __future__ import annotations

import contextlib

from mpi4py import MPI

from hpccoll import aborting
from hpccoll.recorder import job
from hpccoll.recorder.ending import watched

__all__ = ["meet"]

_TAG = 32714  # on COMM_WORLD; aborting.py has another


def meet() -> None:
    """Return when every rank has come here, where the ranks have agreed to wait for one another."""
    known = job.known()
    if known is None or not known.meets or MPI.Is_finalized():
        return
    with watched(), contextlib.suppress(MPI.Exception):
        aborting.agree_on_status(MPI.COMM_WORLD, 0, _TAG)
