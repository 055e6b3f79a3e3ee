"""The table on standard output."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from hpccoll.aside import write_aside
from hpccoll.bench.case import Case
from hpccoll.bench.results import Header, Row

__all__ = ["Column", "Printer", "Report", "columns_of", "conditions", "terminal_width"]

_INDEPENDENT = ("bytes", "count", "dtype", "op", "root", "engine", "mode")


class Column(NamedTuple):
    """A column of the table."""

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


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:.1f}"


def _samples(row: Row) -> str:
    return str(row.iterations) if row.batch == 1 else f"{row.iterations}x{row.batch}"


def _marks(row: Row) -> str:
    return "".join(flag[0].upper() for flag in row.flags.split(",") if flag) or "-"


def columns_of(case: Case, *, engines: Sequence[str], wide: bool) -> list[Column]:
    """The columns that mean something for `case`; several engines have their names and ratios."""
    several = len(engines) > 1
    columns = []
    if case.sized:
        columns += [
            Column("bytes", "", 12, lambda row: str(row.nbytes)),
            Column("count", "", 12, lambda row: str(row.count)),
            Column("dtype", "", 13, lambda row: str(row.dtype)),
        ]
    if case.takes_op:
        columns.append(Column("op", "", 5, lambda row: str(row.op)))
    if case.takes_root:
        columns.append(Column("root", "", 5, lambda row: str(row.root)))
    if several:
        columns.append(Column("engine", "", max(map(len, engines)) + 1, lambda row: row.engine))
    columns += [
        Column("mode", "", 9, lambda row: row.mode),
        Column("iters", "", 8, _samples),
        Column("median", "us", 10, lambda row: _time(row.time_us)),
        Column("ci95", "+-%", 6, lambda row: _percent(row.ci_half_width)),
        Column("min", "us", 10, lambda row: _time(row.time_min_us)),
        Column("p95", "us", 10, lambda row: _time(row.time_p95_us)),
        Column("p99", "us", 10, lambda row: _time(row.time_p99_us)),
        Column("max", "us", 10, lambda row: _time(row.time_max_us)),
        Column("cv", "%", 6, lambda row: _percent(row.cv)),
        Column("ratio", "", 7, lambda row: "n/a" if row.ratio is None else f"{row.ratio:.3f}"),
    ]
    if case.sized:
        columns += [
            Column("algbw", "GB/s", 9, lambda row: _number(row.algbw_gb_per_s)),
            Column("busbw", "GB/s", 9, lambda row: _number(row.busbw_gb_per_s)),
        ]
    columns += [Column("flags", "", 5, _marks), Column("wrong", "", 7, lambda row: str(row.wrong))]
    hidden = (set() if wide else {"p95", "p99", "cv"}) | (set() if several else {"ratio"})
    return [column for column in columns if column.title not in hidden]


def terminal_width() -> int | None:
    """Characters in a line of the terminal on which what this process prints ends; None if it ends elsewhere.

    Open MPI gives each rank a terminal of its own, whose output mpirun then passes on to wherever. So the first process
    above us with another standard output decides: that is mpirun, or what started a wrapper of ours.
    """
    try:
        if not sys.stdout.isatty():
            return None
        process, output = os.getpid(), os.readlink("/proc/self/fd/1")
        if "OMPI_COMM_WORLD_RANK" in os.environ or "PMIX_RANK" in os.environ:
            own = output
            while output == own:
                process = _parent(process)
                output = os.readlink(f"/proc/{process}/fd/1")
            if not output.startswith(("/dev/pts/", "/dev/tty")):
                return None
        descriptor = os.open(f"/proc/{process}/fd/1", os.O_RDONLY | os.O_NOCTTY)
    except (OSError, ValueError, AttributeError):
        return None
    try:
        return os.get_terminal_size(descriptor).columns or 80
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _parent(process: int) -> int:
    with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
        return int(file.read().rpartition(")")[2].split()[1])


_GIVEN_UP_FIRST = ("cv", "p99", "p95", "count", "mode", "max", "min", "flags", "iters", "op", "algbw")


def _fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """The columns for which there is room; what the header tells as well goes first."""
    kept = list(columns)
    for title in _GIVEN_UP_FIRST:
        if sum(column.width + 1 for column in kept) <= width:
            break
        kept = [column for column in kept if column.title != title]
    return kept


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
        """Write a document to the file `target`, or to standard output for ``-``."""
        if target == "-":
            Printer(sys.stdout).line(text.rstrip("\n"))
        else:
            write_aside(Path(target), lambda aside: aside.write_text(text, encoding="utf-8"))


class Report(Printer):
    """Prints header, rows and result; on rank 0 only.

    On a terminal, and with rich installed, rows fill a table that is drawn between the rows only: a thread that
    redraws it would disturb the timed calls. Otherwise every row is a line.

    Parameters
    ----------
    case
        Decides on the columns.
    total
        Number of steps to come.
    progress
        Whether a progress bar is wanted on a terminal.
    to_stderr
        Standard output is taken by a document.
    engines
        Their names; several have columns of their own.
    wide
        Whether there are more columns.
    """

    def __init__(
        self,
        case: Case,
        total: int,
        *,
        progress: bool,
        to_stderr: bool,
        engines: Sequence[str] = (),
        wide: bool = False,
    ) -> None:
        super().__init__(sys.stderr if to_stderr else sys.stdout)
        self._columns = columns_of(case, engines=engines, wide=wide)
        self._screen: Any = None
        self._left_out: list[str] = []
        width = None if to_stderr else terminal_width()
        if width is not None:
            fitting = _fitting(self._columns, width)
            self._left_out = [column.title for column in self._columns if column not in fitting]
            self._columns = fitting
            if importlib.util.find_spec("rich") is not None:
                from hpccoll.bench.screen import Screen

                self._screen = Screen(self._columns, total if progress else None, width=width)

    def header(self, header: Header, missing: Mapping[str, str] | None = None) -> None:
        """Print the conditions of the run, why engines are `missing`, and the column titles."""
        for text in conditions(header):
            self.line(text)
        for name, reason in (missing or {}).items():
            self.line(f"# engine {name} is not available: {reason}")
        self.line(
            "# times: per call the slowest rank; of these the median, its 95 % interval, least and most"
        )
        self.line("# 1 GB/s = 1e9 bytes/s; flags: O oversubscribed, U unbound, M mixed hosts")
        if self._left_out:
            self.line(f"# too narrow a terminal for {', '.join(self._left_out)}; --csv FILE has them all")
        if self._screen is not None:
            self._screen.start()
            return
        self.line("#" + "".join(f"{column.title:>{column.width}} " for column in self._columns)[1:].rstrip())
        self.line("#" + "".join(f"{column.unit:>{column.width}} " for column in self._columns)[1:].rstrip())

    def next(self, text: str) -> None:
        """Say what is being measured, where there is a bar to say it in."""
        if self._screen is not None:
            self._screen.next(text)

    def rows(self, rows: Sequence[Row]) -> None:
        """Print the rows of one size, and what was wrong in them."""
        for row in rows:
            if row.skipped:
                shown = [column for column in self._columns if column.title in _INDEPENDENT]
                self._row([column.text(row) for column in shown], f"skipped: {row.skipped}")
            else:
                self._row([column.text(row) for column in self._columns])
            for failure in row.failures:
                self._note(f"# WRONG on rank {failure.rank} ({failure.host}): {failure.text}")
        if self._screen is not None:
            self._screen.refresh()

    def _row(self, cells: Sequence[str], rest: str = "") -> None:
        if self._screen is not None:
            self._screen.row(cells, rest)
            return
        padded = "".join(
            f"{cell:>{column.width}} " for cell, column in zip(cells, self._columns, strict=False)
        )
        self.line((padded + rest).rstrip())

    def _note(self, text: str) -> None:
        if self._screen is not None:
            self._screen.note(text)
        else:
            self.line(text)

    def close(self) -> None:
        """End the table on a terminal; what comes then are lines again."""
        if self._screen is not None:
            screen, self._screen = self._screen, None
            for note in screen.stop():
                self.line(note)


def conditions(header: Header) -> list[str]:
    """The header as comment lines."""
    hosts, names = len(header.hosts), _few(header.hosts)
    torch = f", torch {header.torch}" if header.torch else ""
    usable = _spread(header.usable_cores_per_host)
    lines = [
        f"# hpccoll {header.hpccoll} {header.collective}, engine {header.engine}, mode {header.mode}",
        f"# {header.mpi.partition(',')[0]}",  # not who built it where
        f"# mpi4py {header.mpi4py}, Python {header.python}, numpy {header.numpy}{torch}",
        f"# ranks {header.ranks} on {hosts} host{'s' * (hosts > 1)} ({_spread(header.ranks_per_host)} a host): {names}",
        f"# cores {_spread(header.cores_per_host)} a host, usable {usable};"
        f" oversubscribed {_yes(header.oversubscribed)}, unbound {_yes(header.unbound)}",
        f"# hosts mixed {_yes(header.mixed_hosts)}; clock resolution {header.clock_resolution_ns} ns",
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
