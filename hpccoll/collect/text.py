"""Plain logs of many ranks as one: equal lines are grouped, what few ranks said comes first.

Knows a rank from the name of its file (``job-812345.7.out``, ``out.%t``), from Open MPI's ``--output dir=``
(``1/rank.07/stdout``), or from the head of each line (``srun --label``, ``mpirun --tag-output``, torchrun).
"""

from __future__ import annotations

import glob
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpccoll.runs.nodeset import fold_ranks
from hpccoll.runs.store import RunError

__all__ = ["Group", "merge_texts", "ranked_files", "render"]

_PREFIXES = (
    re.compile(r"^\[\d+,(\d+)\]<(?:stdout|stderr|stddiag)>:? ?"),  # Open MPI --tag-output
    re.compile(r"^\[[^\[\]\s,]+,(\d+)\](?:<\w+>)?:? ?"),  # PRRTE: [prterun-host-1234@1,7]<stdout>:
    re.compile(r"^\[(?:rank|default|\w+)?(\d+)\]:? ?"),  # torchrun, Hydra -prepend-rank, TORCH_DISTRIBUTED
    re.compile(r"^ *(\d+): ?"),  # srun --label
)
_NUMBER = re.compile(r"\d+")
_ERROR = re.compile(r"Traceback \(most|\b\w*(?:Error|Exception)\b\s*[:(]|Segmentation fault|MPI_ABORT")
_MOST_LINES = 100_000


@dataclass
class Group:
    """A text that ranks have in common.

    Attributes
    ----------
    text : str
        One line, or all lines of an exception.
    ranks : set of int
    count : int
        How often it came, over all ranks.
    first : int
        Where the rank that said it earliest in its log did, in lines.
    error : bool
    """

    text: str
    ranks: set[int] = field(default_factory=set)
    count: int = 0
    first: int = 0
    error: bool = False


def ranked_files(patterns: Sequence[str]) -> list[tuple[Path, int | None]]:
    """Files with the rank that their names tell; None for a file whose lines may tell.

    Raises
    ------
    RunError
        No file is there.
    """
    paths = sorted({Path(name) for pattern in patterns for name in glob.glob(pattern, recursive=True)})
    paths = [inner for path in paths for inner in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    paths = [path for path in paths if path.is_file()]
    if not paths:
        raise RunError(
            f"argument --text: no file matches {', '.join(patterns)}; quote the pattern for the shell"
        )
    by_directory = [_open_mpi_rank(path) for path in paths]
    if any(rank is not None for rank in by_directory):
        return [(path, rank) for path, rank in zip(paths, by_directory, strict=True)]
    return _by_varying_part(paths)


def _open_mpi_rank(path: Path) -> int | None:
    match = next(
        (re.fullmatch(r"rank\.(\d+)", part) for part in path.parts if part.startswith("rank.")), None
    )
    if match is None:
        match = re.search(r"\.rank\.(\d+)(?:\.|$)", path.name)
    return int(match[1]) if match else None


def _by_varying_part(paths: list[Path]) -> list[tuple[Path, int | None]]:
    """The rank is the number in the names that differs between all files of a suffix.

    Of several such numbers (``out.%N.%t`` with one rank per node) it is the one that counts from 0, or the last.
    """
    numbers = [[int(text) for text in _NUMBER.findall(path.name)] for path in paths]
    width = min(map(len, numbers))
    if len({len(each) for each in numbers}) > 1:  # host names with and without numbers: count from the end
        numbers = [each[len(each) - width :] for each in numbers]
    found: list[list[int]] = []
    for column in range(width):
        values = [each[column] for each in numbers]
        if len({(value, path.suffix) for value, path in zip(values, paths, strict=True)}) == len(paths) > 1:
            found.append(values)
    if not found:
        return [(path, None) for path in paths]
    counting = [values for values in found if set(values) == set(range(len(set(values))))]
    return list(zip(paths, (counting or found)[-1], strict=True))


def merge_texts(
    files: Sequence[tuple[Path, int | None]], progress: Callable[[int, int], None] | None = None
) -> tuple[list[Group], list[int], list[str]]:
    """Groups in the order in which to show them, all ranks, and notes on what could not be read."""
    groups: dict[str, Group] = {}
    ranks: set[int] = set()
    notes: list[str] = []
    for number, (path, rank) in enumerate(files):
        if progress is not None:
            progress(number, len(files))
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as exc:
            notes.append(f"{path} cannot be read: {exc.strerror or exc}")
            continue
        for its_rank, its_lines in _by_rank(lines, rank, number).items():
            ranks.add(its_rank)
            for position, text, error in _pieces(its_lines):
                group = groups.setdefault(text, Group(text, first=position, error=error))
                group.ranks.add(its_rank)
                group.count += 1
                group.first = min(group.first, position)
    shown = sorted(groups.values(), key=lambda group: _order(group, len(ranks)))
    return shown, sorted(ranks), notes


def _order(group: Group, ranks: int) -> tuple[object, ...]:
    """Exceptions first, those of the fewest ranks and then the earliest; then what few ranks said; then the rest."""
    odd = len(group.ranks) * 2 <= ranks and ranks > 1
    return (
        not group.error,
        not odd,
        len(group.ranks) if group.error or odd else 0,
        group.first,
        min(group.ranks),
    )


def _by_rank(lines: Iterable[str], rank: int | None, number: int) -> dict[int, list[str]]:
    """Lines by rank: as the name of the file says, else as each line says, else the file counts as a rank."""
    if rank is not None:
        return {rank: list(lines)}
    listed = list(lines)
    for pattern in _PREFIXES:
        matches = [pattern.match(line) for line in listed]
        if listed and sum(match is not None for match in matches) * 2 > len(listed):
            found: dict[int, list[str]] = defaultdict(list)
            last = number
            for line, match in zip(listed, matches, strict=True):
                last = int(match[1]) if match else last  # a line without a head continues the one before
                found[last].append(line[match.end() :] if match else line)
            return dict(found)
    return {number: listed}


def _pieces(lines: Sequence[str]) -> Iterator[tuple[int, str, bool]]:
    """Lines with their positions; a traceback is one piece, up to the line that names the exception."""
    index = 0
    while index < len(lines):
        line = lines[index].rstrip()
        if line.lstrip().startswith("Traceback (most recent call last)"):
            end = index + 1
            indent = len(line) - len(line.lstrip())
            while end < len(lines) and (
                not lines[end].strip() or lines[end][indent : indent + 1] in (" ", "\t")
            ):
                end += 1
            yield index, "\n".join(part.rstrip() for part in lines[index : end + 1]), True
            index = end + 1
            continue
        if line:
            yield index, line, bool(_ERROR.search(line))
        index += 1


def render(groups: Sequence[Group], ranks: Sequence[int], notes: Sequence[str]) -> Iterator[str]:
    """``[0-3,5]: text``, the further lines of a text below it; a number of times where it is more than one each."""
    errors = [group for group in groups if group.error]
    yield f"{len(ranks)} ranks ({fold_ranks(ranks)}), {len(groups)} different lines, {len(errors)} of them errors"
    yield from (f"! {note}" for note in notes)
    for group in groups[:_MOST_LINES]:
        head = (
            fold_ranks(group.ranks)
            if len(group.ranks) < len(ranks) or len(ranks) == 1
            else f"all {len(ranks)}"
        )
        times = f" ({group.count} times)" if group.count > len(group.ranks) else ""
        first, *rest = group.text.split("\n")
        yield f"{head}: {first}{times}"
        yield from (f"    {line}" for line in rest)
    if len(groups) > _MOST_LINES:
        yield f"... and {len(groups) - _MOST_LINES} more"
