"""A barrier that says who is missing, after gloo's ``monitored_barrier``.

Rank 0 asks every rank; one that is in the barrier answers; when all have, rank 0 lets them go. Each message carries the
number of rank 0's call: what an earlier call, which failed, has left behind is known by it and ignored.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

_PAUSE_S = 1e-3
_calls = itertools.count(1)
_ASK, _ANSWER, _GO = 1, 2, 3


def monitored_barrier(comm: Any, limit_s: float, wait_all_ranks: bool) -> None:
    """Return when every rank has called it; else raise within the limit, on rank 0 naming the missing ranks.

    With `wait_all_ranks` rank 0 names all of them instead of the first that it finds.
    """
    deadline = time.monotonic() + limit_s
    if comm.rank:
        if not _take_part(comm.mpi, deadline):
            raise RuntimeError(
                f"Rank {comm.rank} successfully reached monitoredBarrier, but received errors while waiting for "
                f"send/recv from rank 0. Please check rank 0 logs for faulty rank. (limit {limit_s:g} s)"
            )
        return
    if limit_s <= 0:
        raise RuntimeError(f"Rank 0 timed out in monitoredBarrier after {round(limit_s * 1000)} ms.")
    missing = _ask_all(comm.mpi, deadline)
    if missing:
        names = ", ".join(map(str, missing if wait_all_ranks else missing[:1]))
        which = "Ranks" if wait_all_ranks else "Rank"
        raise RuntimeError(f"{which} {names} failed to pass monitoredBarrier in {round(limit_s * 1000)} ms")


def _ask_all(mpi: Any, deadline: float) -> list[int]:
    number = next(_calls)
    missing = set(range(1, mpi.size))
    for rank in missing:
        _tell(mpi, rank, _ASK, number)

    def heard(rank: int, kind: int, of: int) -> bool:
        if (kind, of) == (_ANSWER, number):
            missing.discard(rank)
        return not missing

    if missing:
        _listen(mpi, MPI.ANY_SOURCE, deadline, heard)
    if not missing:
        for rank in range(1, mpi.size):
            _tell(mpi, rank, _GO, number)
    return sorted(missing)


def _take_part(mpi: Any, deadline: float) -> bool:
    answered = set()

    def heard(rank: int, kind: int, number: int) -> bool:
        if kind == _ASK:
            answered.add(number)
            _tell(mpi, 0, _ANSWER, number)
        return kind == _GO and number in answered

    return _listen(mpi, 0, deadline, heard)


def _listen(mpi: Any, source: int, deadline: float, heard: Callable[[int, int, int], bool]) -> bool:
    """Hand on what comes until `heard` is content; False if that is not within the limit."""
    tag, status, message = _reserved_tag(), MPI.Status(), bytearray(9)
    while True:
        while mpi.Iprobe(source, tag, status):
            mpi.Recv([message, 9, MPI.BYTE], status.Get_source(), tag)
            if heard(status.Get_source(), message[0], int.from_bytes(message[1:], "little")):
                return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_S)


def _tell(mpi: Any, rank: int, kind: int, number: int) -> None:
    message = bytes([kind]) + number.to_bytes(8, "little")
    mpi.Send([message, 9, MPI.BYTE], rank, _reserved_tag())  # so short that no MPI waits for the receiver


def _reserved_tag() -> int:
    """The largest tag: messages of the user's are told from these by it."""
    largest: Any = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
    return int(largest)
