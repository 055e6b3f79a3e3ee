"""Ranks that tell one another through files in the dump directory that it is time to dump.

Only that way is open when MPI is stuck. A directory that not all ranks share still brings the dumps of those that do.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from hpccoll.aside import write_aside
from hpccoll.recorder.dump import file_of
from hpccoll.recorder.job import Job

__all__ = ["Peers"]

REQUEST = "dump.request"

_GRACE_S = 3.0
_PAUSE_S = 0.1
_FRESH_S = 5.0
_RANKS_PER_SECOND = 2000
"""How many ranks may look at the directory in a second, together: it is often on a file system that many share."""


class Peers:
    """The other ranks of the job."""

    def __init__(self, job: Job):
        self.job = job
        self._request = job.directory / REQUEST
        self._seen: tuple[int, int] | None = None
        self._next_look = 0.0

    def _mark(self) -> tuple[int, int] | None:
        try:
            status = self._request.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino

    def ask(self, reason: str, message: str) -> None:
        """Ask the other ranks for their dumps, unless one of them has just done so."""
        if self._is_fresh():
            self._seen = self._mark()
            return
        request = {
            "run": self.job.run,
            "rank": self.job.rank,
            "reason": reason,
            "message": message,
            "time_s": time.time(),
        }
        text = json.dumps(request) + "\n"
        try:
            self.job.directory.mkdir(parents=True, exist_ok=True)
            write_aside(self._request, lambda path: path.write_text(text, encoding="utf-8"))
        except OSError:
            pass  # the dump has said so
        self._seen = self._mark()

    def _is_fresh(self) -> bool:
        request = self._read()
        return request is not None and 0 <= time.time() - request["time_s"] < _FRESH_S

    def _read(self) -> dict[str, Any] | None:
        """The request of a rank of this run."""
        try:
            request = json.loads(self._request.read_text(encoding="utf-8"))
            return (
                request
                if request["run"] == self.job.run and {"rank", "message", "time_s"} <= set(request)
                else None
            )
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def asked(self) -> str | None:
        """What another rank asks for a dump with; None if none has asked since the last time."""
        now = time.monotonic()
        if now < self._next_look:
            return None
        self._next_look = now + self.job.size / _RANKS_PER_SECOND
        mark = self._mark()
        if mark is None or mark == self._seen:
            return None
        self._seen = mark
        request = self._read()
        return None if request is None or request["rank"] == self.job.rank else str(request["message"])

    def await_dumps(self) -> None:
        """Wait until every rank has written its dump, but not for long."""
        missing = set(range(self.job.size))
        deadline = time.monotonic() + _GRACE_S
        while True:
            missing = {rank for rank in missing if not self._has_dumped(rank)}
            if not missing or time.monotonic() > deadline:
                return
            time.sleep(_PAUSE_S + len(missing) / _RANKS_PER_SECOND)

    def _has_dumped(self, rank: int) -> bool:
        try:
            with Path(self.job.directory, file_of(rank)).open(encoding="utf-8") as file:
                return f'"run": "{self.job.run}"' in file.read(200)
        except (OSError, ValueError):
            return False
