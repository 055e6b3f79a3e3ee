"""Header and rows of a run, as a JSON document.

Every field is listed in docs/methods.md; units are in the names. ``format`` changes when a field changes its
meaning.
"""

from __future__ import annotations

import csv
import io
import json
import tempfile
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hpccoll.bench.options import UsageError

__all__ = ["FORMAT", "Failure", "Header", "Row", "check_target", "document", "tidy"]

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
    mixed_hosts : bool
        The hosts differ in processor, cores, or cores that their ranks may use.
    clock_resolution_ns : int
        Least time between two readings of rank 0's clock, as Python takes them.
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
    mixed_hosts: bool
    clock_resolution_ns: int
    started: str

    @property
    def flags(self) -> str:
        """What the reader of any number of this run has to know; empty if there is nothing."""
        names = ("oversubscribed", "unbound", "mixed_hosts")
        return ",".join(name.replace("_", "-") for name in names if getattr(self, name))


@dataclass(frozen=True)
class Failure:
    """The first wrong element of a row on one rank."""

    rank: int
    host: str
    wrong: int
    text: str


@dataclass(frozen=True)
class Row:
    """One row of the table: one engine at one combination of the independent variables.

    Attributes
    ----------
    nbytes : int
        S of the bandwidth definitions; not None also where a row was skipped.
    count : int
        Elements in a block.
    dtype, op, root, in_place
        Arguments of the call; None where the collective has no such argument.
    engine, mode : str
    flags : str
        ``oversubscribed``, ``unbound``, ``mixed-hosts``, with commas.
    launches : int
        Repetitions that the row sums up.
    iterations, batch, warmup : int
        Samples, calls in each, and calls before the first.
    late_starts : int
        Samples thrown away, because some rank missed the agreed time.
    time_us, ci_low_us, ci_high_us : float or None
        Time per call, by the slowest rank: the median over the samples, or with several launches the mean of
        their medians; with its 95 % interval.
    time_min_us, time_p95_us, time_p99_us, time_max_us, cv : float or None
        Of all samples: least, percentiles (from 20 and 100 samples on), most, standard deviation by mean.
    ratio, ratio_low, ratio_high : float or None
        Time relative to the first engine: median over the rounds, with its interval; None for a single engine.
    algbw_gb_per_s, busbw_gb_per_s : float or None
        None where they mean nothing: no bytes, one rank (busbw), a skipped row.
    last_rank, last_host, last_share, last_after_us, clock_uncertainty_us
        The rank that most often entered last, its host, in which share of the samples, how long after the first
        rank (median), and the bound of the error of that.
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
    engine: str = "numpy"
    mode: str = "barrier"
    flags: str = ""
    launches: int = 1
    iterations: int = 0
    batch: int = 1
    warmup: int = 0
    late_starts: int = 0
    time_us: float | None = None
    ci_low_us: float | None = None
    ci_high_us: float | None = None
    time_min_us: float | None = None
    time_p95_us: float | None = None
    time_p99_us: float | None = None
    time_max_us: float | None = None
    cv: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    algbw_gb_per_s: float | None = None
    busbw_gb_per_s: float | None = None
    last_rank: int | None = None
    last_host: str | None = None
    last_share: float | None = None
    last_after_us: float | None = None
    clock_uncertainty_us: float | None = None
    wrong: int = 0
    failures: list[Failure] = field(default_factory=list)
    skipped: str | None = None

    @property
    def ci_half_width(self) -> float | None:
        """Half of the 95 % interval relative to the time."""
        if self.time_us is None or self.ci_low_us is None or self.ci_high_us is None:
            return None
        return (self.ci_high_us - self.ci_low_us) / 2 / self.time_us


def document(header: Header, rows: list[Row], status: str, findings: dict[str, Any] | None = None) -> str:
    """The whole run as JSON text; `status` is ``ok``, ``wrong`` or ``stopped``."""
    content: dict[str, Any] = {
        "format": FORMAT,
        "status": status,
        "header": asdict(header),
        "rows": [asdict(row) for row in rows],
        **(findings or {}),
    }
    return json.dumps(content, indent=1) + "\n"


_TIDY_HEADER = ("collective", "ranks", "started", "hpccoll", "mpi")


def tidy(header: Header, rows: list[Row]) -> str:
    """The rows as CSV: one line per combination of the independent variables, an empty field for None.

    Failures are left out; `wrong` counts them.
    """
    names = [item.name for item in fields(Row) if item.name != "failures"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_TIDY_HEADER, "hosts", *names])
    fixed = [*(getattr(header, name) for name in _TIDY_HEADER), len(header.hosts)]
    for row in rows:
        values = (getattr(row, name) for name in names)
        writer.writerow([*fixed, *("" if value is None else value for value in values)])
    return text.getvalue()


def check_target(option: str, target: str | None, control: Any) -> None:
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
            problem = f"argument {option}: cannot write {path}: {exc.strerror or exc}"
    problem = control.bcast(problem)
    if problem:
        raise UsageError(problem)
