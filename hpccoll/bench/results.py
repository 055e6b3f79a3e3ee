"""Header and rows of a run, as a JSON document.

Every field is listed in docs/methods.md; units are in the names. ``format`` changes when a field changes its
meaning.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hpccoll.bench.options import UsageError

__all__ = ["FORMAT", "Failure", "Header", "Row", "check_json_target", "document", "write_json"]

FORMAT = "hpccoll.bench/1"


@dataclass(frozen=True)
class Header:
    """The conditions of a run.

    Attributes
    ----------
    collective, engine, mode
        What was called, through what, and how it was timed.
    hpccoll, python, numpy, torch, mpi4py, mpi : str
        Versions; torch is None unless it was used.
    ranks : int
    hosts : list of str
        In the order of their lowest rank.
    ranks_per_host, cores_per_host, usable_cores_per_host : list of int
        Per host: ranks, logical CPUs online, and those in the affinity mask of any of its ranks.
    oversubscribed : bool
        Some host has more ranks than usable cores: times are those of the scheduler, not of MPI.
    unbound : bool
        Some host has several ranks that may all run on the same cores.
    started : str
        UTC time, ISO 8601.
    """

    collective: str
    engine: str
    mode: str
    hpccoll: str
    python: str
    numpy: str
    torch: str | None
    mpi4py: str
    mpi: str
    ranks: int
    hosts: list[str]
    ranks_per_host: list[int]
    cores_per_host: list[int]
    usable_cores_per_host: list[int]
    oversubscribed: bool
    unbound: bool
    started: str


@dataclass(frozen=True)
class Failure:
    """The first wrong element of a row on one rank."""

    rank: int
    host: str
    wrong: int
    text: str


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes
    ----------
    nbytes : int
        S of the bandwidth definitions; not None also where a row was skipped.
    count : int
        Elements in a block.
    dtype, op, root, in_place
        Arguments of the call; None where the collective has no such argument.
    iterations, warmup : int
        Timed calls, and those before.
    time_us, time_min_us, time_max_us : float or None
        Per call the slowest rank; of these the median, least and most.
    algbw_gb_per_s, busbw_gb_per_s : float or None
        None where they mean nothing: no bytes, one rank (busbw), a skipped row.
    wrong : int
        Wrong elements over all ranks and calls.
    failures : list of Failure
        The first on each rank, eight at most.
    skipped : str or None
        Why the row was not run.
    """

    nbytes: int
    count: int
    dtype: str | None
    op: str | None
    root: int | None
    in_place: bool | None
    iterations: int = 0
    warmup: int = 0
    time_us: float | None = None
    time_min_us: float | None = None
    time_max_us: float | None = None
    algbw_gb_per_s: float | None = None
    busbw_gb_per_s: float | None = None
    wrong: int = 0
    failures: list[Failure] = field(default_factory=list)
    skipped: str | None = None


def document(header: Header, rows: list[Row], status: str) -> str:
    """The whole run as JSON text; `status` is ``ok``, ``wrong`` or ``stopped``."""
    content: dict[str, Any] = {
        "format": FORMAT,
        "status": status,
        "header": asdict(header),
        "rows": [asdict(row) for row in rows],
    }
    return json.dumps(content, indent=1) + "\n"


def check_json_target(target: str | None, control: Any) -> None:
    """Find out before anything is measured whether rank 0 can write the document; collective over `control`.

    Raises
    ------
    UsageError
        On every rank, if it cannot.
    """
    problem = None
    if control.rank == 0 and target not in (None, "-"):
        path = Path(str(target))
        try:
            if path.is_dir():
                raise IsADirectoryError("it is a directory")
            with tempfile.TemporaryFile(dir=path.parent):
                pass
        except OSError as exc:
            problem = f"argument --json: cannot write {path}: {exc.strerror or exc}"
    problem = control.bcast(problem)
    if problem:
        raise UsageError(problem)


def write_json(path: Path, text: str) -> None:
    """Write `text` aside and rename it, so that `path` is never half a document."""
    descriptor, aside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(aside, 0o666 & ~_umask())
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
