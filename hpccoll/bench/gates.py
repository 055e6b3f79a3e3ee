"""How the ranks come to start a call together: behind a barrier, or at an agreed time."""

from __future__ import annotations

import os
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from hpccoll.bench import clock
from hpccoll.bench.clock import AlignedClock

__all__ = ["DisseminationBarrier", "Gate", "LibraryBarrier", "WindowGate", "make_gate"]

_TAG = 79


class Gate(Protocol):
    """Something that holds every rank until all may start."""

    def wait(self) -> int | None:
        """Return when the call may start; the agreed time on this rank's clock, or None where there is none."""
        ...


class LibraryBarrier:
    """The barrier of the MPI library, on a communicator that is not the one under test."""

    def __init__(self, control: Any) -> None:
        self._barrier = control.Barrier

    def wait(self) -> int | None:
        """Enter and leave."""
        self._barrier()
        return None


class DisseminationBarrier:
    """Our own: in step k every rank sends to rank + 2**k and receives from rank - 2**k.

    All ranks leave after the same number of messages. Barriers of libraries often are trees, whose root leaves first.
    D. Hensgen, R. Finkel and U. Manber, Two algorithms for barrier synchronization, 1988.
    """

    def __init__(self, control: Any) -> None:
        self._exchange = control.Sendrecv
        rank, size = control.rank, control.size
        self._steps = [
            ((rank + (1 << k)) % size, (rank - (1 << k)) % size) for k in range((size - 1).bit_length())
        ]
        self._nothing = np.zeros(0, np.uint8), np.zeros(0, np.uint8)

    def wait(self) -> int | None:
        """Enter and leave."""
        out, into = self._nothing
        for dest, source in self._steps:
            self._exchange(out, dest, _TAG, into, source, _TAG)
        return None


class WindowGate:
    """All ranks start at a time that rank 0 names, on aligned clocks.

    It is `slack_ns` ahead. A rank that hears of it too late starts at once; `adapt` doubles the slack where that
    happens often.
    """

    _MOST_SLACK_NS = 1_000_000  # who spins for longer loses the core to others

    def __init__(self, control: Any, aligned: AlignedClock, *, oversubscribed: bool) -> None:
        self._control, self._aligned = control, aligned
        self._yield = os.sched_yield if oversubscribed else lambda: None
        self._start = np.zeros(1, np.int64)
        self._missed = 0
        self.slack_ns = 200_000

    def wait(self) -> int | None:
        """Wait for the agreed time, without sleeping."""
        self._control.Barrier()
        now = clock.now_ns
        if self._control.rank == 0:
            self._start[0] = now() + self._aligned.readings[-1].offset_ns + self.slack_ns
        self._control.Bcast(self._start, 0)
        start = self._aligned.local(int(self._start[0]))
        self._missed += now() > start
        while now() < start:
            self._yield()
        return start

    def adapt(self, number: int) -> None:
        """Choose the slack for the next calls, after `number` of them. Collective."""
        missed = self._control.allreduce(self._missed, MPI.MAX)
        self._missed = 0
        if missed * 10 > number:
            self.slack_ns = min(2 * self.slack_ns, self._MOST_SLACK_NS)


def make_gate(name: str, control: Any, aligned: AlignedClock, *, oversubscribed: bool) -> Gate:
    """The gate called ``library``, ``dissemination`` or ``window``."""
    if name == "window":
        return WindowGate(control, aligned, oversubscribed=oversubscribed)
    return DisseminationBarrier(control) if name == "dissemination" else LibraryBarrier(control)
