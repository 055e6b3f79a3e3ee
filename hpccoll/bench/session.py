"""The sweep over sizes, dtypes, ops and roots, on one rank."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.bench.arrival import check_order, prove_waiting
from hpccoll.bench.case import Buffers, Case, Place
from hpccoll.bench.dtypes import DType, numpy_dtype, torch_dtype
from hpccoll.bench.engines import ENGINES
from hpccoll.bench.header import gather_header
from hpccoll.bench.host import available_nbytes
from hpccoll.bench.options import Options, UsageError
from hpccoll.bench.report import Report
from hpccoll.bench.results import Failure, Header, Row, check_json_target, document
from hpccoll.bench.storage import RowData, Tables, Wrong, rank_nbytes
from hpccoll.bench.timing import (
    MODE,
    Block,
    choose_iterations,
    default_warmup,
    garbage_collector_off,
    run_calls,
    summarise,
)
from hpccoll.comm import Comm
from hpccoll.environment import hostname
from hpccoll.errors import ArgumentError
from hpccoll.units import format_bytes, rate_gb_per_s

__all__ = ["Plan", "Session"]

_OK, _FAILED = 0, 1
_MOST_FAILURES = 8
_MEMORY_SHARE = 0.8


@dataclass(frozen=True)
class Plan:
    """The independent variables of one row."""

    number: int
    dtype: DType
    op: str | None
    root: int
    count: int
    nbytes: int


class Session:
    """One run of a program on one rank.

    `control` carries the engine's own traffic (barriers, agreement on outcomes), apart from the communicator
    under test and not through the code under test.
    """

    def __init__(self, case: Case, options: Options, comm: Comm) -> None:
        self.case, self.options, self.comm = case, options, comm
        self.control: Any = comm.mpi.Dup()
        self.node: Any = self.control.Split_type(MPI.COMM_TYPE_SHARED)
        self.engine = ENGINES[options.buffer]()
        self.rows: list[Row] = []
        self._tables: Any = None

    # ---- The whole run

    def run(self) -> int:
        self._check_root()
        check_json_target(self.options.json, self.control)
        plans = list(self._plans())
        header = gather_header(self.case.name, self.engine.name, MODE, self.control)
        limit = self._memory_limit()
        report = None
        if header is not None:
            to_stderr = self.options.json == "-"
            report = Report(self.case, len(plans), progress=self.options.progress, to_stderr=to_stderr)
            report.header(header)
        status = "ok"
        try:
            with garbage_collector_off():
                for plan in plans:
                    if report:
                        report.next(f"{plan.nbytes} bytes")
                    row = self._row(plan, limit)
                    self.rows.append(row)
                    if report:
                        report.row(row)
                    status = "wrong" if row.wrong else status
                    if self.control.bcast(report is not None and report.closed and self.options.json is None):
                        status = "stopped" if status == "ok" else status
                        break
        finally:
            if report:
                report.close()
        if report and header is not None:
            report.line(self._verdict(status))
            status = self._write(report, header, status)
        self.control.Barrier()
        self.node.Free()
        self.control.Free()
        return _OK if status in ("ok", "stopped") else _FAILED

    def _write(self, report: Report, header: Header, status: str) -> str:
        """Write the JSON document if one is wanted; a full disk must not pass for success."""
        if self.options.json is not None:
            try:
                report.document(document(header, self.rows, status), self.options.json)
            except OSError as exc:
                print(
                    f"hpccoll {self.case.name}: error: cannot write {self.options.json}: {exc}",
                    file=sys.stderr,
                )
                return "unwritten"
        return status

    def _verdict(self, status: str) -> str:
        skipped = sum(row.skipped is not None for row in self.rows)
        left_out = f"; {skipped} rows skipped" if skipped else ""
        wrong = sum(row.wrong for row in self.rows)
        if status == "wrong":
            return f"# FAILED: {wrong} wrong elements{left_out}"
        if skipped == len(self.rows):
            return "# nothing was measured or verified: every row was skipped"
        return f"# every result of every call verified on every rank{left_out}"

    # ---- What can be wrong with the options, found before the sweep starts

    def _check_root(self) -> None:
        root, size = self.options.roots[0], self.comm.size
        if root >= size:
            raise UsageError(f"argument --root: must be below the number of ranks, {size}; got {root}")

    def _plans(self) -> Iterator[Plan]:
        options, case, size = self.options, self.case, self.comm.size
        number = 0
        for dtype in options.dtypes:
            for op in options.ops:
                if not self._has_meaning(dtype, op):
                    continue
                for root in range(size) if options.every_root else options.roots:
                    # Two sizes that round to the same count are one row.
                    counts = {case.count(nbytes, dtype.itemsize, size): None for nbytes in options.sizes}
                    for count in counts:
                        yield Plan(number, dtype, op, root, count, case.nbytes(count, dtype.itemsize, size))
                        number += 1

    def _has_meaning(self, dtype: DType, op: str | None) -> bool:
        """Ask `Comm` itself, on a communicator of one rank."""

        try:
            if self.options.buffer == "torch":
                import torch

                example: Any = torch.zeros(1, dtype=torch_dtype(dtype))
            else:
                example = np.zeros(1, numpy_dtype(dtype))
            if op is not None:
                Comm(MPI.COMM_SELF).allreduce(example, op=op)
        except (ArgumentError, ImportError, AttributeError) as exc:
            if self.options.every_dtype or (self.options.every_op and isinstance(exc, ArgumentError)):
                return False
            text = str(exc).partition(": ")[2] if isinstance(exc, ArgumentError) else str(exc)
            raise UsageError(f"argument --{'op' if op else 'dtype'}: {text}") from None
        return True

    def _memory_limit(self) -> int | None:
        """Bytes that one rank may use, the same on all ranks; None where no host says."""

        here = available_nbytes() if self.node.rank == 0 else None
        here = self.node.bcast(here)
        limits = [int(here * _MEMORY_SHARE) // self.node.size] if here is not None else []
        if self.options.max_memory is not None:
            limits.append(self.options.max_memory)
        known = [limit for limit in self.control.allgather(min(limits, default=None)) if limit is not None]
        return min(known, default=None)

    # ---- One row

    def _row(self, plan: Plan, limit: int | None) -> Row:
        case = self.case
        row = Row(
            nbytes=plan.nbytes,
            count=plan.count,
            dtype=plan.dtype.name if case.sized else None,
            op=plan.op,
            root=plan.root if case.takes_root else None,
            in_place=(self.options.in_place or case.always_in_place) if case.sized else None,
        )
        place = Place(self.comm.rank, self.comm.size, plan.root)
        need = self.control.allreduce(rank_nbytes(case, plan.dtype, plan.count, place), MPI.MAX)
        if case.sized and limit is not None and need > limit:
            text = f"needs {format_bytes(_rounded(need))} a rank, has {format_bytes(_rounded(limit))}"
            return replace(row, skipped=text)
        return self._measure(plan, place, row)

    def _measure(self, plan: Plan, place: Place, row: Row) -> Row:
        case, options = self.case, self.options
        data, windows = self._data(plan, place)
        in_place = data is not None and data.in_place and not case.always_in_place
        calls = [
            self.engine.bind(case, self.comm, Buffers(send, recv, plan.op or "", place, in_place))
            for send, recv in windows
        ]
        wrong = [] if case.sized else prove_waiting(calls[0], self.control)
        # One untimed call at least: it makes the connections, and its result is verified before any timing.
        warmup = max(1, default_warmup(plan.nbytes) if options.warmup is None else options.warmup)
        before = run_calls(calls, data, self.control, 0, warmup)
        slowest_s = self.control.allreduce(before.elapsed_s / warmup, MPI.MAX)
        iterations = options.iters or choose_iterations(plan.nbytes, slowest_s)
        block = run_calls(calls, data, self.control, warmup, iterations)
        wrong += before.wrong + block.wrong
        if data is not None:
            wrong += data.check_rest()
        else:
            wrong += check_order(block, self.node) + prove_waiting(calls[0], self.control)
        total, failures = self._joint(wrong)
        summary = summarise(self._slowest(block))
        rate = rate_gb_per_s(plan.nbytes, summary.median_us) if plan.nbytes else None
        return replace(
            row,
            iterations=iterations,
            warmup=warmup,
            time_us=summary.median_us,
            time_min_us=summary.min_us,
            time_max_us=summary.max_us,
            algbw_gb_per_s=rate,
            busbw_gb_per_s=None if rate is None or place.size == 1 else rate * case.busbw(place.size),
            wrong=total,
            failures=failures,
        )

    def _data(self, plan: Plan, place: Place) -> tuple[Any, Any]:
        if not self.case.sized:
            return None, [(None, None)]
        known = self._tables
        if known is None or (known.dtype, known.op) != (plan.dtype, plan.op):
            self._tables = Tables(plan.dtype, plan.op, place.size)
        data = RowData(
            self.case,
            self._tables,
            plan.count,
            place,
            salt=plan.number,
            in_place=self.options.in_place,
        )
        return data, data.windows(self.engine.kind)

    def _slowest(self, block: Block) -> Any:
        times = block.left_ns - block.entered_ns
        slowest = np.empty_like(times)
        self.control.Allreduce(times, slowest, MPI.MAX)
        return slowest

    def _joint(self, wrong: list[Wrong]) -> tuple[int, list[Failure]]:
        """Wrong elements over all ranks, and the first of each rank that has any."""

        mine = sum(item.count for item in wrong)
        total = self.control.allreduce(mine)
        if not total:
            return 0, []
        first = Failure(self.comm.rank, hostname(), mine, wrong[0].text) if wrong else None
        found = [failure for failure in self.control.allgather(first) if failure is not None]
        return total, found[:_MOST_FAILURES]


def _rounded(nbytes: int) -> int:
    """To whole MiB (KiB if small), so that it prints short."""
    unit = 2**20 if nbytes >= 2**21 else 2**10
    return max(1, round(nbytes / unit)) * unit
