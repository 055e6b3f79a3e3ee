"""One run of a program on one rank: the sweep, the report, the records."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mpi4py import MPI

from hpccoll.bench.case import Case, Place
from hpccoll.bench.clock import AlignedClock
from hpccoll.bench.engines import Engine, make_engine
from hpccoll.bench.engines.composed import ComposedEngine
from hpccoll.bench.findings import Findings, find, read_model
from hpccoll.bench.gates import make_gate
from hpccoll.bench.guidelines import COMPOSITIONS
from hpccoll.bench.header import gather_header
from hpccoll.bench.measuring import Measurement, Measurer
from hpccoll.bench.options import Options, UsageError
from hpccoll.bench.planning import Plan, make_plans, memory_limit
from hpccoll.bench.report import Report
from hpccoll.bench.results import Header, Row, check_target, document, tidy
from hpccoll.bench.rows import complete_row, join_failures, set_ratios
from hpccoll.bench.runlog import RunLog
from hpccoll.bench.timing import garbage_collector_off
from hpccoll.comm import Comm
from hpccoll.units import format_bytes

__all__ = ["Session"]

_OK, _FAILED = 0, 1


class Session:
    """One run of a program on one rank.

    `control` carries the engine's own traffic (barriers, agreement on outcomes), apart from the communicator
    under test and not through the code under test.

    Parameters
    ----------
    git
        State of the source, for the records; from rank 0.
    """

    def __init__(self, case: Case, options: Options, comm: Comm, git: dict[str, Any] | None = None) -> None:
        self.case, self.options, self.comm, self._git = case, options, comm, git
        self.control: Any = comm.mpi.Dup()
        self.node: Any = self.control.Split_type(MPI.COMM_TYPE_SHARED)
        self.rows: list[Row] = []
        self._results: dict[int, list[list[Measurement]]] = {}
        self._log: RunLog | None = None
        self._opened: list[Engine] = []
        self._loss = ""

    # ---- The whole run

    def run(self) -> int:
        """Sweep, verify, report; returns the exit status. What rank 0 alone writes may fail there alone.

        Raises
        ------
        UsageError
            On every rank, before anything was measured.
        """
        try:
            status = self._run()
        except UsageError:
            self._close()
            raise
        self._close()
        return _OK if status in ("ok", "stopped") else _FAILED

    def _close(self) -> None:
        for engine in self._opened:
            engine.close()
        self.control.Barrier()
        self.node.Free()
        self.control.Free()

    def _run(self) -> str:
        options = self.options
        for option, target in (("--json", options.json), ("--csv", options.csv)):
            check_target(option, target, self.control)
        model = self._model()
        engines, missing = self._engines()
        kind = "torch" if any(engine.kind == "torch" for engine in engines) else "numpy"
        plans = list(make_plans(self.case, options, kind, self.comm.size))
        limit = memory_limit(options, self.control, self.node)
        header = gather_header(self.case.name, ", ".join(e.name for e in engines), options.mode, self.control)
        self._flags = self.control.bcast(None if header is None else header.flags)
        report = self._report(header, len(plans), engines, missing)
        self.aligned = AlignedClock(self.control)
        self._open_log(header, missing)
        status = self._sweep(plans, engines, limit, report)
        findings = Findings()
        if report is not None and header is not None:
            findings = find(self.case, options, header, self.rows, model)
            for line in findings.lines:
                report.line(f"# {line}")
        status = self._close_log(status, report)
        if report is not None and header is not None:
            status = self._write(report, header, status, findings)
        return status

    def _model(self) -> dict[str, Any] | None:
        """Read on rank 0; a file that is no good is an error on every rank."""
        model, problem = None, None
        if self.options.model is not None and self.control.rank == 0:
            try:
                model = read_model(self.case, Path(self.options.model))
            except UsageError as exc:
                problem = str(exc)
        problem = self.control.bcast(problem)
        if problem:
            raise UsageError(problem)
        return model

    def _engines(self) -> tuple[list[Engine], dict[str, str]]:
        """Those that can be had, with their compositions, and why others cannot. Collective."""
        engines: list[Engine] = []
        missing: dict[str, str] = {}
        for name in self.options.engines:
            engine = make_engine(name)
            reason = engine.open(self.comm, self.control)
            if reason is None:
                engines.append(engine)
            else:
                missing[name] = reason
        if not engines:
            reasons = "; ".join(f"{name} is not available: {reason}" for name, reason in missing.items())
            raise UsageError(f"argument --engine: {reasons}")
        self._opened = list(engines)
        if self.options.guidelines:
            engines += [ComposedEngine(engines[0], parts) for parts in COMPOSITIONS[self.case.name]]
        return engines, missing

    def _report(
        self, header: Header | None, rows: int, engines: Sequence[Engine], missing: dict[str, str]
    ) -> Report | None:
        if header is None:
            return None
        options = self.options
        report = Report(
            self.case,
            rows * options.launches,
            progress=options.progress,
            to_stderr="-" in (options.json, options.csv),
            engines=[engine.name for engine in engines],
            wide=options.wide,
        )
        report.header(header, missing)
        return report

    # ---- The sweep

    def _sweep(
        self, plans: Sequence[Plan], engines: Sequence[Engine], limit: int | None, report: Report | None
    ) -> str:
        options = self.options
        gate_name = "window" if options.mode == "window" else options.barrier
        gate = make_gate(
            gate_name, self.control, self.aligned, oversubscribed="oversubscribed" in self._flags
        )
        measurer = Measurer(self.case, options, engines, self.control, self.node, self.aligned, gate)
        status = "ok"
        try:
            with garbage_collector_off():
                for launch in range(options.launches):
                    if not self._launch(launch, plans, measurer, limit, report):
                        status = "stopped"
                        break
        finally:
            if report:
                report.close()
        return "wrong" if any(row.wrong for row in self.rows) else status

    def _launch(
        self, launch: int, plans: Sequence[Plan], measurer: Measurer, limit: int | None, report: Report | None
    ) -> bool:
        """One pass over all rows; False if the reader of the table went away."""
        last = launch == self.options.launches - 1
        order, comm = list(plans), self.comm
        if self.options.launches > 1:
            random.Random(launch).shuffle(order)  # alike on every rank
            comm = self.comm.dup()
        for plan in order:
            if report:
                report.next(f"{plan.nbytes} bytes")
            found = self._measure(plan, launch, comm, measurer, limit)
            self._results.setdefault(plan.number, []).append(found)
            if self.options.launches == 1:
                self._show(plan, report)
            if self._reader_gone(report):
                return False
        if comm is not self.comm:
            comm.free()
            if last:
                for plan in plans:
                    self._show(plan, report)
        return True

    def _reader_gone(self, report: Report | None) -> bool:
        kept = self.options.json or self.options.csv or self.options.log_dir
        gone: bool = self.control.bcast(report is not None and report.closed and kept is None)
        return gone

    def _measure(
        self, plan: Plan, launch: int, comm: Comm, measurer: Measurer, limit: int | None
    ) -> list[Measurement]:
        place = Place(comm.rank, comm.size, plan.root)
        need = measurer.needed_nbytes(plan, place)
        if self.case.sized and limit is not None and need > limit:
            text = f"needs {format_bytes(_rounded(need))} a rank, has {format_bytes(_rounded(limit))}"
            found = [Measurement(engine.name, skipped=text) for engine in measurer.engines]
        else:
            found = measurer.measure(plan, launch, comm, limit)
        if self._log is not None:
            self._log.row(plan, launch, found, self.aligned)
        return found

    def _show(self, plan: Plan, report: Report | None) -> None:
        """Make the rows of a plan, which all launches have measured, and print them. Collective."""
        case, options = self.case, self.options
        launches = self._results.pop(plan.number)
        row = Row(
            nbytes=plan.nbytes,
            count=plan.count,
            dtype=plan.dtype.name if case.sized else None,
            op=plan.op,
            root=plan.root if case.takes_root else None,
            in_place=(options.in_place or case.always_in_place) if case.sized else None,
            mode=options.mode,
            flags=self._flags,
        )
        engines = list(zip(*launches, strict=True))
        rows = [
            join_failures(
                complete_row(replace(row, engine=its[0].engine), case, its, self.comm.size), its, self.control
            )
            for its in engines
        ]
        rows = set_ratios(rows, engines)
        self.rows += rows
        if report:
            report.rows(rows)

    # ---- Records and documents

    def _open_log(self, header: Header | None, missing: dict[str, str]) -> None:
        if self.options.log_dir is None:
            return
        self._log = RunLog(self.case, self.options, self.control, self.node)
        names = ("numpy", "torch", "mpi4py", "mpi")
        versions = None if header is None else {name: getattr(header, name) for name in names}
        versions, git = self.control.bcast((versions, self._git))
        self._log.open(versions, git, self.aligned, self._flags)
        for name, reason in missing.items():
            self._log.event(
                "warning", "engine", f"engine {name} is not available: {reason}", {"engine": name}
            )

    def _close_log(self, status: str, report: Report | None) -> str:
        if self._log is None:
            return status
        lost, ranks = self._log.finish(status)
        if report is not None:
            report.line(f"# records are in {self._log.directory}")
        if lost:
            which = ", ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")
            self._loss = f"# FAILED: {lost} lines of records were lost, on rank {which}"
        return "unwritten" if lost and status in ("ok", "stopped") else status

    def _write(self, report: Report, header: Header, status: str, findings: Findings) -> str:
        """Print the verdict and write the documents; a full disk must not pass for success."""
        report.line(self._verdict())
        if self._loss:
            report.line(self._loss)
        documents: list[tuple[str | None, Callable[[], str]]] = [
            (self.options.json, partial(document, header, self.rows, status, findings.fields)),
            (self.options.csv, partial(tidy, header, self.rows)),
        ]
        for target, make in documents:
            if target is None:
                continue
            try:
                report.document(make(), target)
            except OSError as exc:
                print(f"hpccoll {self.case.name}: error: cannot write {target}: {exc}", file=sys.stderr)
                status = "unwritten"
        return status

    def _verdict(self) -> str:
        skipped = sum(row.skipped is not None for row in self.rows)
        left_out = f"; {skipped} rows skipped" if skipped else ""
        wrong = sum(row.wrong for row in self.rows)
        if wrong:
            return f"# FAILED: {wrong} wrong elements{left_out}"
        if skipped == len(self.rows):
            return "# nothing was measured or verified: every row was skipped"
        if any(row.batch > 1 for row in self.rows):
            return f"# the last result of every batch of calls verified on every rank{left_out}"
        return f"# every result of every call verified on every rank{left_out}"


def _rounded(nbytes: int) -> int:
    """To whole MiB (KiB if small), so that it prints short."""
    unit = 2**20 if nbytes >= 2**21 else 2**10
    return max(1, round(nbytes / unit)) * unit
