"""What jobs of the user's own wrote: numbers of each step, by name and rank; and events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpccoll.runs.store import Store

__all__ = ["MetricRow", "event_counts", "metric_rows"]


@dataclass(frozen=True)
class MetricRow:
    """One number of a job over steps and ranks.

    Attributes
    ----------
    name : str
        With its unit, as the job calls it.
    ranks, steps : int
    values : int
        Finite ones.
    not_finite : int
        ``nan`` and ``inf``.
    median, first, last : float or None
        Over all values; the median over ranks at the first and at the last step.
    low_rank, low, high_rank, high
        The ranks with the least and the largest median over their steps.
    slowdown : float or None
        `high` relative to the median rank.
    by_rank : dict
        The median over its steps of each rank that has one.
    """

    name: str
    ranks: int
    steps: int
    values: int
    not_finite: int
    median: float | None
    first: float | None
    last: float | None
    low_rank: int | None
    low: float | None
    high_rank: int | None
    high: float | None
    slowdown: float | None
    by_rank: dict[int, float]


def metric_rows(store: Store) -> list[MetricRow]:
    """One row for each name, by name."""
    store.db.execute(
        """CREATE OR REPLACE TEMP TABLE numbers AS
        SELECT rank, step, entry.key AS name, TRY_CAST(entry.value AS DOUBLE) AS value FROM (
            SELECT rank, step, unnest(map_entries(from_json("values", '"MAP(VARCHAR, VARCHAR)"'))) AS entry
            FROM metrics)"""
    )
    per_rank: dict[str, list[tuple[int, float]]] = {}
    for name, rank, middle in store.rows(
        "SELECT name, rank, median(value) FROM numbers WHERE isfinite(value) GROUP BY name, rank ORDER BY name, rank"
    ):
        per_rank.setdefault(name, []).append((rank, middle))
    ends = {
        (name, step): middle
        for name, step, middle in store.rows(
            """SELECT name, step, median(value) FROM numbers JOIN
            (SELECT name, min(step) AS a, max(step) AS b FROM numbers GROUP BY name) USING (name)
            WHERE step IN (a, b) AND isfinite(value) GROUP BY name, step"""
        )
    }
    return [
        _row(name, rest, per_rank.get(name, []), ends)
        for name, *rest in store.rows(
            "SELECT name, count(DISTINCT rank), count(DISTINCT step), count(*) FILTER (WHERE isfinite(value)),"
            " count(*), median(value) FILTER (WHERE isfinite(value)), min(step), max(step)"
            " FROM numbers GROUP BY name ORDER BY name"
        )
    ]


def _row(
    name: str, rest: list[Any], medians: list[tuple[int, float]], ends: dict[tuple[str, int], float]
) -> MetricRow:
    ranks, steps, finite, every, middle, first, last = rest
    low = min(medians, key=lambda item: item[1], default=(None, None))
    high = max(medians, key=lambda item: item[1], default=(None, None))
    of_ranks = float(np.median([value for _, value in medians])) if medians else 0.0
    return MetricRow(
        name=name,
        ranks=ranks,
        steps=steps,
        values=finite,
        not_finite=every - finite,
        median=middle,
        first=ends.get((name, first)),
        last=ends.get((name, last)),
        low_rank=low[0],
        low=low[1],
        high_rank=high[0],
        high=high[1],
        slowdown=high[1] / of_ranks if high[1] is not None and of_ranks > 0 else None,
        by_rank=dict(medians),
    )


def event_counts(store: Store) -> Iterator[dict[str, Any]]:
    """Events by level and kind: how many, on how many ranks, and the text of the first."""
    yield from store.dicts(
        """SELECT level, kind, count(*) AS events, list_sort(list(DISTINCT rank)) AS ranks,
        arg_min(text, (unix_ns, rank)) AS first FROM others WHERE type = 'event'
        GROUP BY level, kind ORDER BY level, events DESC, kind"""
    )
