"""What `hpccoll.Comm` costs on top of raw mpi4py: the same calls, on the same memory, in one run.

Blocks of calls of the engines alternate in an order that is shuffled anew each time, so that drift of the
machine meets all engines alike. Within a block the calls are back to back (mode "pipelined"): the clock is
read twice per block, and no barrier hides what the interpreter does meanwhile. A block's time per call is
that of the slowest rank. Ratio and difference are formed between the blocks of one round, and their medians shown.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.bench.case import Buffers, Case, Place
from hpccoll.bench.dtypes import DTYPES
from hpccoll.bench.engines import Engine, make_engine
from hpccoll.bench.header import gather_header
from hpccoll.bench.report import Printer, conditions
from hpccoll.bench.results import check_target
from hpccoll.bench.storage import RowData, Tables
from hpccoll.comm import Comm, world
from hpccoll.errors import VerificationError

__all__ = ["Comparison", "compare_engines", "run_overhead"]

FORMAT = "hpccoll.overhead/1"
MODE = "pipelined"
_BLOCK_S = 0.002
_MOST_CALLS = 500
NOTHING = Buffers(None, None, "sum", Place(0, 1, 0), in_place=False)


@dataclass(frozen=True)
class Comparison:
    """One collective at one size through one engine, against the first engine.

    Attributes
    ----------
    collective, engine : str
    nbytes : int
        S, as in the programs.
    calls, rounds : int
        Calls in a block, and blocks of each engine.
    time_us, least_us : float
        Median and least of the blocks' times per call.
    extra_us, ratio : float
        Median over the rounds of the difference to, and the ratio to, the first engine's block.
    least_extra_us, least_ratio : float
        Difference and ratio of the least times: what remains on a machine that others use as well.
    """

    collective: str
    engine: str
    nbytes: int
    calls: int
    rounds: int
    time_us: float
    least_us: float
    extra_us: float
    ratio: float
    least_extra_us: float
    least_ratio: float


def run_overhead(
    cases: Sequence[Case], sizes: Sequence[int], engines: Sequence[str], rounds: int, json_target: str | None
) -> int:
    """Time `engines` against the first of them, print the table on rank 0, and return the exit status.

    Raises
    ------
    UsageError
        On every rank, if the JSON document cannot be written.
    VerificationError
        On every rank, if an engine gave a wrong result.
    """
    return compare_engines(
        cases, sizes, [[make_engine(name) for name in engines]], rounds, json_target, "mpi4py"
    )


def compare_engines(
    cases: Sequence[Case],
    sizes: Sequence[int],
    sets: Sequence[list[Engine]],
    rounds: int,
    json_target: str | None,
    against: str,
) -> int:
    """As `run_overhead`, for several sets of engines, each against the first of its own, which `against` describes."""
    comm = world()
    control: Any = comm.mpi.Dup()
    check_target("--json", json_target, control)
    names = ", ".join(dict.fromkeys(engine.name for chosen in sets for engine in chosen))
    header = gather_header("overhead", names, MODE, control)
    printer = Printer(sys.stderr if json_target == "-" else sys.stdout)
    if header is not None:
        for line in [*conditions(header), *_titles(rounds, against)]:
            printer.line(line)
    rows = []
    for case, chosen in itertools.product(cases, sets):
        if any(engine.refuses(case.name, "float32", NOTHING) for engine in chosen):
            continue
        for number, nbytes in enumerate(sizes if case.sized else (0,)):
            for row in _compare(case, nbytes, number, chosen, rounds, comm, control):
                rows.append(row)
                if header is not None:
                    printer.line(_line(row))
        if control.bcast(printer.closed and json_target is None):
            break
    if header is not None and json_target is not None:
        content = {"format": FORMAT, "header": asdict(header), "rows": [asdict(row) for row in rows]}
        printer.document(json.dumps(content, indent=1) + "\n", json_target)
    control.Free()
    return 0


def _titles(rounds: int, against: str = "mpi4py") -> list[str]:
    names = f"#{'collective':>14} {'bytes':>9} {'engine':>11}"
    return [
        f"# float32; {rounds} blocks of each engine, in turn; extra and ratio against {against}",
        f"{names} {'median':>10} {'extra':>8} {'ratio':>7} {'least':>10} {'extra':>8} {'ratio':>7}",
        f"#{'':>36} {'us':>10} {'us':>8} {'':>7} {'us':>10} {'us':>8}",
    ]


def _line(row: Comparison) -> str:
    return (
        f"{row.collective:>15} {row.nbytes:>9} {row.engine:>11}"
        f" {row.time_us:>10.2f} {row.extra_us:>8.2f} {row.ratio:>7.3f}"
        f" {row.least_us:>10.2f} {row.least_extra_us:>8.2f} {row.least_ratio:>7.3f}"
    )


def _compare(
    case: Case, nbytes: int, number: int, engines: list[Engine], rounds: int, comm: Comm, control: Any
) -> Iterator[Comparison]:
    dtype, op = DTYPES["float32"], "sum" if case.takes_op else None
    place = Place(comm.rank, comm.size, 0)
    count = case.count(nbytes, dtype.itemsize, comm.size)
    calls: list[Callable[[], object]] = []
    data = None
    if case.sized:
        data = RowData(case, Tables(dtype, op, comm.size), count, place, salt=number, in_place=False)
    for engine in engines:
        send, recv = (None, None) if data is None else data.windows(engine.kind)[0]
        buffers = Buffers(send, recv, op or "", place, in_place=False)
        calls.append(engine.bind(case.name, comm, buffers).call)
    for engine, call in zip(engines, calls, strict=True):
        _verify(case, engine, call, data, control)
    number_of_calls = _calls_per_block(calls[0], control)
    times = _time(calls, number_of_calls, rounds, control)
    for engine, call in zip(engines, calls, strict=True):
        _verify(case, engine, call, data, control)
    least = times.min(axis=0)
    for index, engine in enumerate(engines):
        yield Comparison(
            collective=case.name,
            engine=engine.name,
            nbytes=case.nbytes(count, dtype.itemsize, comm.size),
            calls=number_of_calls,
            rounds=rounds,
            time_us=float(np.median(times[:, index])),
            extra_us=float(np.median(times[:, index] - times[:, 0])),
            ratio=float(np.median(times[:, index] / times[:, 0])),
            least_us=float(least[index]),
            least_extra_us=float(least[index] - least[0]),
            least_ratio=float(least[index] / least[0]),
        )


def _verify(
    case: Case, engine: Engine, call: Callable[[], object], data: RowData | None, control: Any
) -> None:
    if data is not None:
        data.prepare(0)
    call()
    wrong = data.check(0) if data is not None else None
    found = wrong.text if wrong is not None else None
    for rank, text in enumerate(control.allgather(found)):
        if text:
            raise VerificationError(f"{case.name} through {engine.name} on rank {rank}: {text}")


def _calls_per_block(call: Callable[[], object], control: Any) -> int:
    """As many as last 2 ms, which is far above the resolution of the clock; 500 at most."""
    for _ in range(3):
        call()
    control.Barrier()
    start = time.perf_counter()
    for _ in range(5):
        call()
    call_s = control.allreduce((time.perf_counter() - start) / 5, MPI.MAX)
    return max(1, min(_MOST_CALLS, int(_BLOCK_S / max(call_s, 1e-9))))


def _time(calls: list[Callable[[], object]], number: int, rounds: int, control: Any) -> np.ndarray:
    """Time per call in microseconds, (rounds, engines), of the slowest rank; the first round warms up."""
    clock = time.perf_counter_ns
    times = np.zeros((rounds + 1, len(calls)))
    shuffle = random.Random(0).shuffle  # the same order on every rank
    order = list(range(len(calls)))
    for turn in range(rounds + 1):
        shuffle(order)
        for index in order:
            call = calls[index]
            control.Barrier()
            start = clock()
            for _ in range(number):
                call()
            times[turn, index] = (clock() - start) / number / 1e3
    slowest = np.empty_like(times)
    control.Allreduce(times, slowest, MPI.MAX)
    return slowest[1:]
