"""Whether a run is whole: who is missing, who is there twice, whose lines were lost."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hpccoll.records import SCHEMA
from hpccoll.runs.nodeset import few, fold_hosts, fold_ranks
from hpccoll.runs.reading import Reading
from hpccoll.runs.store import RunError, Store

__all__ = ["Finding", "Health", "examine"]

_MANIFEST = (
    *("rank", "schema", "run", "program", "size", "local_rank", "host", "pid", "argv", "started", "versions"),
    *("launcher", "job", "cores", "affinity", "environment", "git", "clock", "flags"),
)
_JSON = ("argv", "versions", "launcher", "job", "affinity", "environment", "git", "clock")
_MOST_NAMED = 1_000_000

Source = tuple[int, int]


@dataclass(frozen=True)
class Finding:
    """Something that keeps the run from being whole.

    Attributes
    ----------
    kind : str
        One word to count by: ``missing``, ``duplicated``, ``foreign``, ``unfinished``, ``truncated``, ``corrupt``,
        ``lost``, ``headless``, ``unreadable``, ``split-world``, ``mixed``, ``wrong``, ``status``, ``clock``.
    count : int
        How many ranks, files, lines or samples.
    text : str
        In one line, with names up to a limit.
    ranks : tuple of int
        Those concerned, where they are ranks.
    """

    kind: str
    count: int
    text: str
    ranks: tuple[int, ...] = ()


@dataclass
class Health:
    """The run, its ranks, and what was found.

    Attributes
    ----------
    run, program : str
    size : int
        Ranks that the run should have.
    manifests : dict
        The kept manifest of each rank that has one.
    present : list of int
        Ranks whose records are kept.
    findings : list of Finding
        Empty for a run that is whole.
    dropped_lines : int
        Lines of duplicated and foreign sources.
    """

    run: str
    program: str
    size: int
    manifests: dict[int, dict[str, Any]]
    present: list[int]
    findings: list[Finding] = field(default_factory=list)
    dropped_lines: int = 0
    lines: int = 0
    files: int = 0

    @property
    def whole(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def hosts(self) -> dict[str, list[int]]:
        """Ranks by host, hosts in the order of their lowest rank."""
        found: dict[str, list[int]] = {}
        for rank in self.present:
            found.setdefault(self.host_of(rank), []).append(rank)
        return found

    def host_of(self, rank: int) -> str:
        """Host name of a rank, ``?`` if its manifest is lost."""
        return str(self.manifests[rank]["host"]) if rank in self.manifests else "?"

    @property
    def headline(self) -> str:
        """One line."""
        state = "whole" if self.whole else f"NOT WHOLE: {few(sorted({item.kind for item in self.findings}))}"
        hosts = f"{len(self.hosts)} host{'s' * (len(self.hosts) != 1)} ({fold_hosts(self.hosts)})"
        return (
            f"{self.run}: {self.program}, {len(self.present)} of {self.size} ranks on {hosts}, "
            f"{self.lines} lines in {self.files} files: {state}"
        )


def examine(store: Store, reading: Reading) -> Health:
    """Look at who wrote what, and delete from `store` what is not of this run or there twice.

    Raises
    ------
    RunError
        There is not a single manifest.
    """
    manifests = _manifests(store)
    if not manifests:
        raise RunError(
            f"no manifest in any of {len(reading.files)} files, so these are no records of a run"
            + (f"; the first problem: {reading.problems[0]}" if reading.problems else "")
        )
    lines = _line_counts(store)
    ends = {
        (file, rank): (status, count)
        for file, rank, status, count in store.rows(
            "SELECT file, rank, status, lines FROM others WHERE type = 'end'"
        )
    }
    run, program, size = _main_run(manifests.values())
    health = Health(run, program, size, {}, [], lines=reading.lines, files=len(reading.files))
    own, foreign = _sort_out(manifests, lines, run, size)
    chosen, duplicates = _choose(own, ends, lines)
    kept = set(chosen.values())
    health.present = sorted(chosen)
    health.manifests = {rank: manifests[source][0] for rank, source in chosen.items() if source in manifests}
    health.dropped_lines = sum(count for source, count in lines.items() if source not in kept)
    if len(kept) < len(lines):
        _delete_others(store, kept)
    health.findings = [
        *_split_world(manifests),
        *_missing(health),
        *_duplicated(duplicates, reading),
        *_of_ranks(
            "duplicated",
            [rank for rank, source in chosen.items() if len(manifests.get(source, ())) > 1],
            "have several manifests in one file, whose lines cannot be told apart",
        ),
        *_foreign(foreign, manifests, lines, reading),
        *_of_ranks(
            "headless",
            [rank for rank, source in chosen.items() if source not in manifests],
            "whose manifest is lost: host and conditions are unknown",
        ),
        *_of_ranks(
            "unfinished",
            [rank for rank, source in chosen.items() if source not in ends],
            "without an end line: killed, or still running",
        ),
        *_lines(reading, chosen, ends, lines),
        *_mixed(health),
        *_results(store, chosen, ends),
    ]
    return health


# ---- Reading what was written


def _manifests(store: Store) -> dict[Source, list[dict[str, Any]]]:
    found: dict[Source, list[dict[str, Any]]] = defaultdict(list)
    names = ", ".join(f'"{name}"' for name in _MANIFEST)
    for row in store.dicts(f"SELECT file, {names} FROM others WHERE type = 'manifest' ORDER BY file, rank"):
        file = row.pop("file")
        for name in _JSON:
            row[name] = None if row[name] is None else json.loads(row[name])
        found[file, row["rank"]].append(row)
    return dict(found)


def _line_counts(store: Store) -> dict[Source, int]:
    """Lines of every rank in every file, `end` not among them."""
    rows = store.rows(
        "SELECT file, rank, sum(n)::BIGINT FROM ("
        "SELECT file, rank, count(*) AS n FROM samples GROUP BY ALL UNION ALL "
        "SELECT file, rank, count(*) FROM metrics GROUP BY ALL UNION ALL "
        "SELECT file, rank, count(*) FILTER (WHERE type <> 'end') FROM others GROUP BY ALL) GROUP BY ALL"
    )
    return {(file, rank): count for file, rank, count in rows}


def _main_run(manifests: Iterable[list[dict[str, Any]]]) -> tuple[str, str, int]:
    """The run that most manifests name, and what most of those say of it."""
    every = [item for group in manifests for item in group]
    runs = Counter(item["run"] for item in every)
    run = max(runs, key=lambda name: (runs[name], name))
    own = [item for item in every if item["run"] == run]
    program = Counter(item["program"] for item in own).most_common(1)[0][0]
    sizes = Counter(item["size"] for item in own)
    return run, program, max(sizes, key=lambda size: (sizes[size], size))


def _sort_out(
    manifests: dict[Source, list[dict[str, Any]]], lines: dict[Source, int], run: str, size: int
) -> tuple[dict[int, list[Source]], list[Source]]:
    """Sources of this run by rank, and those of others."""
    own: dict[int, list[Source]] = defaultdict(list)
    foreign = []
    for source in sorted(lines):
        rank = source[1]
        group = manifests.get(source)
        if not 0 <= rank < size or (group is not None and (group[0]["run"], group[0]["size"]) != (run, size)):
            foreign.append(source)
        else:
            own[rank].append(source)
    return own, foreign


def _choose(
    own: dict[int, list[Source]], ends: dict[Source, Any], lines: dict[Source, int]
) -> tuple[dict[int, Source], dict[int, list[Source]]]:
    """Of a rank's sources the one that came to its end, then the longest; and the ranks with several."""
    chosen = {
        rank: max(sources, key=lambda source: (source in ends, lines[source], -source[0]))
        for rank, sources in own.items()
    }
    return chosen, {rank: sources for rank, sources in own.items() if len(sources) > 1}


def _delete_others(store: Store, kept: set[Source]) -> None:
    pairs = ", ".join(f"({file}, {rank})" for file, rank in sorted(kept)) or "(-1, -1)"
    store.db.execute(f"CREATE OR REPLACE TEMP TABLE kept AS SELECT * FROM (VALUES {pairs}) AS v(file, rank)")
    for table in ("samples", "metrics", "others"):
        store.db.execute(
            f"DELETE FROM {table} AS t WHERE NOT EXISTS"
            " (SELECT 1 FROM kept WHERE kept.file = t.file AND kept.rank = t.rank)"
        )
    store.db.execute("DELETE FROM cases WHERE key NOT IN (SELECT DISTINCT key FROM samples)")


# ---- What is wrong with it


def _of_ranks(kind: str, ranks: Iterable[int], text: str) -> Iterator[Finding]:
    found = sorted(ranks)
    if found:
        word = "rank" if len(found) == 1 else "ranks"
        yield Finding(kind, len(found), f"{len(found)} {word} {text}: {fold_ranks(found)}", tuple(found))


def _missing(health: Health) -> Iterator[Finding]:
    number = health.size - len(health.present)
    if number > _MOST_NAMED:  # a size that is a mistake must not fill the memory
        yield Finding("missing", number, f"{number} ranks of {health.size} left no records")
        return
    missing = set(range(health.size)) - set(health.present)
    yield from _of_ranks("missing", missing, f"of {health.size} left no records")


def _duplicated(duplicates: dict[int, list[Source]], reading: Reading) -> Iterator[Finding]:
    if duplicates:
        names = (
            f"rank {rank} in {' and '.join(reading.files[file].name for file, _ in sources)}"
            for rank, sources in sorted(duplicates.items())
        )
        text = f"{len(duplicates)} ranks have several files, the most complete of which is kept: {few(names)}"
        yield Finding("duplicated", len(duplicates), text, tuple(sorted(duplicates)))


def _foreign(
    foreign: list[Source],
    manifests: dict[Source, list[dict[str, Any]]],
    lines: dict[Source, int],
    reading: Reading,
) -> Iterator[Finding]:
    if foreign:
        names = (
            f"{reading.files[source[0]].name} (rank {source[1]} of "
            + (
                f"{manifests[source][0]['size']} of {manifests[source][0]['run']}"
                if source in manifests
                else "no known run"
            )
            + ")"
            for source in foreign
        )
        total = sum(lines[source] for source in foreign)
        text = f"{len(foreign)} sources of other runs, {total} lines left out: {few(names)}"
        yield Finding("foreign", len(foreign), text)


def _split_world(manifests: dict[Source, list[dict[str, Any]]]) -> Iterator[Finding]:
    alone = [group[0] for group in manifests.values() if group[0]["size"] == 1 and group[0]["rank"] == 0]
    launched = [item for item in alone if ((item["launcher"] or {}).get("size") or 1) > 1]
    processes = {(item["host"], item["pid"]) for item in alone}
    if len(processes) > 1 or launched:
        shown = few(f"{host} pid {pid}" for host, pid in sorted(processes))
        text = (
            f"split world: {len(processes)} processes are each rank 0 of 1 ({shown}); the launcher belongs to another "
            "MPI than mpi4py loads: start with the mpirun of the MPI that the manifest names, or srun --mpi=pmix"
        )
        yield Finding("split-world", len(processes), text)


def _lines(
    reading: Reading, chosen: dict[int, Source], ends: dict[Source, Any], lines: dict[Source, int]
) -> Iterator[Finding]:
    if reading.truncated:
        names = sorted(path.name for path in reading.truncated)
        yield Finding(
            "truncated", len(names), f"{len(names)} files end in the middle of a line: {few(names)}"
        )
    corrupt = reading.lost - len(reading.truncated)
    listed = [item for item in reading.problems if item.line is not None and item.text != "truncated"]
    if corrupt:
        yield Finding("corrupt", corrupt, f"{corrupt} lines are no records: {few(map(str, listed), 4)}")
    unreadable = [item for item in reading.problems if item.line is None]
    if unreadable:
        yield Finding(
            "unreadable", len(unreadable), f"{len(unreadable)} files: {few(map(str, unreadable), 4)}"
        )
    short = {
        rank: ends[source][1] - lines[source]
        for rank, source in chosen.items()
        if source in ends and ends[source][1] != lines[source]
    }
    if short:
        lost = sum(short.values())
        what = (
            f"{lost} lines that were written are" if lost > 0 else f"{-lost} lines more than were written are"
        )
        text = f"{what} {'not ' * (lost > 0)}there, on {len(short)} ranks: {fold_ranks(short)}"
        yield Finding("lost", abs(lost), text, tuple(sorted(short)))


def _mixed(health: Health) -> Iterator[Finding]:
    values: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, manifest in health.manifests.items():
        for name, version in (manifest["versions"] or {}).items():
            values[name][str(version or "none")].append(rank)
        values["schema"][manifest["schema"]].append(rank)
        values["program"][manifest["program"]].append(rank)
    for name, versions in sorted(values.items()):
        if len(versions) > 1:
            largest_first = sorted(versions.items(), key=lambda item: (-len(item[1]), item[0]))
            shown = few(
                (f"{_first_line(text)} on ranks {fold_ranks(ranks)}" for text, ranks in largest_first), 4
            )
            odd = sorted(rank for _, ranks in largest_first[1:] for rank in ranks)
            yield Finding("mixed", len(versions), f"{name} differs between ranks: {shown}", tuple(odd))
    unknown = [text for text in values["schema"] if text != SCHEMA]
    if unknown:
        yield Finding("mixed", len(unknown), f"schema {few(unknown)}, but this version reads {SCHEMA}")


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= 80 else line[:77] + "..."


def _results(store: Store, chosen: dict[int, Source], ends: dict[Source, Any]) -> Iterator[Finding]:
    wrong = store.rows("SELECT rank, count(*) FROM samples WHERE NOT verified GROUP BY rank ORDER BY rank")
    if wrong:
        total = sum(count for _, count in wrong)
        ranks = tuple(rank for rank, _ in wrong)
        yield Finding(
            "wrong", total, f"{total} samples with a wrong result, on ranks {fold_ranks(ranks)}", ranks
        )
    bad: dict[str, list[int]] = defaultdict(list)
    for rank, source in chosen.items():
        if source in ends and ends[source][0] != "ok":
            bad[ends[source][0]].append(rank)
    for status, ranks_of in sorted(bad.items()):
        yield from _of_ranks("status", ranks_of, f"ended with status {status!r}")
