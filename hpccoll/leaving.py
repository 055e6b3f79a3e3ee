"""The end of a rank while a limit is in force: it waits for the others where the watchdog can see it.

Without that a rank that has come to its end early would wait for the others in MPI_Finalize, which Python calls when no
thread runs any more: nothing could be dumped, and the report could not name it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from mpi4py import MPI

from hpccoll import aborting
from hpccoll.recorder import job, ring, seam

__all__ = ["meet", "watched"]

_TAG = 32714  # on COMM_WORLD; aborting.py has another


def meet() -> None:
    """Return when every rank has come here, where the ranks have agreed to wait for one another."""
    known = job.known()
    if known is None or not known.meets or MPI.Is_finalized():
        return
    with watched(), contextlib.suppress(MPI.Exception):
        aborting.agree_on_status(MPI.COMM_WORLD, 0, _TAG)


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Let the watchdog time the waiting inside, under the name of the end."""
    known = job.known()
    if known is None or not seam.ACTIVE:
        yield
        return
    log = ring.Log(ring.ENDING, ring.ENDING, known.rank, range(known.size))
    entry = ring.issue(log, ring.COLLECTIVE, ring.ENDING, None, None, sys._getframe(0), True, None)
    ring.start(entry)
    try:
        yield
    finally:
        ring.finish(entry)
