"""A file that exists is whole: written aside, then renamed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import hpccoll.aside
from hpccoll.runs.store import RunError

__all__ = ["write_aside"]


def write_aside(path: Path, write: Callable[[Path], object]) -> None:
    """As :func:`hpccoll.aside.write_aside`.

    Raises
    ------
    RunError
        The file cannot be written.
    """
    try:
        hpccoll.aside.write_aside(path, write)
    except OSError as exc:
        raise RunError(f"cannot write {path}: {exc.strerror or exc}") from exc
