"""Clusters that are broken in one way each: the doctor names the fault, the host, and what to do."""

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster_support import ROOT, Cluster, Done

DOCTOR = ("-m", "hpccoll.doctor")


def findings(done: Done, file: Path) -> dict[str, dict[str, Any]]:
    """Findings by check, from the doctor's JSON."""
    assert file.exists(), done.text
    return {finding["check"]: finding for finding in json.loads(file.read_text())["findings"]}


def examine(
    cluster: Cluster, place: Path, *options: str, hosts: str = "node1:1,node2:1", **env: str
) -> dict[str, Any]:
    """The doctor on every host of `hosts`, over ssh."""
    file = place / "findings.json"
    ranks = len(hosts.split(","))
    done = cluster.launch(ranks, hosts, *DOCTOR, "--json", str(file), *options, **env)
    return findings(done, file)


@contextmanager
def spoilt(cluster: Cluster, node: str, spoil: str, mend: str) -> Iterator[None]:
    cluster.shell(spoil, host=node)
    try:
        yield
    finally:
        cluster.shell(mend, host=node)


def test_nothing_is_broken(cluster: Cluster, place: Path) -> None:
    found = examine(cluster, place, "--preflight", "2", "--hosts", "node1,node2")
    assert {finding["level"] for finding in found.values()} <= {"ok", "note"}, found


def test_mpirun_of_another_mpi(cluster: Cluster, place: Path, mpich: str) -> None:
    mpirun = str(Path(mpich).with_name("mpirun"))
    done = cluster.run(
        mpirun, "-n", "2", "-hosts", "node1,node2", sys.executable, *DOCTOR, "--preflight", "2"
    )
    assert done.status == 3, done.text
    assert "each is rank 0 of 1" in done.text
    assert f"fix:  start with {Path(sys.prefix, 'bin', 'mpirun')} -n 2" in done.text


def test_srun_without_pmi(cluster: Cluster) -> None:
    done = cluster.run("srun", "-N2", "-n2", "--mpi=none", sys.executable, *DOCTOR, "--preflight", "2")
    assert done.status in (3, 143), done.text  # 143: the first to end takes the other with it
    assert done.text.count("srun started 2 processes, and each is rank 0 of 1") == 1
    assert "srun --mpi=pmix" in done.text


def test_name_that_is_loopback(cluster: Cluster, place: Path) -> None:
    hosts = place / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.1.1 node2\n10.77.0.1 node1\n10.77.0.254 head\n")
    with spoilt(cluster, "node2", f"mount --bind {shlex.quote(str(hosts))} /etc/hosts", "umount /etc/hosts"):
        found = examine(cluster, place, "--preflight", "2")["host name"]
    assert (found["level"], found["hosts"]) == ("error", ["node2"])
    assert "127.0.1.1" in found["result"]
    assert "/etc/hosts" in found["fix"]


def test_tiny_shared_memory(cluster: Cluster, place: Path) -> None:
    size = "mount -o remount,size={} /dev/shm"
    with spoilt(cluster, "node2", size.format("2m"), size.format("2g")):
        found = examine(cluster, place, "--preflight", "2")["shared memory"]
    assert (found["level"], found["hosts"]) == ("error", ["node2"])
    assert "--shm-size" in found["fix"]


def test_different_versions(cluster: Cluster, place: Path) -> None:
    other = place / "_version.py"
    other.write_text('__version__ = "0.0.1"\n')
    installed = shlex.quote(str(ROOT / "hpccoll" / "_version.py"))
    spoil = f"mount --bind {shlex.quote(str(other))} {installed}"
    with spoilt(cluster, "node2", spoil, f"umount {installed}"):
        found = examine(cluster, place, "--preflight", "2")["versions"]
    assert found["level"] == "error"
    assert "0.0.1 on node2" in found["evidence"]


def test_no_ssh(cluster: Cluster, place: Path) -> None:
    empty = place / "keys"
    empty.touch()
    keys = cluster.base / "ssh" / "authorized_keys"
    with spoilt(cluster, "node2", f"mount --bind {shlex.quote(str(empty))} {keys}", f"umount {keys}"):
        file = place / "findings.json"
        done = cluster.run(sys.executable, *DOCTOR, "--hosts", "node1,node2", "--json", file)
    found = findings(done, file)["ssh"]
    assert (done.status, found["level"]) == (3, "error"), done.text
    assert "cannot enter node2 without" in found["result"]
    assert "Permission denied" in found["evidence"]


def test_slow_link(cluster: Cluster, place: Path) -> None:
    cluster.must("tbf", "node2", "10mbit")
    try:
        found = examine(cluster, place, hosts="node1:1,node2:1,node3:1")["bandwidth"]
    finally:
        cluster.must("tbf", "node2", "off")
    assert (found["level"], found["hosts"]) == ("warning", ["node2"]), found
    assert "Mbit/s" in found["result"]


def test_clock_that_is_off(cluster: Cluster, place: Path) -> None:
    """/tmp is each host's own, so that Python's clock is changed on one of them only."""
    skew = "import time\nreal = time.time\ntime.time = lambda: real() + 5\n"
    spoil = f"mkdir /tmp/skew && printf %s {shlex.quote(skew)} >/tmp/skew/sitecustomize.py"
    with spoilt(cluster, "node2", spoil, "rm -r /tmp/skew"):
        found = examine(cluster, place, "--preflight", "2", PYTHONPATH=f"{ROOT}:/tmp/skew")["clocks"]
    assert found["level"] == "warning"
    assert "differ by 5.0 s" in found["result"]
    assert "node2" in found["evidence"]


def test_long_tmpdir(cluster: Cluster, place: Path) -> None:
    long = place / ("long" * 10)
    long.mkdir()
    file = place / "findings.json"
    done = cluster.run(sys.executable, *DOCTOR, "--json", file, TMPDIR=str(long))
    found = findings(done, file)["TMPDIR"]
    assert (done.status, found["level"], found["fix"]) == (3, "error", "export TMPDIR=/tmp")


def test_directory_that_is_not_shared(cluster: Cluster, place: Path) -> None:
    for node in ("node1", "node2"):
        cluster.shell("mkdir -p /tmp/own", host=node)
    command = (
        f"cd /tmp/own && exec srun -Q -N2 -n2 --mpi=pmix {sys.executable} -m hpccoll.doctor --preflight 2"
    )
    done = cluster.run("sh", "-c", f"mkdir -p /tmp/own; {command}")
    assert done.status == 0, done.text  # a warning
    assert "/tmp/own is not the same directory on every host [node2]" in done.text


@pytest.mark.parametrize("asked", ["node1,node3", "3"])
def test_other_hosts_than_asked_for(cluster: Cluster, place: Path, asked: str) -> None:
    found = examine(cluster, place, "--preflight", "2", "--hosts", asked)["world"]
    assert found["level"] == "error"
