"""The dumps of one job, out of directories that may hold more than that."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpccoll.diagnose.dumps import Dump, DumpError, parse
from hpccoll.runs.nodeset import few, fold_ranks

__all__ = ["Job", "NothingToRead", "read"]

_NAME = re.compile(r"rank\d+\.json")
# Clocks of hosts differ by less; a job that is started again takes longer to write its first dump.
_CLOCKS_S = 1.0


class NothingToRead(Exception):
    """There is no dump where one was looked for; the message says what there is."""


@dataclass
class Job:
    """The dumps of one job.

    Attributes
    ----------
    given_up_s : float or None
        Unix time at which the first rank was over its limit and dumped.
    notes : list of str
        Which files were left out, and why.
    """

    directories: list[Path]
    size: int
    dumps: dict[int, Dump]
    given_up_s: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def missing(self) -> list[int]:
        """Ranks without a dump."""
        return [rank for rank in range(self.size) if rank not in self.dumps]


def read(paths: Sequence[Path], progress: Callable[[int, int], None] = lambda done, total: None) -> Job:
    """Read what is below `paths`: directories of dumps, directories of such directories, or single files.

    Of several dump directories below one path the newest counts; several paths count together, as the local
    directories of several hosts do. If the files are of more than one job, that of the newest dump counts.

    Raises
    ------
    NothingToRead
        No file is a dump.
    """
    notes: list[str] = []
    files: list[Path] = []
    for path in paths:
        files += _files(path, notes)
    dumps: list[Dump] = []
    unreadable: dict[str, list[str]] = {}
    for done, path in enumerate(files):
        if done % 100 == 0:
            progress(done, len(files))
        try:
            dumps.append(parse(path))
        except DumpError as error:
            unreadable.setdefault(str(error), []).append(path.name)
    notes += [f"{few(names, 4)}: {why}" for why, names in unreadable.items()]
    if not dumps:
        raise NothingToRead("\n".join(notes) or "there is no file rank*.json")
    newest = max(dumps, key=lambda dump: dump.written_s)
    job = Job(sorted({dump.path.parent for dump in dumps}), newest.size, {}, notes=notes)
    started_s = max((dump.started_s for dump in dumps if _alike(dump, newest)), default=0.0)
    others: dict[str, list[Dump]] = {}
    for dump in sorted(dumps, key=lambda dump: dump.written_s):
        if not _alike(dump, newest):
            others.setdefault(f"of another run (job {dump.job}, {dump.size} ranks)", []).append(dump)
        elif dump.written_s < started_s - _CLOCKS_S:
            others.setdefault("of an older run: written before this one started", []).append(dump)
        else:
            if dump.rank in job.dumps:
                others.setdefault("older than another of the same rank", []).append(job.dumps[dump.rank])
            job.dumps[dump.rank] = dump
    _cut(job)
    for why, left_out in others.items():
        job.notes.append(f"left out the dumps of ranks {fold_ranks(d.rank for d in left_out)}: {why}")
    return job


def _cut(job: Job) -> None:
    """Do not count what ranks did after the first had given up: a stopped rank is woken to be ended, and goes on."""
    given_up = [dump.written_s for dump in job.dumps.values() if dump.reason == "timeout"]
    if not given_up:
        return
    job.given_up_s = min(given_up)
    for rank, dump in list(job.dumps.items()):
        if dump.newest_s > job.given_up_s + _CLOCKS_S:
            try:
                job.dumps[rank] = parse(dump.path, job.given_up_s + _CLOCKS_S)
            except DumpError:
                continue  # it has changed meanwhile


def _alike(dump: Dump, newest: Dump) -> bool:
    return (dump.size, dump.job, dump.run) == (newest.size, newest.job, newest.run)


def _files(path: Path, notes: list[str]) -> list[Path]:
    try:
        if path.is_file():
            return [path]
        there = list(path.iterdir())
        files = sorted(item for item in there if _NAME.fullmatch(item.name))
        if files:
            return files
        below = []
        for item in there:
            if item.is_dir():
                files = sorted(file for file in item.iterdir() if _NAME.fullmatch(file.name))
                if files:
                    below.append((max(file.stat().st_mtime for file in files), item, files))
    except OSError as error:
        raise NothingToRead(f"{path}: {error.strerror or error}") from error
    if not below:
        raise NothingToRead(f"{path} holds no file rank*.json, nor does a directory in it")
    below.sort(key=lambda entry: entry[:2])
    _, newest, files = below.pop()
    if below:
        older = few((item.name for _, item, _ in reversed(below)), 4)
        notes.append(f"the newest dump directory of {len(below) + 1}: {newest.name}; older: {older}")
    return files
