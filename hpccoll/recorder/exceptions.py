"""An uncaught exception, in any thread: this rank's dump, with the traceback, before whatever else is done about it."""

from __future__ import annotations

import sys
import threading
import traceback
from types import TracebackType
from typing import Any

from hpccoll.recorder import dump
from hpccoll.recorder.job import Job, known

__all__ = ["install", "note", "remember"]

_installed = False
_last: BaseException | None = None


def install(job: Job) -> None:
    """Call `note` before the hooks that are there; only in a job of several ranks."""
    global _installed
    if _installed or job.size < 2:
        return
    _installed = True
    main_hook, thread_hook = sys.excepthook, threading.excepthook

    def on_main(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        note(error)
        main_hook(kind, error, trace)

    def on_thread(args: Any) -> None:
        note(args.exc_value)
        thread_hook(args)

    sys.excepthook = on_main
    threading.excepthook = on_thread


def remember(error: BaseException, reason: str, message: str) -> None:
    """Say what stands behind an exception, for the case that nobody catches it: a timeout, a failed check."""
    error._hpccoll_reason = reason, message  # type: ignore[attr-defined]


def note(error: BaseException | None) -> None:
    """Dump for an exception that nobody has caught; the second hook that comes with the same one changes nothing."""
    global _last
    job = known()
    if error is None or error is _last or isinstance(error, SystemExit) or job is None or job.size < 2:
        return
    _last = error
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    message = " ".join(f"{type(error).__name__}: {error}".split())
    reason, message = getattr(error, "_hpccoll_reason", ("exception", message))
    directory = dump.write(reason, message, exception=text)
    if directory is not None:
        dump.say(f"hpccoll: rank {job.rank} of {job.size}: {reason}: recorder and stacks are in {directory}")
