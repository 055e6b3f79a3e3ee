"""The tables against NumPy and SciPy on the same samples."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from synthetic_runs import Synthetic

from hpccoll.collect.terminal import tables
from hpccoll.records import rank_file
from hpccoll.runs.analysis import Analysis, analyse
from hpccoll.runs.store import Store
from hpccoll.runs.tables import BUSBW, busbw_factor


def collect(directory: Path) -> Analysis:
    with Store() as store:
        return analyse(store, [directory])


@pytest.mark.parametrize("mode", ["barrier", "window", "pipelined"])
def test_one_launch(tmp_path: Path, mode: str) -> None:
    run = Synthetic(iterations=200, mode=mode, engines=("numpy", "mpi4py"), spread=0.3)
    times = run.write(tmp_path)
    found = {(row.nbytes, row.engine): row for row in collect(tmp_path).cases}
    assert len(found) == 6
    for (_, size, engine), (entry, leave) in times.items():
        row = found[size, engine]
        expected = (
            leave.max(axis=0) - entry.min(axis=0) if mode == "window" else (leave - entry).max(axis=0)
        ) / 1e3
        assert row.iterations == 200
        assert row.time_us == pytest.approx(np.median(expected))
        assert row.time_min_us == pytest.approx(expected.min())
        assert row.time_max_us == pytest.approx(expected.max())
        assert row.time_p95_us == pytest.approx(np.percentile(expected, 95))
        assert row.time_p99_us == pytest.approx(np.percentile(expected, 99))
        assert row.cv == pytest.approx(stats.variation(expected, ddof=1))
        interval = stats.quantile_test(expected, p=0.5).confidence_interval(0.95)
        assert (row.ci_low_us, row.ci_high_us) == pytest.approx((interval.low, interval.high))
        assert row.algbw_gb_per_s == pytest.approx(size / row.time_us / 1e3)
        assert row.busbw_gb_per_s == pytest.approx(1.5 * size / row.time_us / 1e3)


def test_several_launches(tmp_path: Path) -> None:
    times = Synthetic(launches=5, launch_spread=0.05).write(tmp_path)
    for row in collect(tmp_path).cases:
        medians = [
            np.median((leave - entry).max(axis=0)) / 1e3
            for (_, size, _), (entry, leave) in times.items()
            if size == row.nbytes
        ]
        assert row.launch_us == pytest.approx(medians)
        assert row.time_us == pytest.approx(np.mean(medians))
        low, high = stats.t.interval(0.95, 4, np.mean(medians), stats.sem(medians))
        assert (row.ci_low_us, row.ci_high_us) == pytest.approx((low, high), rel=1e-4)


def test_batches(tmp_path: Path) -> None:
    def change(rank: int, lines: list[str]) -> list[str]:
        return [line.replace('"calls": 1', '"calls": 10') for line in lines]

    times = Synthetic(sizes=(8,)).write(tmp_path, change=change)
    (row,) = collect(tmp_path).cases
    ((entry, leave),) = times.values()
    assert row.calls == 10
    assert row.time_us == pytest.approx(np.median((leave - entry).max(axis=0)) / 1e4)


def test_histograms(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    samples = rng.lognormal(10, 0.5, 20_000)
    lower = np.unique((1.01 ** np.arange(600, 1600)).astype(int))
    counts = np.histogram(samples, np.append(lower, lower[-1] * 2))[0]
    used = np.flatnonzero(counts)
    histogram = {
        "type": "histogram", "rank": 0, "collective": "broadcast", "engine": "c", "nbytes": 64, "count": 16,
        "dtype": "float32", "op": None, "root": 0, "in_place": True, "mode": "barrier", "launch": 0, "ranks": 4,
        "calls": 1, "samples": int(counts.sum()), "relative_error": 0.01, "lower_ns": lower[used].tolist(),
        "upper_ns": np.append(lower, lower[-1] * 2)[used + 1].tolist(), "counts": counts[used].tolist(),
        "wrong": 3, "flags": "",
    }  # fmt: skip

    def change(rank: int, lines: list[str]) -> list[str]:
        end = json.loads(lines.pop())
        added = [json.dumps(histogram)] if rank == 0 else []
        return [*lines, *added, json.dumps({**end, "lines": len(lines) + len(added)})]

    Synthetic().write(tmp_path, change=change)
    found = collect(tmp_path)
    assert found.health.findings == []
    (row,) = [row for row in found.cases if row.source == "histogram"]
    assert (row.collective, row.engine, row.iterations, row.wrong, row.ranks) == (
        "broadcast",
        "c",
        20_000,
        3,
        4,
    )
    assert row.time_us == pytest.approx(np.median(samples) / 1e3, rel=0.01)
    assert row.time_p95_us == pytest.approx(np.percentile(samples, 95) / 1e3, rel=0.01)
    assert row.time_p99_us == pytest.approx(np.percentile(samples, 99) / 1e3, rel=0.02)


def test_bandwidth_factors_are_those_of_the_programs() -> None:
    names = ("allreduce", "broadcast", "reduce", "sendrecv")
    names += ("allgather", "gather", "scatter", "reduce_scatter", "alltoall")
    assert set(names) == set(BUSBW)
    for name in names:
        case = importlib.import_module(f"hpccoll.{name}").CASE
        for size in (2, 3, 16):
            assert busbw_factor(name, size) == pytest.approx(case.busbw(size))
    assert busbw_factor("barrier", 4) is busbw_factor("allreduce", 1) is None


def test_fit(tmp_path: Path) -> None:
    Synthetic(sizes=tuple(2**power for power in range(3, 24, 2)), spread=0.001).write(tmp_path)
    (fit,) = collect(tmp_path).fits
    (segment,) = fit["segments"]
    assert segment["alpha_us"] == pytest.approx(5, rel=0.05)
    assert segment["gb_per_s"] == pytest.approx(1, rel=0.02)


def test_metrics(tmp_path: Path) -> None:
    run = Synthetic(ranks=4, sizes=())
    for rank in range(4):
        metrics = [
            {
                "type": "metric", "rank": rank, "step": step, "unix_ns": step,
                "values": {"loss": 2.0 - step / 10 + rank / 100, "step_s": 0.5 if rank == 2 else 0.4, "bad": "nan"},
            }
            for step in range(10)
        ]  # fmt: skip
        lines = [*run.lines(rank, {}, end=False), *map(json.dumps, metrics)]
        end = {"type": "end", "rank": rank, "status": "ok", "ended": "x", "lines": len(lines)}
        (tmp_path / rank_file(rank)).write_text("\n".join([*lines, json.dumps(end)]) + "\n")
    found = collect(tmp_path)
    assert found.health.findings == []
    bad, loss, step = found.metrics
    assert (bad.name, bad.values, bad.not_finite, bad.median, bad.slowdown) == ("bad", 0, 40, None, None)
    assert (loss.ranks, loss.steps, loss.values) == (4, 10, 40)
    assert (loss.first, loss.last) == pytest.approx((2.015, 1.115))
    assert (step.high_rank, step.high, step.slowdown) == (2, 0.5, pytest.approx(1.25))
    assert step.by_rank == {0: 0.4, 1: 0.4, 2: 0.5, 3: 0.4}
    assert bad.by_rank == {}
    title, titles, rows = next(table for table in tables(found, 3) if "of 4 ranks" in table[0])
    assert title == "metrics of 4 ranks, median over the steps; the first 3, --json has all"
    assert titles == ("rank", "host", "loss", "step_s")
    assert [row[0] for row in rows] == ["0", "1", "2"]
    assert [float(row[2]) for row in rows] == pytest.approx([1.55, 1.56, 1.57])
    assert [float(row[3]) for row in rows] == [0.4, 0.4, 0.5]
