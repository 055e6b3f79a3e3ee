"""A barrier that says who is missing, after gloo's ``monitored_barrier``: every rank reports to rank 0."""

from __future__ import annotations

import time
from typing import Any

_PAUSE_S = 1e-3


def monitored_barrier(comm: Any, limit_s: float, wait_all_ranks: bool) -> None:
    """Return when every rank has called it; else raise within the limit, on rank 0 naming the missing ranks.

    With `wait_all_ranks` rank 0 names all of them instead of the first that it finds.
    """
    tag = _reserved_tag()
    deadline = time.monotonic() + limit_s
    if comm.rank:
        comm.mpi.Isend([bytearray(1), 1, _byte()], 0, tag).Free()
        release = [comm.mpi.Irecv([bytearray(1), 1, _byte()], 0, tag)]
        if not _complete(release, deadline, first_only=True):
            return
        raise RuntimeError(
            f"Rank {comm.rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
            f"from rank 0. Please check rank 0 logs for faulty rank. (limit {limit_s:g} s)"
        )
    if limit_s <= 0:
        raise RuntimeError(f"Rank 0 timed out in monitoredBarrier after {round(limit_s * 1000)} ms.")
    reports = [comm.mpi.Irecv([bytearray(1), 1, _byte()], rank, tag) for rank in range(1, comm.size)]
    missing = [rank + 1 for rank in _complete(reports, deadline, first_only=not wait_all_ranks)]
    if missing:
        names = ", ".join(map(str, missing))
        which = f"Ranks {names}" if wait_all_ranks else f"Rank {names}"
        raise RuntimeError(f"{which} failed to pass monitoredBarrier in {round(limit_s * 1000)} ms")
    for rank in range(1, comm.size):
        comm.mpi.Send([bytearray(1), 1, _byte()], rank, tag)


def _complete(requests: list[Any], deadline: float, first_only: bool) -> list[int]:
    """Poll until all are complete; return the numbers of those that are not by then, their requests cancelled."""
    left = dict(enumerate(requests))
    while left and time.monotonic() < deadline:
        left = {number: request for number, request in left.items() if not request.Test()}
        if left:
            time.sleep(_PAUSE_S)
    for request in left.values():
        request.Cancel()
        request.Free()
    return list(left)[: 1 if first_only else None]


def _byte() -> Any:
    from mpi4py import MPI

    return MPI.BYTE


def _reserved_tag() -> int:
    """The largest tag: messages of the user's are told from these by it."""
    from mpi4py import MPI

    largest: Any = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
    return int(largest)
