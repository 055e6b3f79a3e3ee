"""Which ranks and hosts the others wait for.

A rank's *lateness* in a call is its entry minus that of the rank a quarter of the way from the first to the last, on
aligned clocks: so half of the ranks may be late, or three quarters, and show. It is known within the bound of the
rank's own clock plus the worst bound among the reference ranks; nothing below that is claimed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hpccoll.runs.health import Finding, Health
from hpccoll.runs.nodeset import fold_ranks
from hpccoll.runs.store import Store
from hpccoll.runs.tables import SYNCHRONISING
from hpccoll.units import format_time_us

__all__ = [
    "HostRow",
    "RankRow",
    "clock_findings",
    "host_rows",
    "rank_rows",
    "reference_ranks",
    "stragglers",
    "uncertainties",
]

_LEAST_ITERATIONS = 10
_MATTERS = 0.25
_LOOSE = 10  # a bound this many times the median one is of no use to the other ranks

# Per rank: samples, how often it came last, its lateness, its time in the calls by that of the median rank, and its
# lateness by the time of the call; the latter two are medians over the cases.
_RANKS = """
WITH each AS (
    SELECT s.rank, s.key, coalesce(s.start_ns - i.early_ns, 0) AS late, s.end_ns - s.start_ns AS took,
        s.start_ns = i.last_ns AS last, i.longest_ns
    FROM samples AS s JOIN iterations AS i USING (key, iteration) WHERE i.complete),
parts AS (
    SELECT rank, key, median(late) AS late, median(took) AS took, median(longest_ns) AS time
    FROM each GROUP BY rank, key),
middles AS (SELECT key, median(took) AS middle FROM parts GROUP BY key),
ratios AS (
    SELECT rank, median(took / greatest(middle, 1)) AS ratio, median(late / greatest(time, 1)) AS cost
    FROM parts JOIN middles USING (key) GROUP BY rank),
totals AS (
    SELECT rank, count(*) AS samples, count(*) FILTER (WHERE last) AS last, median(late) AS late
    FROM each GROUP BY rank)
SELECT rank, samples, last, late, ratio, cost FROM totals JOIN ratios USING (rank) ORDER BY rank
"""


@dataclass(frozen=True)
class RankRow:
    """How one rank arrives.

    Attributes
    ----------
    rank : int
    host : str
    samples : int
    lateness_us : float or None
        Median over all samples; None without an aligned clock.
    uncertainty_us : float or None
        Bound of the error of it.
    last_share : float
        Share of the iterations in which it came last.
    call_ratio : float
        Its median time in a call relative to that of the median rank, at best below 1 for a rank that is late:
        it does not wait.
    cost : float
        Lateness relative to the time of the call, the median over the cases.
    late : bool
        The lateness exceeds its uncertainty.
    straggler : bool
        Late, by a quarter of the time of the call or more, and in ten iterations at least.
    """

    rank: int
    host: str
    samples: int
    lateness_us: float | None
    uncertainty_us: float | None
    last_share: float
    call_ratio: float
    cost: float
    late: bool
    straggler: bool


@dataclass(frozen=True)
class HostRow:
    """The ranks of a host together: lateness is the median of the stragglers', or of all where there are none."""

    host: str
    ranks: int
    late: int
    stragglers: int
    lateness_us: float | None
    uncertainty_us: float | None
    last_share: float

    @property
    def text(self) -> str:
        """``node17: 8 of 8 ranks late by 1.2 ms``."""
        by = f" by {format_time_us(self.lateness_us)}" if self.lateness_us is not None else ""
        return f"{self.host}: {self.stragglers} of {self.ranks} ranks late{by}"


def uncertainties(store: Store, health: Health) -> dict[int, int]:
    """The largest bound that a rank's clock lines name, in ns; ranks whose clock was not aligned are not in it."""
    found = dict(
        store.rows("SELECT rank, max(uncertainty_ns) FROM others WHERE type = 'clock' GROUP BY rank")
    )
    for rank, manifest in health.manifests.items():
        clock = manifest["clock"]
        if isinstance(clock, dict) and isinstance(clock.get("uncertainty_ns"), int):
            found[rank] = max(found.get(rank, 0), clock["uncertainty_ns"])
    return {int(rank): int(bound) for rank, bound in found.items()}


def reference_ranks(bounds: dict[int, int]) -> list[int]:
    """Ranks whose clocks are good enough to tell when the others came."""
    if not bounds:
        return []
    limit = max(1000.0, _LOOSE * float(np.median(list(bounds.values()))))
    return sorted(rank for rank, bound in bounds.items() if bound <= limit)


def clock_findings(store: Store, bounds: dict[int, int]) -> list[Finding]:
    """Clocks that cannot be right: no rank leaves such a collective before the last has entered it.

    So all ranks are inside at one moment. A rank that by its clock was inside only before the median rank entered,
    or only after the median rank left, in most iterations, has a wrong clock. Needs the table `iterations`.
    """
    listed = ", ".join(f"'{name}'" for name in SYNCHRONISING)
    worst = max(bounds.values(), default=0)
    found = store.rows(
        f"""SELECT s.rank,
            count(*) FILTER (WHERE s.start_ns > i.middle_end_ns + {2 * worst} OR s.end_ns < i.middle_ns - {2 * worst}),
            count(*), median(s.start_ns - i.middle_ns)
        FROM samples AS s JOIN iterations AS i USING (key, iteration) JOIN cases AS c USING (key)
        WHERE i.complete AND c.collective IN ({listed}) GROUP BY s.rank ORDER BY s.rank"""
    )
    wrong = {rank: off for rank, bad, of, off in found if 2 * bad > of}
    if not wrong:
        return []
    shown = f"[{', '.join(f'{rank}: {format_time_us(off / 1e3)}' for rank, off in list(wrong.items())[:8])}]"
    text = (
        f"the clocks of ranks {fold_ranks(wrong)} are wrong (by about {shown}): they left before others had entered; "
        "nothing is said about when they came"
    )
    return [Finding("clock", len(wrong), text, tuple(wrong))]


def rank_rows(store: Store, health: Health, bounds: dict[int, int], wrong_clocks: set[int]) -> list[RankRow]:
    """One row for each rank with samples. Needs the table `iterations`, made with the reference ranks."""
    reference = [rank for rank in reference_ranks(bounds) if rank not in wrong_clocks]
    worst = max((bounds[rank] for rank in reference), default=0)
    rows = []
    for rank, samples, last, late_ns, call_ratio, cost in store.rows(_RANKS):
        known = rank in bounds and rank not in wrong_clocks and len(reference) > 1
        lateness = float(late_ns) / 1e3 if known else None
        bound = (bounds[rank] + worst) / 1e3 if known else None
        late = lateness is not None and bound is not None and lateness > bound
        rows.append(
            RankRow(
                rank=rank,
                host=health.host_of(rank),
                samples=samples,
                lateness_us=lateness,
                uncertainty_us=bound,
                last_share=last / samples,
                call_ratio=call_ratio,
                cost=cost if known else 0.0,
                late=late,
                straggler=late and cost >= _MATTERS and samples >= _LEAST_ITERATIONS,
            )
        )
    return rows


def stragglers(ranks: list[RankRow]) -> list[RankRow]:
    """The stragglers, the latest first."""
    return sorted((row for row in ranks if row.straggler), key=lambda row: -(row.lateness_us or 0.0))


def host_rows(ranks: list[RankRow]) -> list[HostRow]:
    """One row for each host, the latest first."""
    groups: dict[str, list[RankRow]] = {}
    for row in ranks:
        groups.setdefault(row.host, []).append(row)
    return sorted(_hosts(groups), key=lambda row: (-row.stragglers / row.ranks, -(row.lateness_us or 0.0)))


def _hosts(groups: dict[str, list[RankRow]]) -> Iterator[HostRow]:
    for host, rows in groups.items():
        them = [row for row in rows if row.straggler] or rows
        known = [row.lateness_us for row in them if row.lateness_us is not None]
        bounds = [row.uncertainty_us for row in rows if row.uncertainty_us is not None]
        yield HostRow(
            host=host,
            ranks=len(rows),
            late=sum(row.late for row in rows),
            stragglers=sum(row.straggler for row in rows),
            lateness_us=float(np.median(known)) if known else None,
            uncertainty_us=max(bounds, default=None),
            last_share=min(1.0, sum(row.last_share for row in rows)),
        )
