"""From directories to everything that is known of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpccoll.runs.health import Health, examine
from hpccoll.runs.lateness import (
    HostRow,
    RankRow,
    clock_findings,
    host_rows,
    rank_rows,
    reference_ranks,
    stragglers,
    uncertainties,
)
from hpccoll.runs.metrics import MetricRow, event_counts, metric_rows
from hpccoll.runs.reading import Progress, Reading, find_files, read_files
from hpccoll.runs.store import Store
from hpccoll.runs.tables import CaseRow, case_rows, fits, make_iterations

__all__ = ["Analysis", "analyse", "common_manifest"]


@dataclass(frozen=True)
class Analysis:
    """A run in tables."""

    reading: Reading
    health: Health
    cases: list[CaseRow]
    fits: list[dict[str, Any]]
    ranks: list[RankRow]
    hosts: list[HostRow]
    metrics: list[MetricRow]
    events: list[dict[str, Any]]

    @property
    def stragglers(self) -> list[RankRow]:
        """The latest rank first."""
        return stragglers(self.ranks)


def analyse(store: Store, directories: Sequence[Path], progress: Progress | None = None) -> Analysis:
    """Read the records of one run and work out its tables; `store` keeps the samples.

    Raises
    ------
    RunError
        There is nothing to read.
    """
    reading = read_files(store, find_files(directories), progress)
    health = examine(store, reading)
    bounds = uncertainties(store, health)
    reference = reference_ranks(bounds)
    make_iterations(store, health.present, reference)
    clocks = clock_findings(store, bounds)
    wrong = {rank for finding in clocks for rank in finding.ranks}
    if wrong:
        health.findings += clocks
        make_iterations(store, health.present, set(reference) - wrong)
    cases = case_rows(store, len(health.present), health.size)
    ranks = rank_rows(store, health, bounds, wrong)
    return Analysis(
        reading=reading,
        health=health,
        cases=cases,
        fits=fits(cases),
        ranks=ranks,
        hosts=host_rows(ranks),
        metrics=metric_rows(store),
        events=list(event_counts(store)),
    )


def common_manifest(health: Health) -> dict[str, Any]:
    """What the lowest rank's manifest says of all of them, with the hosts."""
    if not health.manifests:
        return {}
    first = health.manifests[min(health.manifests)]
    left_out = ("rank", "local_rank", "pid", "host", "clock")
    return {
        **{name: value for name, value in first.items() if name not in left_out},
        "hosts": list(health.hosts),
        "ranks_per_host": [len(ranks) for ranks in health.hosts.values()],
    }
