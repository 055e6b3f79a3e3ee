"""The statistics of a run per collective, engine and bytes; the formulas are those of docs/methods.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from hpccoll.fit import Segment, fit_times
from hpccoll.runs.store import CASE, Store, select_list
from hpccoll.stats import has_two_modes, launch_interval, summarise
from hpccoll.units import rate_gb_per_s

__all__ = ["BUSBW", "CASE_KEY", "CaseRow", "busbw_factor", "case_rows", "fits", "make_iterations"]

CASE_KEY = tuple(name for name in CASE if name not in ("launch", "calls"))
"""What makes a case; launches of it are repetitions."""

_ONCE = ("broadcast", "reduce", "sendrecv")
_OTHERS = ("allgather", "gather", "scatter", "reduce_scatter", "alltoall")
BUSBW = {"allreduce": "2(n-1)/n", **dict.fromkeys(_ONCE, "1"), **dict.fromkeys(_OTHERS, "(n-1)/n")}
"""Factor between algbw and busbw, on n ranks."""

SYNCHRONISING = ("allreduce", "allgather", "alltoall", "reduce_scatter", "barrier")
"""Collectives that no rank may leave before the last has entered."""


def busbw_factor(collective: str, size: int) -> float | None:
    """What algbw is multiplied with; None where busbw means nothing."""
    kind = BUSBW.get(collective)
    if kind is None or size < 2:
        return None
    return {"1": 1.0, "(n-1)/n": (size - 1) / size, "2(n-1)/n": 2 * (size - 1) / size}[kind]


@dataclass(frozen=True)
class CaseRow:
    """A collective through an engine at one size.

    Attributes
    ----------
    collective, engine, nbytes, count, dtype, op, root, in_place, mode
        As in the records.
    flags : str
        ``oversubscribed``, ``unbound``, ``mixed-hosts``, with commas.
    ranks : int
        Ranks whose samples are in it.
    launches, iterations : int
        With complete samples; iterations are those of all launches.
    incomplete : int
        Iterations left out, because a rank that has records lacks its own or has it twice.
    calls : int
        In each sample.
    source : str
        ``samples`` or ``histogram``; a histogram has the durations of all ranks, not the times of the slowest.
    time_us, ci_low_us, ci_high_us : float or None
        Median over the samples, or with several launches the mean of their medians; with its 95 % interval.
    time_min_us, time_p95_us, time_p99_us, time_max_us, cv : float or None
    algbw_gb_per_s, busbw_gb_per_s : float or None
    wrong : int
        Samples, of any rank, with a wrong result.
    launch_us : tuple of float
        The median of each launch.
    multimodal : bool
        The samples of some launch fall into two groups; their median describes neither.
    """

    collective: str
    engine: str
    nbytes: int
    count: int
    dtype: str | None
    op: str | None
    root: int | None
    in_place: bool | None
    mode: str
    flags: str = ""
    ranks: int = 0
    launches: int = 0
    iterations: int = 0
    incomplete: int = 0
    calls: int = 1
    source: str = "samples"
    time_us: float | None = None
    ci_low_us: float | None = None
    ci_high_us: float | None = None
    time_min_us: float | None = None
    time_p95_us: float | None = None
    time_p99_us: float | None = None
    time_max_us: float | None = None
    cv: float | None = None
    algbw_gb_per_s: float | None = None
    busbw_gb_per_s: float | None = None
    wrong: int = 0
    launch_us: tuple[float, ...] = ()
    multimodal: bool = False

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes it comparable with a row of another run."""
        return tuple(getattr(self, name) for name in CASE_KEY)


def make_iterations(store: Store, present: Sequence[int], reference: Iterable[int]) -> None:
    """The table `iterations`: one row for each key and iteration, over all ranks.

    Parameters
    ----------
    present
        Ranks that have records; an iteration is `complete` if it has exactly one sample of each.
    reference
        Ranks whose clocks are good enough to say when the others came.
    """
    listed = ", ".join(map(str, reference)) or "NULL"
    every = len(present) == len(set(reference))
    where = "" if every else f" FILTER (WHERE rank IN ({listed}))"
    store.db.execute(
        f"""CREATE OR REPLACE TABLE iterations AS
        SELECT key, iteration,
            count(*) = {len(present)} AND sum(rank) = {sum(present)} AS complete,
            max(end_ns - start_ns) AS longest_ns,
            max(end_ns){where} - min(start_ns){where} AS span_ns,
            quantile_disc(start_ns, 0.25){where} AS early_ns,
            quantile_disc(start_ns, 0.5){where} AS middle_ns,
            quantile_disc(end_ns, 0.5){where} AS middle_end_ns,
            max(start_ns){where} AS last_ns,
            count(*) FILTER (WHERE NOT verified) AS wrong
        FROM samples GROUP BY key, iteration"""
    )


def case_rows(store: Store, ranks: int, size: int) -> list[CaseRow]:
    """Every case, in the order of collective, arguments, bytes and engine.

    Parameters
    ----------
    ranks
        How many have records.
    size
        How many there should be, for the bandwidth.
    """
    order = "collective, dtype, op, root, in_place, mode, nbytes, count, engine"
    names = select_list(CASE_KEY)
    keys = store.dicts(
        f"SELECT key, {names}, launch, calls, flags FROM cases ORDER BY {order}, launch, calls"
    )
    counts = {
        key: (incomplete, wrong)
        for key, incomplete, wrong in store.rows(
            "SELECT key, count(*) FILTER (WHERE NOT complete), sum(wrong)::BIGINT FROM iterations GROUP BY key"
        )
    }
    rows = []
    for _, group in groupby(keys, key=lambda item: tuple(item[name] for name in CASE_KEY)):
        parts = list(group)
        fixed = {name: parts[0][name] for name in CASE_KEY}
        launches: dict[int, list[np.ndarray]] = {}
        for part in parts:
            times = _times_us(store, part)
            if times.size:
                launches.setdefault(part["launch"], []).append(times)
        rows.append(
            _row(
                fixed,
                {number: np.concatenate(each) for number, each in launches.items()},
                size,
                flags=parts[0]["flags"],
                calls=parts[0]["calls"],
                ranks=ranks,
                incomplete=sum(counts[part["key"]][0] for part in parts),
                wrong=sum(counts[part["key"]][1] for part in parts),
            )
        )
    rows += _histogram_rows(store, size)
    return sorted(
        rows,
        key=lambda row: (row.collective, str(row.dtype), str(row.op), row.root or 0, row.mode, row.nbytes),
    )


def _times_us(store: Store, part: dict[str, Any]) -> np.ndarray:
    column = "span_ns" if part["mode"] == "window" else "longest_ns"
    found = store.arrays(
        f"SELECT {column} AS t FROM iterations WHERE key = {part['key']} AND complete ORDER BY iteration"
    )["t"]
    return np.asarray(found, np.float64) / part["calls"] / 1e3


def _row(fixed: dict[str, Any], launches: dict[int, np.ndarray], size: int, **rest: Any) -> CaseRow:
    if not launches:
        return CaseRow(**fixed, **rest)
    summary = summarise(np.concatenate(list(launches.values())))
    medians = [float(np.median(times)) for _, times in sorted(launches.items())]
    headline = launch_interval(np.array(medians)) if len(medians) > 1 else summary.median
    return CaseRow(
        **fixed,
        **rest,
        launches=len(launches),
        iterations=summary.samples,
        time_us=headline.value,
        ci_low_us=headline.low,
        ci_high_us=headline.high,
        time_min_us=summary.least,
        time_p95_us=summary.p95,
        time_p99_us=summary.p99,
        time_max_us=summary.most,
        cv=summary.cv,
        launch_us=tuple(medians),
        multimodal=any(has_two_modes(times) for times in launches.values()),
        **_bandwidth(fixed, headline.value, size),
    )


def _bandwidth(fixed: dict[str, Any], time_us: float, size: int) -> dict[str, Any]:
    rate = rate_gb_per_s(fixed["nbytes"], time_us) if fixed["nbytes"] else None
    factor = busbw_factor(fixed["collective"], size)
    return {
        "algbw_gb_per_s": rate,
        "busbw_gb_per_s": None if rate is None or factor is None else rate * factor,
    }


# ---- Histograms


def _histogram_rows(store: Store, size: int) -> Iterator[CaseRow]:
    """A row for each case that has histograms; launches are added up for the quantiles."""
    names = select_list(CASE_KEY)
    found = store.dicts(
        f"""SELECT {names}, launch, calls, flags, ranks, wrong, lower_ns::BIGINT[] AS lower_ns,
        upper_ns::BIGINT[] AS upper_ns, counts::BIGINT[] AS counts
        FROM others WHERE type = 'histogram' ORDER BY {names}, launch"""
    )
    for _, group in groupby(found, key=lambda item: tuple(item[name] for name in CASE_KEY)):
        parts = list(group)
        fixed = {name: parts[0][name] for name in CASE_KEY}
        usable = [part for part in parts if part["counts"]]
        rest = {
            "flags": parts[0]["flags"], "calls": parts[0]["calls"], "source": "histogram",
            "ranks": max(part["ranks"] for part in parts), "wrong": sum(part["wrong"] for part in parts),
        }  # fmt: skip
        if not usable:
            yield CaseRow(**fixed, **rest)
            continue
        middle = np.concatenate([np.add(part["lower_ns"], part["upper_ns"]) / 2e3 for part in usable])
        counts = np.concatenate([part["counts"] for part in usable])
        medians = [
            _quantile(np.add(part["lower_ns"], part["upper_ns"]) / 2e3, np.array(part["counts"]), 0.5)
            for part in usable
        ]
        headline = launch_interval(np.array(medians))
        yield CaseRow(
            **fixed,
            **rest,
            launches=len(usable),
            iterations=int(counts.sum()),
            time_us=headline.value,
            ci_low_us=headline.low,
            ci_high_us=headline.high,
            time_min_us=float(middle.min()),
            time_p95_us=_quantile(middle, counts, 0.95),
            time_p99_us=_quantile(middle, counts, 0.99),
            time_max_us=float(middle.max()),
            launch_us=tuple(medians),
            **_bandwidth(fixed, headline.value, size),
        )


def _quantile(middle: np.ndarray, counts: np.ndarray, share: float) -> float:
    """Middle of the bucket in which the quantile lies."""
    order = np.argsort(middle)
    upto = np.cumsum(counts[order])
    return float(middle[order][np.searchsorted(upto, share * upto[-1], side="left")])


# ---- Fits


def fits(rows: Iterable[CaseRow]) -> list[dict[str, Any]]:
    """time = alpha + beta * bytes for each collective, engine and arguments: see docs/methods.md."""
    names = tuple(name for name in CASE_KEY if name not in ("nbytes", "count"))
    groups: dict[tuple[Any, ...], list[CaseRow]] = {}
    for row in rows:
        if row.time_us is not None and row.nbytes:
            groups.setdefault(tuple(getattr(row, name) for name in names), []).append(row)
    found = []
    for key, its in groups.items():
        fit = fit_times([row.nbytes for row in its], [row.time_us or 0.0 for row in its])
        if fit is not None:
            found.append(
                {**dict(zip(names, key, strict=True)), "segments": [_segment(part) for part in fit.segments]}
            )
    return found


def _segment(part: Segment) -> dict[str, Any]:
    return {
        "first_nbytes": part.first_nbytes,
        "last_nbytes": part.last_nbytes,
        "points": part.points,
        "alpha_us": part.alpha_us,
        "us_per_byte": part.us_per_byte,
        "gb_per_s": part.gb_per_s,
        "residual": part.residual,
    }
