"""An uncaught exception, in any thread: this rank's dump, with the traceback, before whatever else is done about it."""

from __future__ import annotations

import re
import sys
import threading
import traceback
from types import TracebackType
from typing import Any

from hpccoll.recorder import dump, ring
from hpccoll.recorder.job import Job, known
from hpccoll.recorder.sites import short_path

__all__ = ["held", "install", "note", "remember", "write_held"]

_PLACE = re.compile(r'^(\s*File ")([^"\n]+)(?=", line )', re.MULTILINE)

_installed = False
_last: BaseException | None = None
_held: tuple[str, str, str] | None = None


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
    """Dump for an exception that nobody has caught; the second hook that comes with the same one changes nothing.

    Before the first operation there is nothing to lay beside other ranks' operations: a typing error leaves no files.
    What would have been written is held, for the case that other ranks do write theirs.
    """
    global _last, _held
    job = known()
    if error is None or error is _last or isinstance(error, SystemExit) or job is None or job.size < 2:
        return
    _last = error
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    message = " ".join(f"{type(error).__name__}: {error}".split())
    text = _PLACE.sub(lambda match: match[1] + short_path(match[2]), text)
    reason, message = getattr(error, "_hpccoll_reason", ("exception", message))
    if reason == "exception" and not _has_communicated():
        _held = reason, message, text
        return
    directory = dump.write(reason, message, exception=text)
    if directory is not None:
        dump.say(f"hpccoll: rank {job.rank} of {job.size}: {reason}: {dump.whereabouts(directory)}")


def held() -> bool:
    """Whether `note` has held a dump back, and the program has not gone on to communicate."""
    return _held is not None and not _has_communicated()


def write_held(unless_alone: bool = False) -> bool:
    """Write the dump that `note` has held back; whether there is one.

    Parameters
    ----------
    unless_alone
        Write it only where the directory is there already: another rank has written.
    """
    job = known()
    if _held is None or not held():
        return False
    if job is not None and (not unless_alone or job.directory.is_dir()):
        reason, message, text = _held
        dump.write(reason, message, exception=text)
    return True


def _has_communicated() -> bool:
    """Whether there has been any operation besides the making of the world."""
    entries, dropped = ring.snapshot()
    return dropped > 0 or any(entry[ring.METHOD] not in ("world", ring.ENDING) for entry in entries)
