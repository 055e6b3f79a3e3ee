"""A file that exists is whole: written aside, then renamed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from hpccoll.runs.store import RunError

__all__ = ["write_aside"]


def write_aside(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file beside `path`, and rename it.

    Raises
    ------
    RunError
        The file cannot be written.
    """
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(descriptor)
    except OSError as exc:
        raise RunError(f"cannot write {path}: {exc.strerror or exc}") from exc
    aside = Path(name)
    try:
        write(aside)
        mask = os.umask(0)
        os.umask(mask)
        aside.chmod(0o666 & ~mask)
        aside.replace(path)
    except OSError as exc:
        raise RunError(f"cannot write {path}: {exc.strerror or exc}") from exc
    finally:
        aside.unlink(missing_ok=True)
