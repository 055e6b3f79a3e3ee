"""How long an operation may take: ``hpccoll.timeout`` for a part of a thread, ``HPCCOLL_TIMEOUT_S`` for everything."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from hpccoll import settings
from hpccoll.errors import ArgumentError
from hpccoll.recorder import ring

__all__ = ["current", "in_force", "of_thread", "timeout"]

_DEFAULT_S = settings.TIMEOUT_S.get_or_default()
_of_thread: dict[int, list[float | None]] = {}
"""The limits that each thread is in, the innermost last."""

when_first: list[Callable[[], None]] = []
"""Called when a limit comes into force: starts the watchdog."""


@contextlib.contextmanager
def timeout(limit_s: float | None) -> Iterator[None]:
    """Let no operation that this thread starts inside take longer than a limit.

    The limit holds for each operation by itself, for both ways into hpccoll (`Comm` and ``torch.distributed``), and
    also for what is issued with ``blocking=False`` inside. The innermost ``timeout`` decides; it takes the place of
    ``HPCCOLL_TIMEOUT_S``. When an operation is over its limit, this process writes its flight recorder to the dump
    directory, says so in one line, and ends with status 76, with which the launcher ends the job; docs/hangs.md tells
    the rest.

    Parameters
    ----------
    limit_s : float or None
        Seconds, above 0; None for no limit inside.

    Raises
    ------
    ArgumentError
        The limit is none, or the recorder is off (``HPCCOLL_RECORDER=0``), without which nothing can be watched.
    """
    limit = None if limit_s is None else settings.seconds(limit_s, "timeout: `limit_s`")
    if limit is not None and not ring.RECORDING:
        raise ArgumentError(
            f"timeout: the watchdog needs the flight recorder; unset {settings.RECORDER.name}=0"
        )
    here = threading.get_ident()
    stack = _of_thread.setdefault(here, [])
    stack.append(limit)
    if limit is not None:
        for call in when_first:
            call()
    try:
        yield
    finally:
        stack.pop()
        if not stack:
            _of_thread.pop(here, None)


def of_thread(ident: int) -> float | None:
    """The limit of what a thread does now."""
    stack = _of_thread.get(ident)
    return stack[-1] if stack else _DEFAULT_S


def current() -> float | None:
    """The limit of what this thread does now."""
    return of_thread(threading.get_ident()) if _of_thread else _DEFAULT_S


def in_force() -> list[float]:
    """All limits that hold somewhere now."""
    found = [limit for stack in list(_of_thread.values()) for limit in stack[-1:]] + [_DEFAULT_S]
    return [limit for limit in found if limit is not None]
