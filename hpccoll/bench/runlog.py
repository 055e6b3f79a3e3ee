"""The records of a run: what each rank writes, or the writer of its node for it. Never inside a timed region.

A full disk, or a directory that was removed, is an error on that rank and no reason to stop: the lines that are lost
are counted, and `finish` says so.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.bench import histogram
from hpccoll.bench.case import Case
from hpccoll.bench.clock import AlignedClock
from hpccoll.bench.measuring import Measurement
from hpccoll.bench.options import Options, UsageError
from hpccoll.bench.planning import Plan
from hpccoll.environment import hostname
from hpccoll.records import (
    RecordWriter,
    make_end,
    make_event,
    make_manifest,
    make_run_dir,
    node_file,
    rank_file,
)

__all__ = ["RunLog"]


class RunLog:
    """Writes the lines of this rank. Every method is collective with ``--writers node``, and only then.

    Parameters
    ----------
    control, node
        mpi4py communicators of all ranks, and of the ranks of this host.

    Raises
    ------
    UsageError
        On every rank: the directory cannot be made.
    """

    def __init__(self, case: Case, options: Options, control: Any, node: Any) -> None:
        self._case, self._options, self._control, self._node = case, options, control, node
        self.rank: int = control.rank
        self.lost = 0
        self._lines = 0
        self._error: str | None = None
        self._writer: RecordWriter | None = None
        self._flags = ""
        self._shared = options.writers == "node"
        directory = problem = None
        if control.rank == 0:
            try:
                directory = make_run_dir(Path(str(options.log_dir)), case.name)
            except OSError as exc:
                problem = (
                    f"argument --log-dir: cannot make a directory in {options.log_dir}: {exc.strerror or exc}"
                )
        self.directory, problem = control.bcast((directory, problem))
        if problem:
            raise UsageError(problem)

    def open(self, versions: Mapping[str, str | None], git: Any, aligned: AlignedClock, flags: str) -> None:
        """Open the file and write the manifest. Collective."""
        self._flags = flags
        name = rank_file(self.rank)
        if self._shared:
            leaders = self._control.Split(0 if self._node.rank == 0 else MPI.UNDEFINED, self.rank)
            if leaders != MPI.COMM_NULL:
                name = node_file(leaders.rank)
                leaders.Free()
        if not self._shared or self._node.rank == 0:
            try:
                self._writer = RecordWriter(self.directory / name)
            except OSError as exc:
                self._complain(exc)
        run = self.directory.name
        self._write(
            [
                json.dumps(
                    make_manifest(
                        self._case.name,
                        run=run,
                        rank=self.rank,
                        size=self._control.size,
                        local_rank=self._node.rank,
                        versions=versions,
                        git=git,
                        clock=aligned.record(),
                        flags=flags,
                    )
                )
            ]
        )

    def row(self, plan: Plan, launch: int, measurements: list[Measurement], aligned: AlignedClock) -> None:
        """The lines of one row: its samples, what was skipped or wrong, and the clock. Collective."""
        lines: list[str] = []
        for found in measurements:
            prefix = {
                "rank": self.rank,
                "collective": self._case.name,
                "engine": found.engine,
                "nbytes": plan.nbytes,
                "count": plan.count,
                "dtype": plan.dtype.name if self._case.sized else None,
                "op": plan.op,
                "root": plan.root if self._case.takes_root else None,
                "in_place": (self._options.in_place or self._case.always_in_place)
                if self._case.sized
                else None,
                "mode": self._options.mode,
                "launch": launch,
            }
            if found.skipped is not None:
                lines.append(self._event("warning", "skipped", found.skipped, prefix))
                continue
            if self.keeps_samples(found):
                lines += self._samples(prefix, found)
            else:
                lines += self._histogram(prefix, found)
            if found.late_starts:
                text = f"{found.late_starts} late starts thrown away"
                lines.append(
                    self._event("info", "late_start", text, {**prefix, "late_starts": found.late_starts})
                )
            lines += [self._event("error", "wrong", wrong.text, prefix) for wrong in found.wrong]
        lines.append(json.dumps({"type": "clock", "rank": self.rank, **aligned.record()}))
        self._write(lines)

    def keeps_samples(self, found: Measurement) -> bool:
        """Whether every sample gets a line, or all of them one histogram; the same on every rank."""
        return len(found.times_us) * self._control.size <= self._options.max_samples

    def event(self, level: str, kind: str, text: str, values: Mapping[str, Any]) -> None:
        """Write an event of this rank. Collective."""
        self._write([self._event(level, kind, text, values)])

    def finish(self, status: str) -> tuple[int, list[int]]:
        """Write the last line and close; the lines lost on all ranks, and the first few ranks concerned. Collective."""
        self._write([json.dumps(make_end(self.rank, status=status, lines=self._lines))])
        if self._writer is not None:
            try:
                self._writer.close()
            except OSError as exc:
                self._complain(exc)
                self.lost += 1
        lost = self._control.allreduce(self.lost)
        if not lost:
            return 0, []
        ranks = self._control.allgather(self.rank if self.lost else None)
        return lost, [rank for rank in ranks if rank is not None]

    # ---- Lines

    def _event(self, level: str, kind: str, text: str, values: Mapping[str, Any]) -> str:
        shown = {name: value for name, value in values.items() if name != "rank"}
        return json.dumps(make_event(self.rank, level, kind, text, shown))

    def _samples(self, prefix: Mapping[str, Any], found: Measurement) -> Iterable[str]:
        assert found.block is not None
        head = json.dumps({"type": "sample", **prefix})[:-1]
        tail = f', "flags": {json.dumps(self._flags)}}}'
        values = zip(found.start_ns.tolist(), found.end_ns.tolist(), found.block.right.tolist(), strict=True)
        for number, (start, end, right) in enumerate(values):
            yield (
                f'{head}, "iteration": {number}, "calls": {found.batch}, "start_ns": {start}, "end_ns": {end}, '
                f'"verified": {"true" if right else "false"}{tail}'
            )

    def _histogram(self, prefix: Mapping[str, Any], found: Measurement) -> Iterable[str]:
        """One line on rank 0 for the samples of all ranks. Collective."""
        assert found.block is not None
        counts = histogram.count((found.block.left_ns - found.block.entered_ns) // found.batch)
        numbers = np.append(counts, np.count_nonzero(~found.block.right))
        total = np.zeros_like(numbers)
        self._control.Reduce(numbers, total, MPI.SUM, 0)
        if self.rank:
            return
        lower, upper = histogram.bounds()
        used = np.flatnonzero(total[:-1])
        yield json.dumps(
            {
                "type": "histogram",
                **prefix,
                "ranks": self._control.size,
                "calls": found.batch,
                "samples": int(total[:-1].sum()),
                "relative_error": histogram.RELATIVE_ERROR,
                "lower_ns": lower[used].tolist(),
                "upper_ns": upper[used].tolist(),
                "counts": total[used].tolist(),
                "wrong": int(total[-1]),
                "flags": self._flags,
            }
        )

    # ---- Writing

    def _write(self, lines: list[str]) -> None:
        self._lines += len(lines)
        if not self._shared:
            self._put(lines)
            return
        gathered = self._node.gather(lines)
        if gathered is not None:
            for its in gathered:
                self._put(its)

    def _put(self, lines: list[str]) -> None:
        done = 0
        try:
            if self._writer is not None:
                for line in lines:
                    self._writer.write_line(line)
                    done += 1
                self._writer.check()
        except OSError as exc:
            self._complain(exc)
            if done == len(lines):  # they are in a file that nobody will find
                done = 0
        self.lost += len(lines) - done

    def _complain(self, exc: OSError) -> None:
        """Say it once, on this rank."""
        if self._error is None:
            self._error = str(exc)
            where = self._writer.path if self._writer is not None else self.directory
            print(
                f"hpccoll {self._case.name}: error: rank {self.rank} ({hostname()}) cannot write its records to "
                f"{where}: {exc.strerror or exc}; the benchmark goes on",
                file=sys.stderr,
                flush=True,
            )
