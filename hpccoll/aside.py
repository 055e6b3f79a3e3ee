"""A document is written aside and renamed, so that a file that exists is whole."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["write_aside"]


def write_aside(path: Path, fill: Callable[[Path], object]) -> None:
    """Let `fill` write a file beside `path`, and put it in its place.

    A symbolic link is followed. What is no regular file (a device, a pipe) is written into and never replaced.

    Raises
    ------
    OSError
        The file cannot be written; what was there before is untouched.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        fill(path)
        return
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(descriptor)
    aside = Path(name)
    try:
        fill(aside)
        mask = os.umask(0)
        os.umask(mask)
        aside.chmod(0o666 & ~mask)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
