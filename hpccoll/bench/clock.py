"""The clock of a rank, and its offset to that of rank 0.

Every rank reads its host's monotonic clock, which begins anywhere and runs at its own pace. `AlignedClock` finds what
has to be added to it: a child sends a message to its parent, which answers with its own aligned time; half the round
trip after the child has sent, that time was right, give or take half the round trip. The exchange with the shortest
round trip counts. Parents and children form a binomial tree from rank 0, so that 100,000 ranks take 17 steps; the
uncertainties add up on the way.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

__all__ = ["AlignedClock", "Reading", "now_ns", "resolution_ns"]

# Looked up here whenever it is needed: tests put another clock in its place.
now_ns = time.perf_counter_ns

_TAG = 78
_ROUNDS, _LEAST_ROUNDS = 24, 4
_ENOUGH_NS = 1_000_000  # where an exchange takes long, ranks wait for cores, and more of them would not help
_MOST_DRIFT = 500e-6  # the most by which Linux lets a clock be set right at a time


@dataclass(frozen=True)
class Reading:
    """One measurement of the offset.

    Attributes
    ----------
    local_ns : int
        This rank's clock in the middle of the exchange.
    offset_ns : int
        To add to it.
    uncertainty_ns : int
        Bound of the error of `offset_ns`.
    unix_ns : int
        The system clock at that time.
    """

    local_ns: int
    offset_ns: int
    uncertainty_ns: int
    unix_ns: int


class AlignedClock:
    """The clock of rank 0, on every rank. It starts at 0 when it is made.

    Parameters
    ----------
    control
        mpi4py communicator; making the object and `measure` are collective.
    """

    def __init__(self, control: Any) -> None:
        self._control = control
        self._zero_ns = now_ns()
        self.readings: list[Reading] = []
        self.measure()

    def measure(self) -> Reading:
        """Find the offset anew."""
        rank, size = self._control.rank, self._control.size
        if rank:
            reach = 1 << (rank.bit_length() - 1)
            reading = self._ask(rank - reach)
        else:
            reading = Reading(now_ns(), -self._zero_ns, 0, time.time_ns())
        step = 1 << rank.bit_length()
        while rank + step < size:
            self._answer(rank + step, reading)
            step <<= 1
        self.readings.append(reading)
        return reading

    def _ask(self, parent: int) -> Reading:
        question, answer = np.zeros(1, np.uint8), np.zeros(2, np.int64)
        best = Reading(0, 0, 1 << 62, 0)
        first = now_ns()
        for number in range(1, _ROUNDS + 1):
            begin = now_ns()
            question[0] = number == _ROUNDS or (number >= _LEAST_ROUNDS and begin - first > _ENOUGH_NS)
            self._control.Send(question, parent, _TAG)
            self._control.Recv(answer, parent, _TAG)
            end = now_ns()
            uncertainty_ns = int(answer[1]) + (end - begin + 1) // 2
            if uncertainty_ns < best.uncertainty_ns:
                middle = (begin + end) // 2
                best = Reading(middle, int(answer[0]) - middle, uncertainty_ns, time.time_ns())
            if question[0]:
                break
        return best

    def _answer(self, child: int, reading: Reading) -> None:
        question, answer = np.zeros(1, np.uint8), np.zeros(2, np.int64)
        while not question[0]:
            self._control.Recv(question, child, _TAG)
            now = now_ns()
            answer[0] = now + reading.offset_ns
            if self._control.rank:
                # This rank's clock may have run at another pace since.
                answer[1] = reading.uncertainty_ns + int((now - reading.local_ns) * _MOST_DRIFT)
            self._control.Send(answer, child, _TAG)

    @property
    def uncertainty_ns(self) -> int:
        """Bound of the error between the last two measurements, of this rank."""
        return max(reading.uncertainty_ns for reading in self.readings[-2:])

    @property
    def drift_ppm(self) -> float:
        """Pace against rank 0 since the first measurement, in millionths; 0 until there is a second one."""
        first, last = self.readings[0], self.readings[-1]
        if last.local_ns == first.local_ns:
            return 0.0
        return (last.offset_ns - first.offset_ns) / (last.local_ns - first.local_ns) * 1e6

    def aligned(self, local_ns: Any) -> Any:
        """Aligned times for times of this rank's clock (int64); interpolated between the last two measurements."""
        last = self.readings[-1]
        if len(self.readings) == 1:
            return local_ns + last.offset_ns
        before = self.readings[-2]
        span = max(1, last.local_ns - before.local_ns)
        change = last.offset_ns - before.offset_ns
        # Only the change goes through a float: an offset can exceed the 53 bits that it has.
        moved = np.rint((local_ns - before.local_ns) * (change / span)).astype(np.int64)
        return local_ns + before.offset_ns + moved

    def local(self, aligned_ns: int) -> int:
        """When this rank's own clock will show the given aligned time, by the last measurement."""
        return aligned_ns - self.readings[-1].offset_ns

    def record(self) -> dict[str, Any]:
        """The last measurement, as in the record schema."""
        last = self.readings[-1]
        return {
            "time_ns": last.local_ns + last.offset_ns,
            "offset_ns": last.offset_ns,
            "drift_ppm": round(self.drift_ppm, 4),
            "uncertainty_ns": last.uncertainty_ns,
            "unix_ns": last.unix_ns,
        }


@lru_cache(maxsize=1)
def resolution_ns() -> int:
    """The least time, above 0, between two readings of the clock one behind the other, as Python takes them."""
    clock = time.perf_counter_ns
    times = np.array([clock() for _ in range(10_000)])
    steps = np.diff(times)
    return int(steps[steps > 0].min())
