"""``hpccoll overhead --recorder``: each method with the recorder and without it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from conftest import Mpirun, launch_environment
from mpi_plugin import need


def test_on_against_off(mpirun: Mpirun, tmp_path: Path) -> None:
    need("torch")
    path = tmp_path / "rows.json"
    options = ["--sizes", "8", "--rounds", "2", "--collectives", "allreduce", "barrier", "--json", str(path)]
    mpirun(2, "-m", "hpccoll.overhead", "--recorder", *options, timeout_s=100)
    rows = [(row["collective"], row["engine"]) for row in json.loads(path.read_text())["rows"]]
    kinds = [("allreduce", kind) for kind in ("numpy", "torch", "dist")] + [
        ("barrier", "numpy"),
        ("barrier", "torch"),
    ]
    assert rows == [(name, engine) for name, kind in kinds for engine in (f"{kind}, off", kind)]


def test_without_the_recorder() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hpccoll.overhead", "--recorder"],
        env={**launch_environment(1), "HPCCOLL_RECORDER": "0"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "HPCCOLL_RECORDER=0" in done.stderr
