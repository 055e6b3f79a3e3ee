"""From a process group that torch asks for to an MPI communicator."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import hpccoll
from hpccoll.comm import identity
from hpccoll.errors import CommunicatorError
from hpccoll.recorder import ring, seam
from hpccoll.torch_backend import ending, torch_internals, waiting

_makings: dict[tuple[int, ...], ring.Log] = {}
"""Ranks -> the record of the groups that have been made of them."""


def make_world(timeout: timedelta) -> tuple[Any, int, int]:
    """What ``init_process_group("mpi")`` needs before there is a group: store, rank, size."""
    from hpccoll.torch_backend.rendezvous import make_store

    comm = hpccoll.world()
    return make_store(comm, timeout), comm.rank, comm.size


def make_group(opts: Any, pg_options: Any = None) -> Any:
    """torch's factory function: make the process group for this rank, a member."""
    from hpccoll.torch_backend.process_group import MpiProcessGroup

    torch_internals.check_age()
    ranks = list(opts.global_ranks_in_group)
    mpi = _whole(opts.group_rank, opts.group_size) if not ranks else _part(ranks)
    mpi = waiting.communicator(mpi)
    return MpiProcessGroup(opts.store, mpi, ranks or list(range(opts.group_size)), opts.timeout)


def _whole(rank: int, size: int) -> Any:
    """A communicator of all ranks, in the order that torch knows them in."""
    world = hpccoll.world()
    if world.size != size:
        raise CommunicatorError(
            f"init_process_group: torch was told of {size} ranks, but MPI has {world.size}; "
            'leave rank and world_size out and use init_method="mpi://"'
        )
    ending.prepare(world)
    waiting.decide(world)
    return world.run("init_process_group", lambda: world.mpi.Split(0, rank))


def _part(ranks: Sequence[int]) -> Any:
    """A communicator of some ranks, made by these alone."""
    base = _base()
    group = base.Get_group()
    members = group.Incl(list(ranks))
    try:
        # Several may be under way at once, on one thread or many: the tag keeps them apart. It comes from the ranks
        # alone: torch's name of a group counts the groups of this process, of which other members may have more or
        # fewer. (32767 is the largest tag that every MPI has.)
        tag = zlib.crc32(repr(list(ranks)).encode()) % 32768
        log = _makings.setdefault(tuple(ranks), identity.of_members(ranks, members.rank))
        return seam.recorded(log, "new_group", lambda: base.Create_group(members, tag))()
    finally:
        group.Free()
        members.Free()


def _base() -> Any:
    """A communicator whose ranks are the numbers that torch uses for the default group."""
    default = torch_internals.default_group()
    base = getattr(default, "base_communicator", None)
    if base is not None:
        return base
    # The default group is another backend's. Its ranks are MPI's if it met over mpi://, or by luck.
    world = hpccoll.world()
    if default.size() != world.size or default.rank() != world.rank:
        raise CommunicatorError(
            f'new_group("mpi"): this process is rank {default.rank()} of {default.size()} in the default group, but '
            f'rank {world.rank} of {world.size} in MPI; make the default group with init_method="mpi://"'
        )
    return world.mpi
