"""Tables for the terminal, by rich; in plain text where rich is missing or the output is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Table", "number", "print_table", "progress_bar"]

Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""Title, column titles, rows."""

_LEFT = (
    "collective",
    "engine",
    "host",
    "kind",
    "level",
    "name",
    "first",
    "on ranks",
    "dtype",
    "op",
    "flags",
    "verdict",
)


def number(value: float | None, form: str = ".4g") -> str:
    """A number, or ``n/a``."""
    return "n/a" if value is None else format(value, form)


def print_table(table: Table) -> None:
    """Print one table."""
    title, titles, rows = table
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.table import Table as RichTable
        except ImportError:
            pass
        else:
            shown = RichTable(title=title, title_justify="left", header_style="bold")
            for name in titles:
                shown.add_column(name, justify="left" if name in _LEFT else "right")
            for row in rows:
                shown.add_row(*row)
            Console().print(shown)
            return
    widths = [max(len(row[i]) for row in (titles, *rows)) for i in range(len(titles))]
    print(f"\n# {title}")
    for row in (titles, *rows):
        cells = [
            text.ljust(width) if name in _LEFT else text.rjust(width)
            for text, width, name in zip(row, widths, titles, strict=True)
        ]
        print("  ".join(cells).rstrip())


def progress_bar(text: str) -> tuple[Callable[[int, int], None], Callable[[], None]]:
    """What to call with done and total, and at the end; both do nothing where standard error is no terminal."""
    if not sys.stderr.isatty():
        return (lambda done, total: None), (lambda: None)
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        return (lambda done, total: None), (lambda: None)
    bar: Any = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task(text, total=None)
    bar.start()
    return (lambda done, total: bar.update(task, completed=done, total=total)), bar.stop
