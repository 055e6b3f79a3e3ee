"""One row: every engine on the same buffers, in shuffled blocks, and what came of it."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.bench.arrival import check_order, prove_waiting
from hpccoll.bench.case import Buffers, Case, Place
from hpccoll.bench.clock import AlignedClock, resolution_ns
from hpccoll.bench.engines import Bound, Engine
from hpccoll.bench.engines.base import joint_reason
from hpccoll.bench.gates import Gate, LibraryBarrier, WindowGate
from hpccoll.bench.options import Options
from hpccoll.bench.planning import Plan
from hpccoll.bench.rotation import Rotation, sets_for
from hpccoll.bench.stats import median_interval
from hpccoll.bench.storage import RowData, Tables, Wrong, rank_nbytes
from hpccoll.bench.timing import (
    Block,
    choose_batch,
    choose_iterations,
    default_warmup,
    join_blocks,
    run_calls,
    slowest,
)
from hpccoll.comm import Comm

__all__ = ["Arrival", "Measurement", "Measurer"]

_ROUNDS = 10
_LEAST_BATCHES = 20
_MOST_TRIES = 8
_LATE_NS = 20_000


@dataclass(frozen=True)
class Arrival:
    """The rank that most often entered last; alike on every rank.

    Attributes
    ----------
    rank : int
    share : float
        Of the samples in which it was the last.
    after_us : float
        How long after the first rank it entered: median over the samples.
    uncertainty_us : float
        Bound of the error of the difference of two ranks' aligned clocks.
    """

    rank: int
    share: float
    after_us: float
    uncertainty_us: float


@dataclass
class Measurement:
    """What one engine did in one row of one launch, on this rank.

    Attributes
    ----------
    engine : str
    skipped : str or None
        Why nothing was measured.
    block : Block
        All samples that count.
    start_ns, end_ns : numpy.ndarray
        The block's times on the aligned clock.
    times_us : numpy.ndarray
        Per sample the time of a call, over all ranks; alike on every rank.
    rounds_us : numpy.ndarray
        Medians of `times_us` over each round.
    batch, warmup, late_starts : int
    wrong : list of Wrong
        On this rank.
    arrival : Arrival or None
    """

    engine: str
    skipped: str | None = None
    block: Block | None = None
    start_ns: Any = None
    end_ns: Any = None
    times_us: Any = None
    rounds_us: Any = None
    batch: int = 1
    warmup: int = 0
    late_starts: int = 0
    wrong: list[Wrong] = field(default_factory=list)
    arrival: Arrival | None = None


@dataclass
class _Run:
    """An engine on its way through a row."""

    engine: Engine
    calls: list[Bound]
    found: Measurement
    call_s: float = 0.0
    call_ns: float = 0.0
    rounds: list[Block] = field(default_factory=list)

    def slowest_us(self, control: Any) -> np.ndarray:
        return np.concatenate([slowest(control, b.left_ns - b.entered_ns) for b in self.rounds]) / 1e3


class Measurer:
    """Measures rows; the same object, with the same arguments, on every rank.

    Parameters
    ----------
    control, node
        mpi4py communicators of all ranks and of this host's: for barriers, and agreement on outcomes.
    gate
        How the ranks start together.
    """

    def __init__(
        self,
        case: Case,
        options: Options,
        engines: Sequence[Engine],
        control: Any,
        node: Any,
        aligned: AlignedClock,
        gate: Gate,
    ) -> None:
        self.case, self.options, self.engines = case, options, engines
        self.control, self.node, self.aligned = control, node, aligned
        self.gate = gate
        # In the warm-up nobody has to be in time.
        self._warmup_gate = LibraryBarrier(control) if isinstance(gate, WindowGate) else gate
        self._tables: Any = None
        self._next = 0

    def needed_nbytes(self, plan: Plan, place: Place) -> int:
        """Bytes that one set of buffers takes on the rank that needs the most."""
        need: int = self.control.allreduce(rank_nbytes(self.case, plan.dtype, plan.count, place), MPI.MAX)
        return need

    def measure(self, plan: Plan, launch: int, comm: Comm, limit: int | None) -> list[Measurement]:
        """The row through every engine. Collective."""
        place = Place(comm.rank, comm.size, plan.root)
        data = self._data(plan, place, limit) if self.case.sized else None
        self._next = 0
        runs, found = [], []
        for engine in self.engines:
            run = self._bind(engine, plan, place, comm, data)
            found.append(run.found)
            if run.found.skipped is None:
                self._warm_up(run, plan, data)
                runs.append(run)
        if runs:
            self._take_rounds(runs, plan, launch, data)
            self.aligned.measure()
            for run in runs:
                self._conclude(run)
            last = runs[-1].found.wrong
            last += data.check_rest() if data is not None else []
        return found

    # ---- Before the timed calls

    def _data(self, plan: Plan, place: Place, limit: int | None) -> Rotation:
        known = self._tables
        if known is None or (known.dtype, known.op, known.size) != (plan.dtype, plan.op, place.size):
            self._tables = Tables(plan.dtype, plan.op, place.size)
        number = 1
        if self.options.rotate_nbytes:
            number = sets_for(self.options.rotate_nbytes, self.needed_nbytes(plan, place), limit)

        def make() -> RowData:
            in_place = self.options.in_place
            return RowData(self.case, self._tables, plan.count, place, salt=plan.number, in_place=in_place)

        return Rotation(make, number)

    def _bind(self, engine: Engine, plan: Plan, place: Place, comm: Comm, data: Rotation | None) -> _Run:
        in_place = data is not None and data.in_place and not self.case.always_in_place
        windows: list[tuple[Any, Any]] = [(None, None)]
        reason = None
        try:
            windows = windows if data is None else data.windows(engine.kind)
        except (ImportError, AttributeError, TypeError) as exc:  # a dtype that NumPy or torch lacks
            reason = f"no {plan.dtype.name} on {engine.kind} buffers: {exc}"
        reason = joint_reason(self.control, reason)
        buffers = [Buffers(send, recv, plan.op or "", place, in_place) for send, recv in windows]
        if reason is None:
            refused = engine.refuses(self.case.name, plan.dtype.name, buffers[0])
            reason = joint_reason(self.control, refused)
        if reason:
            return _Run(engine, [], Measurement(engine.name, skipped=reason))
        calls = [engine.bind(self.case.name, comm, its) for its in buffers]
        return _Run(engine, calls, Measurement(engine.name))

    def _warm_up(self, run: _Run, plan: Plan, data: Rotation | None) -> None:
        found, options = run.found, self.options
        if not self.case.sized:
            found.wrong += prove_waiting(run.calls[0].call, self.control)
        # One untimed call at least: it makes the connections, and its result is verified before any timing.
        found.warmup = max(1, default_warmup(plan.nbytes) if options.warmup is None else options.warmup)
        block = run_calls(run.calls, data, self._warmup_gate, self._next, found.warmup)
        self._next += found.warmup
        found.wrong += block.wrong
        if data is not None and len(self.engines) > 1:
            found.wrong += data.check_rest()  # so that it is clear who did it
        run.call_s = self.control.allreduce(block.elapsed_s / found.warmup, MPI.MAX)
        run.call_ns = float(np.median(slowest(self.control, block.left_ns - block.entered_ns)))

    def _batch(self, runs: list[_Run]) -> int:
        """Calls in a sample; what rank 0's clock says goes for all."""
        if self.options.batch is not None:
            return self.options.batch
        if not self.case.repeatable(self.options.in_place):
            return 1
        calls_ns = [run.call_ns for run in runs]
        batch: int = self.control.bcast(choose_batch(self.options.mode, calls_ns, resolution_ns()))
        return batch

    # ---- The timed calls

    def _take_rounds(self, runs: list[_Run], plan: Plan, launch: int, data: Rotation | None) -> None:
        begin = time.monotonic()
        options = self.options
        batch = self._batch(runs)
        for run in runs:
            run.found.batch = batch
        iterations = options.iters or choose_iterations(plan.nbytes, max(run.call_s for run in runs))
        rounds = 1 if len(runs) == 1 else min(_ROUNDS, iterations)
        # At least as many calls as asked for, in whole samples.
        samples = -(-iterations // (batch * rounds))
        if options.iters is None and batch > 1:
            samples = max(samples, -(-_LEAST_BATCHES // rounds))
        shuffle = random.Random(f"{plan.number} {launch}").shuffle  # alike on every rank
        order = list(runs)
        number = 0
        while number < rounds or self._goes_on(runs, begin):
            shuffle(order)
            for run in order:
                run.rounds.append(self._take(run, data, samples))
            number += 1

    def _goes_on(self, runs: list[_Run], begin: float) -> bool:
        """Whether an interval is still too wide, and there is time."""
        if self.options.target_ci is None:
            return False
        time_left = time.monotonic() - begin < self.options.max_seconds
        if not self.control.bcast(time_left):
            return False
        for run in runs:
            times = run.slowest_us(self.control)
            width = median_interval(times).half_width if times.size else None
            if width is None or width > self.options.target_ci:
                return True
        return False

    def _take(self, run: _Run, data: Rotation | None, samples: int) -> Block:
        blocks: list[Block] = []
        missing = samples
        for _ in range(_MOST_TRIES):
            block = run_calls(run.calls, data, self.gate, self._next, missing, run.found.batch)
            self._next += missing
            run.found.wrong += block.wrong
            if not isinstance(self.gate, WindowGate):
                return block
            late = slowest(self.control, block.late_ns) > _LATE_NS
            run.found.late_starts += int(late.sum())
            self.gate.adapt(missing)
            blocks.append(block.only(~late))
            missing = samples - sum(map(len, blocks))
            if missing == 0:
                break
        return join_blocks(blocks)

    # ---- Behind them

    def _conclude(self, run: _Run) -> None:
        found = run.found
        block = found.block = join_blocks(run.rounds)
        if not len(block):
            found.skipped = f"every one of {found.late_starts} starts was late for the agreed time"
            return
        found.start_ns, found.end_ns = (
            self.aligned.aligned(block.entered_ns),
            self.aligned.aligned(block.left_ns),
        )
        first, last = -slowest(self.control, -found.start_ns), slowest(self.control, found.start_ns)
        if self.options.mode == "window":
            times = slowest(self.control, found.end_ns) - first
        else:
            times = slowest(self.control, block.left_ns - block.entered_ns)
        found.times_us = times / found.batch / 1e3
        bounds = np.cumsum([len(b) for b in run.rounds])[:-1]
        parts = np.split(found.times_us, bounds)
        found.rounds_us = np.array([np.median(part) if part.size else np.nan for part in parts])
        found.arrival = self._arrival(found.start_ns, first, last)
        if not self.case.sized:
            found.wrong += check_order(block, self.node) + prove_waiting(run.calls[0].call, self.control)

    def _arrival(self, start_ns: Any, first: Any, last: Any) -> Arrival | None:
        if self.control.size == 1:
            return None
        share = float(np.mean(start_ns == last))
        # Of equal shares the lowest rank's.
        share, rank = self.control.allreduce((share, self.control.rank), MPI.MAXLOC)
        after_ns = self.control.bcast(float(np.median(start_ns - first)), rank)
        worst = self.control.allreduce(self.aligned.uncertainty_ns, MPI.MAX)
        return Arrival(rank, share, after_ns / 1e3, 2 * worst / 1e3)
