"""SIGUSR1: dump and go on. SIGTERM: dump, then end as before. Handlers of the user's stay what they are.

Python runs a signal's handler on the main thread, which may never come out of MPI. But the signal's number is written
to a pipe at once (``signal.set_wakeup_fd``), and the watchdog reads that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from hpccoll.recorder import dump, exceptions, ring
from hpccoll.recorder.job import known

__all__ = ["act", "listen"]

_DUMP_LIMIT_S = 1.0
_wake = -1
_previous: dict[int, Callable[[int, FrameType | None], Any] | None] = {}
"""Signal -> the user's handler that ours calls; None where there was none."""


def listen(wake: int) -> None:
    """Take the signals that nobody else wants, and have their numbers written to a pipe. On the main thread only."""
    global _wake
    _wake = wake
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGUSR1, signal.SIGTERM):
        if number not in _previous and _may_take(number):
            before = signal.getsignal(number)
            _previous[number] = before if callable(before) else None
            signal.signal(number, _handle)
    if _previous:
        _write_to(wake)


def _may_take(number: int) -> bool:
    before = signal.getsignal(number)
    if number == signal.SIGUSR1 and callable(before):
        return True  # ours calls it
    return before is signal.SIG_DFL and not _is_caught(number)


def _is_caught(number: int) -> bool:
    """Whether C code, faulthandler for one, has a handler that Python does not know."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return False
    mask = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(mask, 16) >> (number - 1) & 1)


def _write_to(wake: int) -> bool:
    """Whether the numbers of signals go to our pipe; another one that is there already (asyncio's) keeps its place."""
    before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    if before not in (-1, wake):
        signal.set_wakeup_fd(before, warn_on_full_buffer=False)
        return False
    return before == wake


def _handle(number: int, frame: FrameType | None) -> None:
    if not _write_to(_wake):  # the pipe has not got it
        with contextlib.suppress(BlockingIOError):
            os.write(_wake, bytes([number]))
    previous = _previous.get(number)
    if previous is not None:
        previous(number, frame)


def act(received: bytes) -> None:
    """Do what the signals ask for whose numbers have been read from the pipe."""
    for number in {signal.SIGUSR1, signal.SIGTERM} & set(received):
        if signal.getsignal(number) is not _handle:
            continue  # the user has taken it since
        if number == signal.SIGUSR1:
            directory = dump.write("signal", "asked for by SIGUSR1; the program goes on")
            job = known()
            if directory is not None and job is not None:
                dump.say(f"hpccoll: rank {job.rank} of {job.size}: SIGUSR1: {dump.whereabouts(directory)}")
        elif number == signal.SIGTERM:
            _terminate()


def _terminate() -> None:
    """Dump if that is quick, and die of the signal as if nobody had caught it."""

    def write() -> None:
        if exceptions.held():
            time.sleep(_DUMP_LIMIT_S / 3)  # another rank may be about to write
            exceptions.write_held(unless_alone=True)
            return
        job, directory = known(), dump.write("terminated", "ended by SIGTERM", 128 + signal.SIGTERM)
        if job is not None and job.rank == 0 and directory is not None:
            dump.say(
                f"hpccoll: rank 0 of {job.size}: ended by SIGTERM (other ranks that are say nothing): "
                + dump.whereabouts(directory)
            )

    helper = threading.Thread(target=write, daemon=True)
    helper.start()
    helper.join(_DUMP_LIMIT_S)
    _default(signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(_DUMP_LIMIT_S)
    os._exit(128 + signal.SIGTERM)


def _default(number: int) -> None:
    """Restore a signal's own action; Python's call for that is for the main thread only."""
    import ctypes

    try:
        libc = ctypes.CDLL(None)
        libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
        libc.signal(number, None)
    except (OSError, AttributeError):
        pass


def _in_child() -> None:
    """A forked child has no watchdog: its signals do what they did before."""
    if not _previous:
        return
    signal.set_wakeup_fd(-1)
    for number, previous in _previous.items():
        if signal.getsignal(number) is _handle:
            signal.signal(number, previous or signal.SIG_DFL)
    _previous.clear()


if hasattr(os, "register_at_fork") and ring.RECORDING:
    os.register_at_fork(after_in_child=_in_child)
