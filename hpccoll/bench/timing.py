"""The timed loop: mode "barrier", one call at a time, every call verified outside the timed region."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpccoll.bench.storage import RowData, Wrong

__all__ = [
    "MODE",
    "Block",
    "Summary",
    "choose_iterations",
    "default_warmup",
    "garbage_collector_off",
    "run_calls",
    "summarise",
]

MODE = "barrier"

_SMALL_NBYTES = 64 * 1024
_MOST_SMALL, _MOST_LARGE = 1000, 100
_LEAST = 5
_ROW_LIMIT_S = 0.4


@dataclass
class Block:
    """What one rank saw in some calls in a row.

    Attributes
    ----------
    entered_ns, left_ns : numpy.ndarray
        The host's monotonic clock just before and after each call.
    wrong : list of Wrong
        One entry for each call with a wrong result.
    elapsed_s : float
        Wall time of the whole block, preparation and verification included.
    """

    entered_ns: np.ndarray
    left_ns: np.ndarray
    wrong: list[Wrong]
    elapsed_s: float


@dataclass(frozen=True)
class Summary:
    """Times of a row in microseconds: per call the slowest rank, of these the median, least and most."""

    median_us: float
    min_us: float
    max_us: float


@contextmanager
def garbage_collector_off() -> Iterator[None]:
    """Keep Python's garbage collector out of the timed calls."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def run_calls(
    calls: Sequence[Callable[[], object]], data: RowData | None, control: Any, first: int, number: int
) -> Block:
    """Make the calls `first` to `first + number`, each behind a barrier, and verify what each received.

    Parameters
    ----------
    calls
        One function per window of `data`; call i uses ``calls[i % len(calls)]``.
    data
        Poisons or refills the buffers before each call and checks them after it; None without buffers.
    control
        mpi4py communicator for the barriers; not the one under test.
    """
    entered, left = np.zeros(number, np.int64), np.zeros(number, np.int64)
    wrong: list[Wrong] = []
    clock = time.perf_counter_ns
    begin = clock()
    for i in range(number):
        iteration = first + i
        call = calls[iteration % len(calls)]
        if data is not None:
            data.prepare(iteration)
        control.Barrier()
        start = clock()
        call()
        end = clock()
        entered[i], left[i] = start, end
        if data is not None:
            found = data.check(iteration)
            if found is not None:
                wrong.append(found)
    return Block(entered, left, wrong, (clock() - begin) * 1e-9)


def choose_iterations(nbytes: int, call_s: float) -> int:
    """Timed calls of a row: 1000 up to 64 KiB, 100 above, as in OSU; what fits into 0.4 s, but 5 at least."""
    most = _MOST_SMALL if nbytes <= _SMALL_NBYTES else _MOST_LARGE
    return max(_LEAST, min(most, int(_ROW_LIMIT_S / max(call_s, 1e-9))))


def default_warmup(nbytes: int) -> int:
    """Calls before the timed ones: connections are made, and algorithms chosen, in the first."""
    return 20 if nbytes <= _SMALL_NBYTES else 5


def summarise(slowest_ns: np.ndarray) -> Summary:
    """Median, least and most of the times of the slowest rank."""
    times_us = slowest_ns / 1e3
    return Summary(float(np.median(times_us)), float(times_us.min()), float(times_us.max()))
