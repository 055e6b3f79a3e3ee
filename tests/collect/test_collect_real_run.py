"""What a program measured and what the collector finds in its records are the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpccoll.collect.program import main
from hpccoll.runs.analysis import Analysis, analyse
from hpccoll.runs.store import Store

Mpirun = Callable[..., Any]
SWEEP = ("-m", "hpccoll.allreduce", "-b", "8", "-e", "8K", "-f", "32", "-n", "30", "--engine", "numpy,mpi4py")


def collect(directory: Path) -> Analysis:
    with Store() as store:
        return analyse(store, [directory])


@pytest.mark.parametrize(
    "words",
    [
        ("--launches", "2"),
        ("--mode", "window"),
        ("--mode", "pipelined", "--batch", "5"),
        ("--writers", "node", "--batch", "1"),
    ],
    ids=lambda words: " ".join(words),
)
def test_the_collector_agrees_with_the_program(
    mpirun: Mpirun, tmp_path: Path, words: tuple[str, ...]
) -> None:
    document = tmp_path / "document.json"
    mpirun(2, *SWEEP, *words, "--log-dir", tmp_path / "logs", "--json", document, timeout_s=120)
    rows = {(row["engine"], row["nbytes"]): row for row in json.loads(document.read_text())["rows"]}
    found = collect(tmp_path / "logs")
    assert found.health.findings == []
    assert found.health.size == 2
    assert len(found.health.manifests) == 2
    assert {(row.engine, row.nbytes) for row in found.cases} == set(rows)
    for row in found.cases:
        expected = rows[row.engine, row.nbytes]
        assert (row.iterations, row.launches, row.calls) == (
            expected["iterations"],
            expected["launches"],
            expected["batch"],
        )
        if row.mode == "window":  # the program and the records interpolate the clocks at different times
            assert row.time_us == pytest.approx(expected["time_us"], rel=0.02, abs=0.5)
            continue
        names = (
            "time_us",
            "ci_low_us",
            "ci_high_us",
            "time_min_us",
            "time_max_us",
            "time_p95_us",
            "busbw_gb_per_s",
        )
        for name in names:
            if expected[name] is None:
                assert getattr(row, name) is None, name
                continue
            # Aligned clocks run at rank 0's pace, the program's durations at that of each rank.
            assert getattr(row, name) == pytest.approx(expected[name], rel=1e-3, abs=0.05), name
        assert row.flags == expected["flags"]


def test_a_run_with_histograms(mpirun: Mpirun, tmp_path: Path) -> None:
    mpirun(2, *SWEEP, "--max-samples", "10", "--log-dir", tmp_path, timeout_s=120)
    found = collect(tmp_path)
    assert found.health.findings == []
    assert {row.source for row in found.cases} == {"histogram"}
    assert all(row.time_us and row.iterations for row in found.cases)


def test_a_killed_rank_is_unfinished(mpirun: Mpirun, tmp_path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from mpi4py import MPI
from hpccoll.records import RecordWriter, make_end, make_manifest, make_metric, rank_file
comm = MPI.COMM_WORLD
with RecordWriter(Path(sys.argv[1], "run", rank_file(comm.rank))) as log:
    log.write(make_manifest("train", run="r", rank=comm.rank, size=comm.size))
    for step in range(20):
        log.write(make_metric(comm.rank, step=step, values={"loss": 1 / (step + 1)}))
        comm.Barrier()
        if step == 9 and comm.rank == 1:
            os.kill(os.getpid(), 9)
    log.write(make_end(comm.rank, status="ok", lines=log.lines))
"""
    done = mpirun(2, "-c", code, tmp_path, check=False)
    assert done.returncode
    found = collect(tmp_path / "run")
    assert {item.kind for item in found.health.findings} == {"unfinished"}
    assert 1 in found.health.findings[0].ranks
    assert found.metrics[0].values >= 19
    assert main([str(tmp_path / "run"), "--strict"]) == 1
