"""Runs that never were, with faults that are known."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hpccoll.records import SCHEMA, node_file, rank_file

RUN = "allreduce-20300102T030405Z-812345"


@dataclass
class Synthetic:
    """A run whose every sample follows from a seed.

    Attributes
    ----------
    late_us : dict
        How much later than the others a rank enters each call.
    clock_us : dict
        What a rank's clock is wrong by.
    uncertainty_ns : int
        What every rank but rank 0 claims.
    factor : float
        Of every time.
    """

    ranks: int = 4
    per_host: int = 2
    sizes: Sequence[int] = (8, 1024, 1048576)
    engines: Sequence[str] = ("numpy",)
    iterations: int = 50
    launches: int = 1
    mode: str = "barrier"
    seed: int = 0
    factor: float = 1.0
    spread: float = 0.05
    launch_spread: float = 0.0
    late_us: dict[int, float] = field(default_factory=dict)
    clock_us: dict[int, float] = field(default_factory=dict)
    uncertainty_ns: int = 500
    run: str = RUN
    manifest: dict[str, Any] = field(default_factory=dict)

    def host(self, rank: int) -> str:
        return f"node{rank // self.per_host + 1:02d}"

    def manifest_of(self, rank: int, **changes: Any) -> dict[str, Any]:
        uncertainty = self.uncertainty_ns if rank else 0
        return {
            "type": "manifest", "rank": rank, "schema": SCHEMA, "run": self.run, "program": "allreduce",
            "size": self.ranks, "local_rank": rank % self.per_host, "host": self.host(rank), "pid": 1000 + rank,
            "argv": ["allreduce"], "started": "2030-01-02T03:04:05Z",
            "versions": {"hpccoll": "0.1.0", "python": "3.11", "numpy": "2", "torch": None, "mpi": "MPI X 1"},
            "launcher": None, "job": {"system": "Slurm", "id": "812345"}, "cores": 64, "affinity": [0, 1],
            "environment": {"OMP_NUM_THREADS": "1"}, "git": None,
            "clock": {"time_ns": 0, "offset_ns": 0, "drift_ppm": 0.0, "uncertainty_ns": uncertainty, "unix_ns": 0},
            "flags": "", **self.manifest, **changes,
        }  # fmt: skip

    def cases(self) -> Iterable[tuple[int, int, str]]:
        return (
            (launch, size, engine)
            for launch in range(self.launches)
            for size in self.sizes
            for engine in self.engines
        )

    def times(self) -> dict[tuple[int, int, str], tuple[np.ndarray, np.ndarray]]:
        """Entries and exits in true time (ns), of shape (ranks, iterations), by launch, size and engine.

        A collective that waits for all: every rank leaves when the last has entered and the time of the call is over.
        """
        rng = np.random.default_rng(self.seed)
        found = {}
        begin = 1_000_000.0
        for launch, size, engine in self.cases():
            noise = rng.normal(1, self.launch_spread) if self.launch_spread else 1.0
            base_us = (5 + size / 1e3) * (1.3 if engine != self.engines[0] else 1.0) * self.factor * noise
            starts = begin + np.arange(self.iterations) * 1e3 * (base_us * 4 + 50)
            entry = starts + rng.uniform(0, 100, (self.ranks, self.iterations))
            for rank, late in self.late_us.items():
                entry[rank] += late * 1e3
            call = base_us * 1e3 * rng.lognormal(0, self.spread, self.iterations)
            leave = entry.max(axis=0) + call + rng.uniform(0, 50, (self.ranks, self.iterations))
            found[launch, size, engine] = entry.astype(np.int64), leave.astype(np.int64)
            begin = float(leave.max()) + 1e6 + 1e3 * sum(self.late_us.values())
        return found

    def lines(self, rank: int, times: dict[Any, Any], end: bool = True, **changes: Any) -> list[str]:
        """Every line of a rank."""
        found = [json.dumps(self.manifest_of(rank, **changes))]
        shift = int(self.clock_us.get(rank, 0) * 1e3)
        for (launch, size, engine), (entry, leave) in times.items():
            head = json.dumps({
                "type": "sample", "rank": rank, "collective": "allreduce", "engine": engine, "nbytes": size,
                "count": size // 4, "dtype": "float32", "op": "sum", "root": None, "in_place": False,
                "mode": self.mode, "launch": launch,
            })[:-1]  # fmt: skip
            for i, (a, b) in enumerate(zip(entry[rank].tolist(), leave[rank].tolist(), strict=True)):
                found.append(
                    f'{head}, "iteration": {i}, "calls": 1, "start_ns": {a + shift}, "end_ns": {b + shift}, '
                    '"verified": true, "flags": ""}'
                )
        if end:
            found.append(
                json.dumps(
                    {
                        "type": "end",
                        "rank": rank,
                        "status": "ok",
                        "ended": "2030-01-02T03:05:05Z",
                        "lines": len(found),
                    }
                )
            )
        return found

    def write(
        self,
        directory: Path,
        leave_out: Iterable[int] = (),
        change: Callable[[int, list[str]], list[str]] | None = None,
        by_node: bool = False,
    ) -> dict[tuple[int, int, str], tuple[np.ndarray, np.ndarray]]:
        """Write the files, one per rank or per node; returns the true times."""
        directory.mkdir(parents=True, exist_ok=True)
        times = self.times()
        left_out = set(leave_out)
        for rank in range(self.ranks):
            if rank in left_out:
                continue
            lines = self.lines(rank, times)
            if change is not None:
                lines = change(rank, lines)
            name = node_file(rank // self.per_host) if by_node else rank_file(rank)
            with open(directory / name, "a", encoding="utf-8", errors="surrogateescape") as stream:
                stream.write("".join(line + "\n" for line in lines))
        return times
