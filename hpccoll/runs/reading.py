"""From files to tables.

DuckDB parses many files at once. Whatever it could not take for a record shows in the numbers of rows per file, and
such a file is read again line by line, so that what is wrong is named with its line, and every other line is kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpccoll.records import FIELDS, parse_line, record_files
from hpccoll.runs.nodeset import few
from hpccoll.runs.store import CASE, RunError, Store, columns, literal, need, select_list, sound

__all__ = ["Problem", "Reading", "find_files", "find_runs", "read_files"]

_BATCH_BYTES = 256 * 2**20
_BATCH_FILES = 16384
_SMALL_BYTES = 256 * 2**10
_LONGEST_LINE = 32 * 2**20
_FILE = "#file"
_MOST_PROBLEMS = 1000

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Problem:
    """A line, or a whole file, that could not be used.

    Attributes
    ----------
    path : Path
    line : int or None
        From 1; None for the whole file.
    text : str
        ``truncated`` is a last line that was cut.
    """

    path: Path
    line: int | None
    text: str

    def __str__(self) -> str:
        return f"{self.path.name}{'' if self.line is None else f':{self.line}'}: {self.text}"


@dataclass
class Reading:
    """What was read.

    Attributes
    ----------
    files : list of Path
        The column `file` of the tables is the position in it.
    lines : int
        Lines that became records.
    lost : int
        Lines that did not, each with a `Problem` up to a limit.
    truncated : list of Path
    problems : list of Problem
    """

    files: list[Path]
    lines: int = 0
    lost: int = 0
    truncated: list[Path] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def add(self, problem: Problem) -> None:
        """Count it, and keep it if there are not too many yet."""
        if problem.line is not None:
            self.lost += 1
        if problem.text == "truncated":
            self.truncated.append(problem.path)
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(problem)


def find_files(directories: Sequence[Path]) -> list[Path]:
    """The record files of one run, which may lie in several directories (each node's own disk).

    A directory that holds a single run's directory stands for that one.

    Raises
    ------
    RunError
        There is none, or there are several runs to choose from.
    """
    found: list[Path] = []
    for directory in directories:
        runs = find_runs(directory)
        if len(runs) > 1:
            shown = few(path.name for path in runs)
            raise RunError(f"{directory} holds {len(runs)} runs, name one of them: {shown}")
        found += record_files(runs[0])
    return list(dict.fromkeys(path.absolute() for path in found))


def _runs_below(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        if path.is_dir() and not path.is_symlink():
            if record_files(path):
                yield path
            else:
                yield from _runs_below(path)


def find_runs(directory: Path) -> list[Path]:
    """`directory` itself if it holds record files, else those below it that do.

    Raises
    ------
    RunError
        There is none.
    """
    try:
        if record_files(directory):
            return [directory]
        runs = list(_runs_below(directory))
    except OSError as exc:
        raise RunError(f"cannot read {directory}: {exc.strerror or exc}") from exc
    if not runs:
        raise RunError(
            f"{directory} holds no record files (rank-00000.jsonl, node-00000.jsonl, ...); a program writes "
            "them with --log-dir, into a directory of its own for each run"
        )
    return runs


def read_files(store: Store, files: Sequence[Path], progress: Progress | None = None) -> Reading:
    """Read `files` into the tables of `store`.

    Parameters
    ----------
    progress
        Called with the files that are read, and their number.
    """
    reading = Reading(list(files))
    done = 0
    for batch in _batches(reading):
        _read_batch(store, batch, reading)
        done += len(batch)
        if progress is not None:
            progress(done, len(files))
    return reading


def _batches(reading: Reading) -> Iterator[list[int]]:
    """Numbers of files, about as many at a time as fit into memory."""
    batch: list[int] = []
    nbytes = 0
    for number, path in enumerate(reading.files):
        try:
            nbytes += path.stat().st_size
        except OSError as exc:
            reading.add(Problem(path, None, f"cannot be read: {exc.strerror or exc}"))
            continue
        batch.append(number)
        if nbytes >= _BATCH_BYTES or len(batch) >= _BATCH_FILES:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch


def _read_batch(store: Store, batch: list[int], reading: Reading) -> None:
    duckdb = need("duckdb")
    lines, whole = _prepare(store, batch, reading)
    try:
        _load(store, whole)
    except duckdb.OutOfMemoryException as exc:
        raise RunError(f"not enough memory for {len(lines)} files ({exc}); raise --memory") from exc
    except duckdb.Error:
        numbers = list(lines)
        if len(numbers) == 1:
            _read_slowly(store, numbers[0], reading)
        else:  # whichever it is, the others are not to suffer
            _read_batch(store, numbers[: len(numbers) // 2], reading)
            _read_batch(store, numbers[len(numbers) // 2 :], reading)
        return
    good = dict(store.rows("SELECT file, count(*) FROM raw WHERE good AND file IS NOT NULL GROUP BY file"))
    bad = {number for number, count in lines.items() if good.get(number, 0) != count}
    _keep(store, bad)
    reading.lines += sum(count for number, count in lines.items() if number not in bad)
    for number in sorted(bad):
        _read_slowly(store, number, reading)


def _prepare(
    store: Store, batch: list[int], reading: Reading
) -> tuple[dict[int, int], dict[Path, int | None]]:
    """Numbers of lines by file, and what DuckDB is to read.

    To open a file costs it as much as to parse some thousand lines. So small files are copied into one, in which every
    line has the number of its file as a first field.
    """
    lines: dict[int, int] = {}
    whole: dict[Path, int | None] = {}
    together = store.directory / "together.jsonl"
    with open(together, "wb") as target:
        for number in batch:
            path = reading.files[number]
            try:
                if path.stat().st_size >= _SMALL_BYTES:
                    lines[number] = _count(path)
                    whole[path] = number
                    continue
                data = path.read_bytes()
            except OSError as exc:
                reading.add(Problem(path, None, f"cannot be read: {exc.strerror or exc}"))
                continue
            if data and not data.endswith(b"\n"):
                data += b"\n"
            lines[number] = data.count(b"\n")
            # A line that does not begin with a brace is none of ours, and the count will tell.
            tagged = (b"\n" + data).replace(b"\n{", b'\n{"%s":%d,' % (_FILE.encode(), number))
            target.write(tagged[1:])
        if target.tell():
            whole[together] = None
    return lines, whole


def _count(path: Path) -> int:
    """Lines of a file; the last one counts without a line break too."""
    lines = 0
    last = b"\n"
    with open(path, "rb", buffering=0) as stream:
        while block := stream.read(16 * 2**20):
            lines += block.count(b"\n")
            last = block[-1:]
    return lines + (last != b"\n")


def _load(store: Store, whole: dict[Path, int | None]) -> None:
    """Make the table `raw` of files, each with its number, or None where the lines have it."""
    kinds = {_FILE: "INTEGER", **columns()}
    spec = ", ".join(f"{literal(name)}: {literal(kind)}" for name, kind in kinds.items())
    if not whole:
        store.db.execute("CREATE OR REPLACE TEMP TABLE raw AS SELECT *, false AS good FROM others LIMIT 0")
        return
    pairs = ", ".join(
        f"({literal(path)}, {'NULL' if number is None else number})" for path, number in whole.items()
    )
    names = ", ".join(literal(_without_pattern(path)) for path in whole)
    store.db.execute(
        f"""CREATE OR REPLACE TEMP TABLE raw AS
        SELECT r.* EXCLUDE ("{_FILE}", filename), coalesce(names.file, r."{_FILE}") AS file, {sound()} AS good
        FROM read_json([{names}], format='newline_delimited', columns={{{spec}}}, ignore_errors=true,
            filename=true, maximum_object_size={_LONGEST_LINE}) AS r
        LEFT JOIN (VALUES {pairs}) AS names(filename, file) USING (filename)"""
    )


def _without_pattern(path: Path) -> str:
    """DuckDB takes names for patterns; this one stands for itself."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in str(path))


def _keep(store: Store, bad: Collection[int]) -> None:
    """Move the rows of the table `raw` to where they belong, but not those of the files `bad`."""
    without = f" AND file NOT IN ({', '.join(map(str, bad))})" if bad else ""
    store.db.execute(
        f"""CREATE OR REPLACE TEMP VIEW keyed AS SELECT *, hash({select_list(CASE)}) AS key FROM raw
        WHERE good AND type = 'sample' AND file IS NOT NULL{without}"""
    )
    store.db.execute(
        "INSERT INTO samples SELECT file, rank, key, iteration, start_ns, end_ns, verified FROM keyed"
    )
    store.db.execute(
        f"INSERT INTO cases SELECT key, {_any_case()} FROM keyed WHERE key NOT IN (SELECT key FROM cases) GROUP BY key"
    )
    store.db.execute(
        f"""INSERT INTO metrics SELECT file, rank, step, unix_ns, "values" FROM raw
        WHERE good AND type = 'metric' AND file IS NOT NULL{without}"""
    )
    store.db.execute(
        f"""INSERT INTO others SELECT file, {select_list(list(columns()))} FROM raw
        WHERE good AND type NOT IN ('sample', 'metric') AND file IS NOT NULL{without}"""
    )


def _any_case() -> str:
    # A plain any_value would skip nulls, and a null root is a value.
    return ", ".join(f'first("{name}")' for name in (*CASE, "flags"))


def _read_slowly(store: Store, number: int, reading: Reading) -> None:
    """Read a file line by line; what is good goes to DuckDB in a file of its own."""
    path, aside = reading.files[number], store.directory / "good.jsonl"
    good = 0
    try:
        with open(path, "rb") as stream, open(aside, "w", encoding="utf-8") as target:
            for index, raw in enumerate(stream, 1):
                if not raw.strip():
                    continue
                record, problem = parse_line(index, raw)[1:]
                if record is not None:
                    problem = _beyond(record)
                if record is None or problem is not None:
                    reading.add(Problem(path, index, problem or "not a record"))
                    continue
                text = json.dumps(_plain(record))
                if len(text) > _LONGEST_LINE:
                    reading.add(Problem(path, index, f"longer than {_LONGEST_LINE} bytes"))
                    continue
                target.write(text + "\n")
                good += 1
    except OSError as exc:
        reading.add(Problem(path, None, f"cannot be read to its end: {exc.strerror or exc}"))
    if good:
        _load(store, {aside: number})
        _keep(store, ())
        ((taken,),) = store.rows("SELECT count(*) FILTER (WHERE good) FROM raw")
        reading.lines += taken
        if taken < good:
            reading.add(Problem(path, None, f"{good - taken} records that the database does not take"))


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    """The fields that the schema knows, and nothing that JSON has no word for."""
    kind = record["type"]
    return {"type": kind, **{item.name: _finite(record[item.name]) for item in FIELDS[kind]}}


def _finite(value: Any) -> Any:
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return str(value)
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def _beyond(record: dict[str, Any]) -> str | None:
    """An integer that no column holds."""
    for item in FIELDS[record["type"]]:
        value = record[item.name]
        limit = 2**31 if item.name == "rank" else 2**63
        if item.kind.startswith("int") and value is not None and not -limit <= value < limit:
            return f"{item.name} is {value!r}, beyond {limit}"
    return None
