"""Record files: their names, and how they are written and read."""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpccoll.records.lines import job_id
from hpccoll.records.schema import problems_of

__all__ = [
    "Line",
    "RecordWriter",
    "make_run_dir",
    "node_file",
    "parse_line",
    "rank_file",
    "read_records",
    "record_files",
]


def rank_file(rank: int) -> str:
    """Name of the file of one rank."""
    return f"rank-{rank:05d}.jsonl"


def node_file(node: int) -> str:
    """Name of the file that one writer keeps for all ranks of a node; nodes count from 0."""
    return f"node-{node:05d}.jsonl"


def record_files(run_dir: Path) -> list[Path]:
    """The record files of a run, by name."""
    return sorted(path for path in run_dir.iterdir() if re.fullmatch(r"(rank|node)-\d{5,}\.jsonl", path.name))


def make_run_dir(parent: Path, program: str) -> Path:
    """Make a new directory for a run below `parent` and return its absolute path; one rank calls this.

    It is named after the program, the time (UTC) and the job, or the process where there is no job. Of two
    runs in one second the second gets a number as well.

    Raises
    ------
    OSError
        It cannot be made.
    """
    job = job_id()
    last = re.sub(r"[^\w.-]", "_", job["id"]) if job else f"pid{os.getpid()}"
    name = f"{program}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{last}"
    parent = parent.absolute()
    parent.mkdir(parents=True, exist_ok=True)
    for number in range(1, 1000):
        path = parent / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise FileExistsError(errno.EEXIST, "too many runs of this name", str(parent / name))


class RecordWriter:
    """Appends records to a new file, one ``write`` of the system for each line.

    So a process that is killed leaves whole lines, and what it wrote outlives it. After an error, a full disk
    for instance, the next line begins on a line of its own.

    Parameters
    ----------
    path
        Made absolute; missing directories are made. The file must not exist: two writers would mix their lines.

    Raises
    ------
    OSError
        From the constructor, `write` and `check`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.lines = 0
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
        self._descriptor = os.open(self.path, flags, 0o666)
        self._whole = True

    def write(self, record: Mapping[str, Any]) -> None:
        """Write one record as one line."""
        self.write_line(json.dumps(record, separators=(",", ":"), ensure_ascii=False, allow_nan=False))

    def write_line(self, text: str) -> None:
        """Write a record that is JSON text already, without a line break in it."""
        line = (text if self._whole else "\n" + text).encode("utf-8", "backslashreplace") + b"\n"
        done = 0
        try:
            while done < len(line):
                done += os.write(self._descriptor, line[done:])
        finally:
            if done:
                self._whole = done == len(line)
        self.lines += 1

    def check(self) -> None:
        """Raise if the file is no longer there to be found: it, or its directory, was removed."""
        try:
            same = os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except FileNotFoundError:
            same = False
        if not same:
            raise FileNotFoundError(errno.ENOENT, "the file was removed while it was written", str(self.path))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Line(NamedTuple):
    """One line of a record file.

    Attributes
    ----------
    number : int
        From 1.
    record : dict or None
        None if the line is not a record.
    problem : str or None
        Why not. ``truncated`` is a last line without its line break that cannot be read.
    """

    number: int
    record: dict[str, Any] | None
    problem: str | None


def read_records(path: Path) -> Iterator[Line]:
    """The lines of a record file in order; a line that cannot be read costs that line and nothing else.

    Raises
    ------
    OSError
        The file cannot be opened or read.
    """
    with open(path, "rb") as stream:
        yield from _parse(stream)


def _parse(raw_lines: Iterable[bytes]) -> Iterator[Line]:
    for number, raw in enumerate(raw_lines, 1):
        if raw.strip():
            yield parse_line(number, raw)


def parse_line(number: int, raw: bytes) -> Line:
    """One raw line as a `Line`."""
    try:
        record = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as exc:
        cut = not raw.endswith(b"\n")
        return Line(number, None, "truncated" if cut else f"not JSON: {_short(str(exc))}")
    problems = problems_of(record)
    if problems:
        return Line(number, None, _short("; ".join(problems)))
    return Line(number, record, None)


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + " ..."
