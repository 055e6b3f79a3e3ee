"""The table on standard output, and the progress bar on a terminal."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from hpccoll.bench.case import Case
from hpccoll.bench.results import Header, Row, write_json

__all__ = ["Printer", "Report", "conditions", "on_terminal"]


_INDEPENDENT = ("bytes", "count", "dtype", "op", "root")


class _Column(NamedTuple):
    title: str
    unit: str
    width: int
    text: Callable[[Row], str]


def _number(value: float | None) -> str:
    if value is None:
        return "n/a"
    return f"{value:#.3g}" if value < 100 else f"{value:.1f}"


def _time(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}" if value < 1000 else f"{value:.1f}"


def _columns(case: Case) -> list[_Column]:
    columns = []
    if case.sized:
        columns += [
            _Column("bytes", "", 12, lambda row: str(row.nbytes)),
            _Column("count", "", 12, lambda row: str(row.count)),
            _Column("dtype", "", 13, lambda row: str(row.dtype)),
        ]
    if case.takes_op:
        columns.append(_Column("op", "", 5, lambda row: str(row.op)))
    if case.takes_root:
        columns.append(_Column("root", "", 5, lambda row: str(row.root)))
    columns += [
        _Column("iters", "", 6, lambda row: str(row.iterations)),
        _Column("median", "us", 10, lambda row: _time(row.time_us)),
        _Column("min", "us", 10, lambda row: _time(row.time_min_us)),
        _Column("max", "us", 10, lambda row: _time(row.time_max_us)),
    ]
    if case.sized:
        columns += [
            _Column("algbw", "GB/s", 9, lambda row: _number(row.algbw_gb_per_s)),
            _Column("busbw", "GB/s", 9, lambda row: _number(row.busbw_gb_per_s)),
        ]
    return [*columns, _Column("wrong", "", 7, lambda row: str(row.wrong))]


def on_terminal() -> bool:
    """Whether what this process prints ends on a terminal.

    Open MPI gives each rank a terminal of its own, whose output mpirun then passes on to wherever: there the
    standard output of mpirun, the parent process, decides.
    """
    try:
        if not sys.stdout.isatty():
            return False
        if "OMPI_COMM_WORLD_RANK" in os.environ or "PMIX_RANK" in os.environ:
            return os.readlink(f"/proc/{os.getppid()}/fd/1").startswith(("/dev/pts/", "/dev/tty"))
    except (OSError, ValueError, AttributeError):
        return False
    return True


class Printer:
    """Prints lines until the reader goes away (``| head``), which is noted in `closed` and not raised."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.closed = False

    def line(self, text: str) -> None:
        """Print one line."""
        if self.closed:
            return
        try:
            self._print(text)
        except BrokenPipeError:
            self.closed = True
            # What is still in the stream's buffer would raise again when Python ends.
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def document(self, text: str, target: str) -> None:
        """Write a JSON document to the file `target`, or to standard output for ``-``."""
        if target == "-":
            Printer(sys.stdout).line(text.rstrip("\n"))
        else:
            write_json(Path(target), text)


class Report(Printer):
    """Prints header, rows and result; on rank 0 only.

    Parameters
    ----------
    case
        Decides on the columns.
    total
        Number of rows to come.
    progress
        Whether a progress bar is wanted; it is shown on a terminal if rich is installed.
    to_stderr
        Standard output is taken by the JSON document.
    """

    def __init__(self, case: Case, total: int, *, progress: bool, to_stderr: bool) -> None:
        super().__init__(sys.stderr if to_stderr else sys.stdout)
        self._columns = _columns(case)
        self._bar: Any = None
        if progress and not to_stderr and on_terminal() and importlib.util.find_spec("rich") is not None:
            self._bar = self._make_bar(total)

    @staticmethod
    def _make_bar(total: int) -> Any:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        parts = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        # Drawn between the rows only: a thread that redraws it would disturb the timed calls.
        bar = Progress(*parts, transient=True, auto_refresh=False)
        bar.add_task("", total=total)
        bar.start()
        return bar

    def _print(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            super()._print(text)

    def header(self, header: Header) -> None:
        """Print the conditions of the run and the column titles."""
        for text in conditions(header):
            self.line(text)
        self.line("# times: per call the slowest rank; of these median, least and most. 1 GB/s = 1e9 bytes/s")
        self.line("#" + "".join(f"{column.title:>{column.width}} " for column in self._columns)[1:].rstrip())
        self.line("#" + "".join(f"{column.unit:>{column.width}} " for column in self._columns)[1:].rstrip())

    def next(self, text: str) -> None:
        """Say what is being measured, where there is a bar to say it in."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], description=text, refresh=True)

    def row(self, row: Row) -> None:
        """Print a row, and what was wrong in it."""
        if row.skipped:
            shown = [column for column in self._columns if column.title in _INDEPENDENT]
            self.line("".join(f"{c.text(row):>{c.width}} " for c in shown) + f"skipped: {row.skipped}")
        else:
            self.line("".join(f"{c.text(row):>{c.width}} " for c in self._columns).rstrip())
        for failure in row.failures:
            self.line(f"# WRONG on rank {failure.rank} ({failure.host}): {failure.text}")
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0])

    def close(self) -> None:
        """Take the progress bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def conditions(header: Header) -> list[str]:
    """The header as comment lines."""
    hosts, names = len(header.hosts), _few(header.hosts)
    torch = f", torch {header.torch}" if header.torch else ""
    usable = _spread(header.usable_cores_per_host)
    lines = [
        f"# hpccoll {header.hpccoll} {header.collective}, engine {header.engine}, mode {header.mode}",
        f"# {header.mpi}",
        f"# mpi4py {header.mpi4py}, Python {header.python}, numpy {header.numpy}{torch}",
        f"# ranks {header.ranks} on {hosts} host{'s' * (hosts > 1)} ({_spread(header.ranks_per_host)} a host): {names}",
        f"# cores {_spread(header.cores_per_host)} a host, usable {usable};"
        f" oversubscribed {_yes(header.oversubscribed)}, unbound {_yes(header.unbound)}",
    ]
    if header.oversubscribed:
        lines.append("# more ranks than cores: this times the scheduler; the speeds are not meaningful")
    return lines


def _spread(values: list[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _yes(value: bool) -> str:
    return "yes" if value else "no"
