"""A link of known bandwidth, and one of known delay: the programs measure them within 15 %."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_support import Cluster


def measure(cluster: Cluster, place: Path, *program: str) -> dict[str, float]:
    file = place / "rows.json"
    done = cluster.launch(2, "node1:1,node2:1", "-m", *program, "--no-progress", "--json", str(file))
    assert done.status == 0, done.text
    row: dict[str, float] = json.loads(file.read_text())["rows"][-1]
    return row


def test_bandwidth(cluster: Cluster, place: Path) -> None:
    cluster.must("tbf", "node1", "100mbit")
    try:
        row = measure(cluster, place, "hpccoll.broadcast", "-b", "4M", "-e", "4M", "-n", "5", "-w", "1")
    finally:
        cluster.must("tbf", "node1", "off")
    assert row["busbw_gb_per_s"] == pytest.approx(0.0125, rel=0.15)


def test_latency(cluster: Cluster, place: Path) -> None:
    """Back to back, since the ranks leave a barrier apart by up to the delay, and wait for one another in turn.

    Behind a barrier the slowest rank's time is twice the delay; then that is what has to be measured.
    """
    shown = subprocess.run(
        [sys.executable, "-m", "hpccoll.sendrecv", "--help"], capture_output=True, text=True, timeout=60
    )
    back_to_back = "--mode" in shown.stdout
    options = ("--mode", "pipelined") if back_to_back else ()
    cluster.must("delay", "node1", "5")
    try:
        row = measure(
            cluster, place, "hpccoll.sendrecv", "-b", "8", "-e", "8", "-n", "40", "-w", "5", *options
        )
    finally:
        cluster.must("delay", "node1", "off")
    assert row["time_us"] == pytest.approx(5000 if back_to_back else 10_000, rel=0.15)
