"""How a rank waits inside a collective.

MPI's blocking calls ask again and again whether something has come, and keep a core busy with it. That is the fastest
way where the waiting thread has a core to itself. Where the rank's own computing needs that core, and what is waited
for comes over a network, an all-reduce issued during a backward pass takes from the computing what it should hide
behind it. There large collectives are started as MPI's non-blocking ones, and the thread sleeps between its looks.

Blocking and non-blocking collectives of MPI do not meet one another, so all ranks have to choose alike, for the
synchronous calls and the asynchronous ones.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from mpi4py import MPI

import hpccoll
from hpccoll import settings

VARIABLE = settings.TORCH_WAIT.name
"""``spin`` or ``sleep``; without it :func:`decide` looks at the cores."""

SLEEP_FROM_BYTES = 1 << 18
"""Below this a collective is over before a sleep would be."""

_LOOKS = 3
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 2e-5, 1e-4

_SPINS, _SLEEPS, _TOLD_TO_SLEEP, _WRONG = range(4)
_way = _SPINS


def decide(world: hpccoll.Comm) -> None:
    """Settle how the ranks of this job wait; every rank has to call it.

    They sleep where they are on several nodes and any of them has no core beyond those that torch computes on, or
    where any was told to.
    """
    global _way
    word = settings.TORCH_WAIT.text()
    with world.node() as node:
        crowded = node.size < world.size and _share_of_cores(node) <= torch.get_num_threads()
    unless_told = _SLEEPS if crowded else _SPINS
    wish = {"": unless_told, "spin": _SPINS, "sleep": _TOLD_TO_SLEEP}.get(word, _WRONG)
    _way = world.allreduce(wish, op="max")
    if _way == _WRONG:
        raise ValueError(f'{VARIABLE} must be "spin" or "sleep" on every rank; here it is "{word}"')


def _share_of_cores(node: hpccoll.Comm) -> int:
    """How many cores a rank of this node has to itself, on average; the same whether or not ranks are bound."""
    own = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    return len(set().union(*node.allgather_object(own))) // node.size


def communicator(mpi: Any) -> Any:
    """`mpi` itself, or the same communicator with collectives that sleep."""
    return mpi if _way == _SPINS or mpi.size == 1 else _Sleeping(mpi)


class _Sleeping(MPI.Intracomm):
    """The blocking collectives that move much, by the non-blocking ones.

    Whether a call is one of them follows from its arguments that are the same on every rank.
    """

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> None:
        if _is_small(recvbuf):
            super().Allreduce(sendbuf, recvbuf, op)
        else:
            _wait(self.Iallreduce(sendbuf, recvbuf, op))

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, root: int = 0) -> None:
        if _is_small(recvbuf if sendbuf is MPI.IN_PLACE else sendbuf):
            super().Reduce(sendbuf, recvbuf, op, root)
        else:
            _wait(self.Ireduce(sendbuf, recvbuf, op, root))

    def Bcast(self, buf: Any, root: int = 0) -> None:
        if _is_small(buf):
            super().Bcast(buf, root)
        else:
            _wait(self.Ibcast(buf, root))

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        if _is_small(recvbuf, self.size):
            super().Allgather(sendbuf, recvbuf)
        else:
            _wait(self.Iallgather(sendbuf, recvbuf))

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        if sum(recvbuf[1]) < SLEEP_FROM_BYTES:
            super().Allgatherv(sendbuf, recvbuf)
        else:
            _wait(self.Iallgatherv(sendbuf, recvbuf))

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> None:
        if _is_small(recvbuf, self.size):
            super().Reduce_scatter_block(sendbuf, recvbuf, op)
        else:
            _wait(self.Ireduce_scatter_block(sendbuf, recvbuf, op))

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        if _is_small(recvbuf, self.size):
            super().Alltoall(sendbuf, recvbuf)
        else:
            _wait(self.Ialltoall(sendbuf, recvbuf))

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        _wait(self.Ialltoallv(sendbuf, recvbuf))  # no rank knows how much the others move


def _is_small(spec: Any, blocks: int = 1) -> bool:
    _, count, datatype = spec
    return bool(count * datatype.size * blocks < SLEEP_FROM_BYTES)


def _wait(request: Any) -> None:
    for _ in range(_LOOKS):
        if request.Test():
            return
    pause_s = _SHORTEST_PAUSE_S
    while not request.Test():
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
