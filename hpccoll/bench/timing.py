"""The timed loop, the same for every engine and mode; results are verified outside the timed region."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hpccoll.bench.gates import Gate
from hpccoll.bench.storage import Wrong

if TYPE_CHECKING:
    from hpccoll.bench.engines import Bound
    from hpccoll.bench.rotation import Rotation

__all__ = [
    "Block",
    "choose_batch",
    "choose_iterations",
    "default_warmup",
    "garbage_collector_off",
    "join_blocks",
    "run_calls",
    "slowest",
]

_SMALL_NBYTES = 64 * 1024
_MOST_SMALL, _MOST_LARGE = 1000, 100
_LEAST = 5
_ROW_LIMIT_S = 0.4
_LEAST_RESOLUTIONS = 100
_PIPELINE_S = 0.002
_MOST_BATCH = 500


@dataclass
class Block:
    """What one rank saw in some samples in a row.

    Attributes
    ----------
    entered_ns, left_ns : numpy.ndarray
        This rank's clock just before and after each sample.
    late_ns : numpy.ndarray
        How long after the agreed time it was entered; 0 where there is none.
    right : numpy.ndarray
        Whether the result was right.
    wrong : list of Wrong
        One entry for each wrong result.
    elapsed_s : float
        Wall time of the whole block, preparation and verification included.
    """

    entered_ns: np.ndarray
    left_ns: np.ndarray
    late_ns: np.ndarray
    right: np.ndarray
    wrong: list[Wrong]
    elapsed_s: float

    def __len__(self) -> int:
        return int(self.entered_ns.size)

    def only(self, kept: np.ndarray) -> Block:
        """The samples where `kept` is true."""
        arrays = (self.entered_ns[kept], self.left_ns[kept], self.late_ns[kept], self.right[kept])
        return Block(*arrays, self.wrong, self.elapsed_s)


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
    calls: Sequence[Bound], data: Rotation | None, gate: Gate, first: int, number: int, batch: int = 1
) -> Block:
    """Take the samples `first` to `first + number`, each behind the gate, and verify what was received.

    Parameters
    ----------
    calls
        One per window of `data`; sample i uses ``calls[i % len(calls)]``.
    data
        Poisons or refills the buffers before each sample and checks them after it; None without buffers.
    gate
        Lets the ranks start together.
    batch
        Calls in a sample, back to back; the last one's result is checked.
    """
    entered, left, late = (np.zeros(number, np.int64) for _ in range(3))
    right = np.ones(number, bool)
    wrong: list[Wrong] = []
    begin = time.perf_counter()
    for i in range(number):
        iteration = first + i
        call = calls[iteration % len(calls)]
        if data is not None:
            data.prepare(iteration)
            call.load()
        agreed = gate.wait()
        entered[i], left[i] = start, _ = call.timed(batch)
        if agreed is not None:
            late[i] = start - agreed
        if data is not None:
            call.unload()
            found = data.check(iteration)
            if found is not None:
                right[i] = False
                wrong.append(found)
    return Block(entered, left, late, right, wrong, time.perf_counter() - begin)


def join_blocks(blocks: Sequence[Block]) -> Block:
    """Blocks one after the other as one."""

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(block, name) for block in blocks])

    wrong = [item for block in blocks for item in block.wrong]
    return Block(
        joined("entered_ns"),
        joined("left_ns"),
        joined("late_ns"),
        joined("right"),
        wrong,
        sum(block.elapsed_s for block in blocks),
    )


def choose_iterations(nbytes: int, call_s: float) -> int:
    """Timed calls of a row: 1000 up to 64 KiB, 100 above, as in OSU; what fits into 0.4 s, but 5 at least."""
    most = _MOST_SMALL if nbytes <= _SMALL_NBYTES else _MOST_LARGE
    return max(_LEAST, min(most, int(_ROW_LIMIT_S / max(call_s, 1e-9))))


def choose_batch(mode: str, calls_ns: Sequence[float], resolution_ns: int) -> int:
    """Calls in a sample, for engines whose calls take so long: one number for all, or ratios would mean nothing.

    Enough for 100 times the resolution of the clock with the fastest engine; and, where calls are pipelined, 2 at
    least, and 2 ms with the slowest.
    """
    fastest_ns, slowest_ns = max(1.0, min(calls_ns)), max(1.0, max(calls_ns))
    batch = math.ceil(_LEAST_RESOLUTIONS * resolution_ns / fastest_ns)
    if mode == "pipelined":
        batch = max(2, batch, int(_PIPELINE_S * 1e9 / slowest_ns))
    return max(1, min(_MOST_BATCH, batch))


def default_warmup(nbytes: int) -> int:
    """Calls before the timed ones: connections are made, and algorithms chosen, in the first."""
    return 20 if nbytes <= _SMALL_NBYTES else 5


def slowest(control: Any, values: np.ndarray) -> np.ndarray:
    """The largest over the ranks, element by element."""
    from mpi4py import MPI

    found = np.empty_like(values)
    control.Allreduce(np.ascontiguousarray(values), found, MPI.MAX)
    return found
