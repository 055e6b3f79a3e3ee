"""Where in the user's program an operation was called: the first frame outside hpccoll and torch."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import CodeType, FrameType

__all__ = ["GENERATED", "CALLERS", "add_inside", "describe", "inside", "is_inside", "outside", "short_path"]

GENERATED = "<hpccoll "

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
CALLERS = tuple(_PACKAGE + part + os.sep for part in ("comm", "torch_backend"))
"""What calls the methods of a communicator on somebody's behalf; hpccoll's programs do it on their own."""

_inside: tuple[str, ...] = (
    *CALLERS,
    *(_PACKAGE + part for part in ("recorder" + os.sep, "work.py", "leaving.py")),
    "<frozen ",
    GENERATED,
    threading.__file__,
)
# Asking a code object's file name again and again would cost more than this. The codes are kept, so that no other one
# gets the number of one that is gone.
_known: dict[int, CodeType] = {}


def add_inside(package_file: str) -> None:
    """Let the frames of a package, given by its ``__file__``, not count as the user's."""
    global _inside
    folder = str(Path(package_file).parent) + os.sep
    if folder not in _inside:
        _inside = (*_inside, folder)


def inside() -> tuple[str, ...]:
    """What the file names of code begin with that is not the user's."""
    return _inside


def is_inside(code: CodeType) -> bool:
    """Whether code is hpccoll's own or of a package that `add_inside` was given."""
    return code.co_filename.startswith(_inside)


def outside(frame: FrameType) -> FrameType:
    """The first frame from `frame` outwards that is the user's; `frame` itself where there is none."""
    found: FrameType | None = frame
    while found is not None:
        code = found.f_code
        if id(code) not in _known:
            if not is_inside(code):
                return found
            _known[id(code)] = code
        found = found.f_back
    return frame


def describe(code: CodeType, instruction: int) -> tuple[str, str]:
    """``file:line``, relative to the working directory if below it, and the function's name."""
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= instruction < end and number is not None:
            line = number
    return f"{short_path(code.co_filename)}:{line}", getattr(code, "co_qualname", code.co_name)


def short_path(path: str) -> str:
    """A path relative to the working directory if it is below it."""
    try:
        here = os.getcwd() + os.sep
    except OSError:  # it has been removed
        return path
    return path[len(here) :] if path.startswith(here) else path
