"""Signals that ask the job to save and stop: Slurm's before the time limit, or anybody's."""

from __future__ import annotations

import signal
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import hpccoll as hc

_NUMBERS = (signal.SIGUSR1, signal.SIGTERM)


class StopSignals:
    """Notes SIGUSR1 and SIGTERM; they may reach one rank only, or each at another step.

    To be entered first of all: until then these signals kill the process.
    """

    def __init__(self) -> None:
        self._came = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        self.take()
        return self

    def take(self) -> None:
        """Take the signals, also from hpccoll's recorder, whose handlers come with MPI and dump what the rank does."""
        for number in _NUMBERS:
            before = signal.signal(number, self._note)
            if before != self._note:
                self._before[number] = before

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = number

    def agreed(self, comm: hc.Comm) -> str | None:
        """Name of the signal that any rank has had, the same on every rank; every rank calls it after each step."""
        import numpy as np

        came = np.array([self._came])
        comm.allreduce(came, op="max", out=came)
        return signal.Signals(int(came[0])).name if came[0] else None
