"""From the measurements of a row, one for each launch, to the row of the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hpccoll.bench.case import Case
from hpccoll.bench.measuring import Arrival, Measurement
from hpccoll.bench.results import Failure, Row
from hpccoll.bench.stats import launch_interval, ratio_interval, summarise
from hpccoll.environment import hostname
from hpccoll.units import rate_gb_per_s

__all__ = ["complete_row", "join_failures", "set_ratios"]

_MOST_FAILURES = 8


def complete_row(row: Row, case: Case, launches: Sequence[Measurement], size: int) -> Row:
    """`row`, which has the independent variables, with what was measured; without `failures` and `wrong`."""
    kept = [found for found in launches if found.skipped is None]
    row = replace(row, late_starts=sum(found.late_starts for found in launches), launches=len(launches))
    if not kept:
        return replace(row, skipped=launches[0].skipped)
    samples = summarise(np.concatenate([found.times_us for found in kept]))
    headline = samples.median
    if len(launches) > 1:
        headline = launch_interval(np.array([np.median(found.times_us) for found in kept]))
    rate = rate_gb_per_s(row.nbytes, headline.value) if row.nbytes else None
    return replace(
        row,
        launches=len(kept),
        iterations=samples.samples,
        batch=kept[0].batch,
        warmup=kept[0].warmup,
        time_us=headline.value,
        ci_low_us=headline.low,
        ci_high_us=headline.high,
        time_min_us=samples.least,
        time_p95_us=samples.p95,
        time_p99_us=samples.p99,
        time_max_us=samples.most,
        cv=samples.cv,
        algbw_gb_per_s=rate,
        busbw_gb_per_s=None if rate is None or size == 1 else rate * case.busbw(size),
        **_arrival([found.arrival for found in kept if found.arrival is not None]),
    )


def _arrival(launches: Sequence[Arrival]) -> dict[str, Any]:
    """Of the launch in which one rank stood out most."""
    if not launches:
        return {}
    worst = max(launches, key=lambda arrival: arrival.share)
    return {
        "last_rank": worst.rank,
        "last_share": worst.share,
        "last_after_us": worst.after_us,
        "clock_uncertainty_us": worst.uncertainty_us,
    }


def set_ratios(rows: list[Row], engines: Sequence[Sequence[Measurement]]) -> list[Row]:
    """The rows of several engines at one size, with their ratio to the first.

    Parameters
    ----------
    engines
        For each row the measurements of its launches.
    """
    base = engines[0]
    if rows[0].skipped is not None or len(rows) == 1:
        return rows
    found = []
    for row, its in zip(rows, engines, strict=True):
        pairs = [(a, b) for a, b in zip(its, base, strict=True) if a.skipped is None and b.skipped is None]
        if row.skipped is not None or not pairs:
            found.append(row)
            continue
        if len(pairs) > 1:
            ratios = [np.nanmedian(a.rounds_us / b.rounds_us) for a, b in pairs]
            interval = launch_interval(np.array(ratios))
        else:
            above, below = pairs[0][0].rounds_us, pairs[0][1].rounds_us
            both = ~(np.isnan(above) | np.isnan(below))
            if not both.any():
                found.append(row)
                continue
            interval = ratio_interval(above[both], below[both])
        found.append(replace(row, ratio=interval.value, ratio_low=interval.low, ratio_high=interval.high))
    return found


def join_failures(row: Row, launches: Sequence[Measurement], control: Any) -> Row:
    """The row with the wrong elements over all ranks, the first of each, and the host of the last rank. Collective."""
    wrong = [item for found in launches for item in found.wrong]
    mine = sum(item.count for item in wrong)
    if row.last_rank is not None:
        row = replace(row, last_host=control.bcast(hostname(), row.last_rank))
    total = control.allreduce(mine)
    if not total:
        return row
    first = Failure(control.rank, hostname(), mine, wrong[0].text) if wrong else None
    failures = [failure for failure in control.allgather(first) if failure is not None]
    return replace(row, wrong=total, failures=failures[:_MOST_FAILURES])
