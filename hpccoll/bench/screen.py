"""The table and the progress bar on a terminal, by rich. Drawn when told to, never by a thread of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from hpccoll.bench.report import Column

__all__ = ["Screen"]

_LEFT = ("dtype", "op", "engine", "mode", "flags")


class Screen:
    """A table that grows.

    Parameters
    ----------
    columns
        Titles and units.
    total
        Number of steps for the progress bar; None for no bar.
    width
        Characters in a line of the terminal.
    """

    def __init__(
        self, columns: Sequence[Column], total: int | None, width: int | None = None, console: Any = None
    ) -> None:
        self._columns = columns
        self._table = Table(header_style="bold", box=SIMPLE_HEAD)
        for column in columns:
            justify: Any = "left" if column.title in _LEFT else "right"
            title = f"{column.title}\n{column.unit}" if column.unit else column.title
            self._table.add_column(title, justify=justify, no_wrap=column.title != "engine")
        self._notes: list[str] = []
        self._bar: Any = None
        if total is not None:
            parts = (
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*parts, auto_refresh=False)
            self._task = self._bar.add_task("", total=total)
        shown = Group(self._table, self._bar) if self._bar is not None else self._table
        self._live = Live(shown, console=console or Console(width=width), auto_refresh=False)

    def start(self) -> None:
        """Show the empty table."""
        self._live.start(refresh=True)

    def next(self, text: str) -> None:
        """Say what comes."""
        if self._bar is not None:
            self._bar.update(self._task, description=text)
            self._live.refresh()
            self._bar.advance(self._task)

    def row(self, cells: Sequence[str], rest: str = "") -> None:
        """Add a row; `rest`, if there is any, is why it has no figures."""
        titles = [column.title for column in self._columns]
        texts = list(cells)
        if rest:
            texts += [""] * (titles.index("median") - len(texts)) + ["skipped"]
            self._notes.append(f"# {' '.join(cells)}: {rest}")
        wrong = not rest and texts[-1] != "0"
        self._table.add_row(*texts, style="bold red" if wrong else "dim" if rest else None)

    def note(self, text: str) -> None:
        """Keep a line for below the table."""
        self._notes.append(text)

    def refresh(self) -> None:
        """Draw."""
        self._live.refresh()

    def stop(self) -> list[str]:
        """Draw the whole table a last time, without the bar; gives the notes."""
        self._live.vertical_overflow = "visible"
        self._live.update(self._table, refresh=True)
        self._live.stop()
        return self._notes
