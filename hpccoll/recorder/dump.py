"""The dump: everything that the recorder knows, as one JSON document per rank (schema ``hpccoll.dump/1``)."""

from __future__ import annotations

import json
import linecache
import math
import operator
import os
import shlex
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from hpccoll._version import __version__
from hpccoll.aside import write_aside
from hpccoll.environment import detect
from hpccoll.recorder import places, ring, seam, sites
from hpccoll.recorder.job import Job, known
from hpccoll.recorder.places import folded

__all__ = ["SCHEMA", "file_of", "say", "whereabouts", "write"]

SCHEMA = "hpccoll.dump/1"

_WEIGHT = {"signal": 0, "terminated": 1, "peer": 2, "exit": 2, "exception": 3, "check": 3, "timeout": 3}
"""A dump replaces an earlier one of the same rank that weighs no more."""

hidden_threads: set[int] = set()
"""Threads of the recorder's own, which are left out."""

_lock = threading.Lock()
_written: str | None = None
_STARTED_S = time.time()


def file_of(rank: int) -> str:
    """Name of a rank's dump."""
    return f"rank{rank:06d}.json"


def write(
    reason: str, message: str, exit_status: int | None = None, exception: str | None = None
) -> Path | None:
    """Write this rank's dump.

    Parameters
    ----------
    reason : {"timeout", "exception", "check", "signal", "terminated", "exit", "peer"}
    message : str
        One line for people.
    exit_status : int, optional
        With which the process ends now; None if it goes on, or if that is not known.
    exception : str, optional
        A traceback.

    Returns
    -------
    The directory; None where there is no job, the recorder is off, a weightier dump of this rank is there, or the
    file cannot be written (which standard error says)
    """
    global _written
    job = known()
    if job is None or not ring.RECORDING:
        return None
    with _lock:
        if _written is not None and _WEIGHT[reason] < _WEIGHT[_written]:
            return None
        document = _document(job, reason, message, exit_status, exception)
        try:
            job.directory.mkdir(parents=True, exist_ok=True)
            text = json.dumps(document, indent=1, allow_nan=False) + "\n"
            write_aside(
                job.directory / file_of(job.rank), lambda path: path.write_text(text, encoding="utf-8")
            )
        except OSError as error:
            say(f"hpccoll: rank {job.rank} cannot write its dump to {job.directory}: {error}")
            return None
        _written = reason
        return job.directory


def whereabouts(directory: Path) -> str:
    """Where the dumps are, and the command that reads them, as one pastes it into a shell."""
    return f"recorder and stacks are in {directory}: python -m hpccoll.diagnose {shlex.quote(str(directory))}"


def say(line: str) -> None:
    """A line to standard error in one piece, whatever other threads and ranks write."""
    try:
        os.write(2, (line + "\n").encode(errors="backslashreplace"))
    except OSError:
        pass


def _document(
    job: Job, reason: str, message: str, exit_status: int | None, exception: str | None
) -> dict[str, Any]:
    entries, dropped = ring.snapshot()
    entries = [entry for entry in entries if entry[ring.METHOD] != ring.ENDING]
    offset_ns = time.time_ns() - ring.now_ns()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    launch = detect()
    torch: Any = sys.modules.get("torch")
    return {
        "schema": SCHEMA,
        "run": job.run,
        "rank": job.rank,
        "size": job.size,
        "local_rank": None if launch is None else launch.local_rank,
        "host": places.own()[0],
        "pid": job.pid,
        "hosts": dict(job.hosts),
        "neighbours": places.states_of(job.neighbours),
        "job": _batch_job(),
        "reason": reason,
        "message": message,
        "exit_status": exit_status,
        "written_s": time.time(),
        "started_s": _STARTED_S,
        "argv": list(sys.argv),
        "versions": {
            "hpccoll": __version__,
            "python": ".".join(map(str, sys.version_info[:3])),
            "mpi": job.mpi,
            "torch": getattr(torch, "__version__", None) and str(torch.__version__),
        },
        "communicators": _communicators(entries),
        "operations": operations(entries, offset_ns, names),
        "dropped": dropped,
        "stacks": stacks(names),
        "exception": exception,
    }


def _batch_job() -> str | None:
    from hpccoll.records.lines import job_id

    batch = job_id()
    return None if batch is None else batch["id"]


def _communicators(entries: list[list[Any]]) -> list[dict[str, Any]]:
    logs = {
        id(log): log
        for log in [*ring.logs(), *(entry[ring.LOG] for entry in entries)]
        if log.id != ring.ENDING
    }
    unfinished: dict[int, int] = {}
    for entry in entries:
        if (
            entry[ring.KIND] is ring.COLLECTIVE
            and entry[ring.STARTED]
            and (not entry[ring.ENDED] or entry[ring.FAILED])
        ):
            unfinished[id(entry[ring.LOG])] = max(unfinished.get(id(entry[ring.LOG]), 0), entry[ring.SEQ])
    waiting: dict[int, int] = {}
    for entry in entries:
        if entry[ring.KIND] is ring.COLLECTIVE and not entry[ring.STARTED] and not entry[ring.ENDED]:
            waiting[id(entry[ring.LOG])] = waiting.get(id(entry[ring.LOG]), 0) + 1
    return [
        {
            "id": log.id,
            "name": log.name,
            "rank": log.rank,
            "ranks": folded(log.ranks),
            "size": log.size,
            "issued": log.started + waiting.get(key, 0),
            "completed": log.started - (unfinished.get(key) == log.started),
            "freed": log.freed,
        }
        for key, log in sorted(logs.items(), key=lambda item: item[1].id)
    ]


def operations(
    entries: list[list[Any]], offset_ns: int, names: dict[int | None, str]
) -> list[dict[str, Any]]:
    """The entries in words. What has not begun gets the number that it would have if nothing came between."""
    waiting: dict[int, int] = {}
    found = []
    for entry in entries:
        log = entry[ring.LOG]
        number = entry[ring.SEQ]
        if not entry[ring.STARTED] and not entry[ring.ENDED]:
            waiting[id(log)] = waiting.get(id(log), 0) + 1
            number = log.started + waiting[id(log)]
        found.append(_operation(entry, number, offset_ns, names))
    return found


def _operation(entry: list[Any], number: int, offset_ns: int, names: dict[int | None, str]) -> dict[str, Any]:
    log, method = entry[ring.LOG], entry[ring.METHOD]
    options = seam.OPTIONS.get(method, ())
    detail = entry[ring.DETAIL] if len(options) > 1 else (entry[ring.DETAIL],)
    given = dict(zip(options, detail, strict=False))
    dtype, count, nbytes = _size(entry[ring.DTYPE], entry[ring.SHAPE])
    site, function = seam.site(entry)
    operation: dict[str, Any] = {
        "comm": log.id,
        "seq": number,
        "kind": entry[ring.KIND],
        "method": method,
        "dtype": dtype,
        "shape": _lengths(entry[ring.SHAPE]),
        "count": count,
        "nbytes": nbytes,
        "op": given.get("op"),
        "root": given.get("root"),
        "dest": given.get("dest"),
        "source": "any" if "source" in given and given["source"] is None else given.get("source"),
        "tag": "any" if "tag" in given and given["tag"] is None else given.get("tag"),
        "site": site,
        "function": function,
        "issued_s": _unix(entry[ring.ISSUED], offset_ns),
        "started_s": _unix(entry[ring.STARTED], offset_ns),
        "ended_s": _unix(entry[ring.ENDED], offset_ns),
        "state": _state(entry),
        "blocking": bool(entry[ring.BLOCKING]),
        "thread": names.get(entry[ring.THREAD], f"ended thread {entry[ring.THREAD]}"),
    }
    if given.get("counts") is not None:
        operation["uneven"] = True
    if method in log.names:
        operation["called_as"] = log.names[method]
    return {key: _plain(value) for key, value in operation.items()}


def _plain(value: Any) -> Any:
    """A value that JSON has: what stands for an integer as one, what else there may be as text."""
    if value is None or isinstance(value, (bool, int, float, str, list)):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return str(value)


def _size(dtype: Any, shape: Any) -> tuple[str | None, int | None, int | None]:
    if dtype is None or shape is None:
        return None, None, None
    if isinstance(shape, int):  # the number of elements, where asking for the shape would take too long
        shape = (shape,)
    name = dtype.__name__ if isinstance(dtype, type) else str(dtype).removeprefix("torch.")
    count = math.prod(int(length) for length in shape)
    itemsize = None if isinstance(dtype, type) else getattr(dtype, "itemsize", None)
    return name, count, None if itemsize is None else count * int(itemsize)


def _lengths(shape: Any) -> list[int] | None:
    return None if shape is None or isinstance(shape, int) else [int(length) for length in shape]


def _state(entry: list[Any]) -> str:
    if entry[ring.FAILED]:
        return "failed"
    if entry[ring.ENDED]:
        return "done"
    return "running" if entry[ring.STARTED] else "issued"


def _unix(time_ns: int, offset_ns: int) -> float | None:
    return (time_ns + offset_ns) / 1e9 if time_ns else None


def stacks(names: dict[int | None, str]) -> list[dict[str, Any]]:
    """The Python stacks of all threads, innermost frame last."""
    found = []
    for ident, frame in sys._current_frames().items():
        if ident in hidden_threads:
            continue
        frames = [
            {
                "file": sites.short_path(inner.f_code.co_filename),
                "line": line,
                "function": getattr(inner.f_code, "co_qualname", inner.f_code.co_name),
                "text": linecache.getline(inner.f_code.co_filename, line).strip(),
            }
            for inner, line in traceback.walk_stack(frame)
        ]
        found.append({"thread": names.get(ident, f"thread {ident}"), "frames": frames[::-1]})
    return sorted(found, key=lambda stack: stack["thread"] != "MainThread")
