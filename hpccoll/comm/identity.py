"""Names for communicators that all their members agree on, without asking one another."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from hpccoll import gate
from hpccoll.recorder import job, places
from hpccoll.recorder.ring import Log

__all__ = ["introduce", "of_child", "of_world", "of_wrapped"]

_key = MPI.Comm.Create_keyval()
_wrapped: collections.Counter[tuple[int, ...]] = collections.Counter()


def introduce(agreed: dict[str, Any], where: Sequence[places.Place] = ()) -> None:
    """Tell the recorder about the job. `where` are the places of all ranks, if they are known."""
    job.enter(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, gate.library_version(), agreed, where)


def of_world(mpi: Any) -> Log:
    """The record of hpccoll's world."""
    return Log("world", mpi.name, mpi.rank, range(mpi.size))


def of_child(parent: Log, method: str, number: int, parent_mpi: Any, mpi: Any) -> Log:
    """The record of a communicator that the collective `number` of `parent` has made: ``world/split4.0``.

    The last figure is the first member's rank in the parent.
    """
    inside = _translated(mpi, parent_mpi)
    id = f"{parent.id}/{method}{number}" + ("" if method == "dup" else f".{inside[0]}")
    return Log(id, mpi.name or id, mpi.rank, _folded([parent.ranks[rank] for rank in inside]))


def of_wrapped(mpi: Any) -> Log:
    """The record of a communicator of the user's, the same one however often it is wrapped.

    Those of the same members are counted in the order in which they are wrapped.
    """
    log = mpi.Get_attr(_key)
    if log is None:
        if job.known() is None:
            introduce(job.proposal_of_launcher())
        ranks = _translated(mpi, MPI.COMM_WORLD)
        _wrapped[tuple(ranks)] += 1
        first = f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else str(ranks[0])
        id = f"wrapped:{first}/{len(ranks)}#{_wrapped[tuple(ranks)]}"
        log = Log(id, mpi.name or id, mpi.rank, _folded(ranks))
        mpi.Set_attr(_key, log)
    return log


def of_members(ranks: Sequence[int], rank: int) -> Log:
    """The record of what some ranks of torch's default group do together before they have a communicator."""
    id = f"torch:new_group({places.folded(ranks)})"
    return Log(id, id, rank, list(ranks))


def of_group(mpi: Any) -> Log:
    """The record of a process group of torch's, which gets its name later."""
    return Log("torch:", "", mpi.rank, _folded(_translated(mpi, MPI.COMM_WORLD)))


def _translated(mpi: Any, into: Any) -> list[int]:
    """The members' ranks in another communicator."""
    own, other = mpi.Get_group(), into.Get_group()
    try:
        return [int(rank) for rank in MPI.Group.Translate_ranks(own, None, other)]
    finally:
        own.Free()
        other.Free()


def _folded(ranks: list[int]) -> Sequence[int]:
    whole = range(ranks[0], ranks[0] + len(ranks))
    return whole if list(whole) == ranks else ranks
