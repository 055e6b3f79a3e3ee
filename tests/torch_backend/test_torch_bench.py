"""python -m hpccoll.torch_bench: every part runs and leaves its numbers."""

from __future__ import annotations

import json

import pytest

ARGUMENTS = ["--rounds", "1", "--min-bytes", "4", "--max-bytes", "1K", "--factor", "256"]


def test_parts_and_numbers(mpirun, tmp_path, entry_points):
    path = tmp_path / "all.json"
    parts = ["collectives", "overhead", "ddp"]
    chosen = [word for part in parts for word in ("--part", part)]
    found = mpirun(
        2, "-m", "hpccoll.torch_bench", *ARGUMENTS, *chosen, "--json", path, timeout_s=180,
        env={"PYTHONPATH": entry_points},
    )  # fmt: skip
    document = json.loads(path.read_text())
    assert document["format"] == "hpccoll.torch_bench/1"
    assert {row["nbytes"] for row in document["collectives"]} == {4, 1024}
    for row in [*document["collectives"], *document["ddp"]]:
        assert row["mpi_us"] > 0
        assert row["gloo_us"] > 0
        assert row["ratio"] == pytest.approx(row["gloo_us"] / row["mpi_us"])  # of the one round
    assert "2 ranks" in found.stdout
    assert "small MLP" in found.stdout


def test_overlap(mpirun, tmp_path, entry_points):
    path = tmp_path / "overlap.json"
    mpirun(
        2, "-m", "hpccoll.torch_bench", *ARGUMENTS, "--part", "overlap", "--json", path, timeout_s=180,
        env={"PYTHONPATH": entry_points},
    )  # fmt: skip
    rows = json.loads(path.read_text())["overlap"]
    assert len(rows) == 3
    for row in rows:
        total = row["compute_us"] + row["comm_us"]
        assert row["ratio"] == pytest.approx(row["step_us"] / total)
        shorter = min(row["compute_us"], row["comm_us"])
        assert row["hidden"] == pytest.approx((total - row["step_us"]) / shorter)
