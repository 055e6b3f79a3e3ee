"""Faults while a job runs: it ends soon, with a status that is not zero, keeps what it has, and names the host."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster_support import DEBIAN_MPI, JOBS, Cluster, wait_until

ENDLESS = ("--", "-b", "8", "-e", "8", "-n", "100000000")
# Until the last probe of a link that was cut; then launcher and ranks are asked, and killed.
ENDS_WITHIN_S = 30.0

Fault = Callable[[Cluster], None]


def kill_a_rank(cluster: Cluster) -> None:
    """SIGKILL to the program of a rank on node2."""
    # The wrapper of the rank has the program's words in its command line, too.
    cluster.shell("kill -9 $(pgrep -f 'python -m hpccoll[.]allreduce' | tail -n 1)", host="node2")


def kill_the_host(cluster: Cluster) -> None:
    cluster.must("kill-node", "node2")


def pull_the_link(cluster: Cluster) -> None:
    cluster.must("link", "node2", "down")


@pytest.fixture
def mended(cluster: Cluster) -> Iterator[None]:
    """node2 is in order again afterwards."""
    yield
    on = "node2 off" not in cluster.control("status").text
    if on:
        cluster.must("link", "node2", "up")
        cluster.control("resume", "node2", timeout_s=60)
    else:
        cluster.must("start-node", "node2")


def measuring(directory: Path) -> bool:
    """The first collective is under way: its header has been printed."""
    return any("ranks" in path.read_text() for path in directory.glob("*/allreduce.txt"))


OPEN_MPI_4 = {"MPI4PY_LIBMPI": str(DEBIAN_MPI)}


@pytest.mark.parametrize(
    ("fault", "env"),
    [
        (kill_a_rank, {}),
        (kill_the_host, {}),
        (pull_the_link, {}),
        (pull_the_link, OPEN_MPI_4),
    ],
    ids=["rank", "host", "link", "link-open-mpi-4"],
)
def test_over_ssh(cluster: Cluster, place: Path, mended: None, fault: Fault, env: dict[str, str]) -> None:
    """Where mpirun of Open MPI 5.0.11 alone exits 0, and that of 4.1.4 hangs."""
    log, results = place / "log", place / "results"
    process = cluster.start(
        "bash",
        JOBS / "mpirun_bench.sh",
        *ENDLESS,
        log=log,
        HOSTS="node1:1,node2:1",
        RESULTS=str(results),
        COLLECTIVES="allreduce",
        **env,
    )
    try:
        wait_until(lambda: measuring(results), "a measurement that has begun")
        time.sleep(0.5)
        began = time.monotonic()
        fault(cluster)
        status = process.wait(timeout=90)
    finally:
        end(process)
    took_s = time.monotonic() - began
    text = log.read_text(errors="replace")
    assert status not in (0, 124), text
    assert took_s < ENDS_WITHIN_S, text
    assert "allreduce failed" in text
    assert re.search(r"hpccoll launch: (lost )?ranks? [\d, ]+on node2", text), text
    (directory,) = [path for path in results.iterdir() if not path.is_symlink()]
    assert (directory / "PARTIAL").read_text() == "allreduce failed\n"
    assert "ranks 2 on 2 hosts" in (directory / "allreduce.txt").read_text()
    if fault is not kill_the_host:
        cluster.must("link", "node2", "up")
    assert not cluster.left(), text


def end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        process.wait()


def test_killed_rank_in_slurm(cluster: Cluster, place: Path, mended: None) -> None:
    job = cluster.submit(
        place,
        "-o",
        "out",
        "-t",
        "3",
        "--no-requeue",
        JOBS / "slurm_bench.sh",
        *ENDLESS,
        COLLECTIVES="allreduce",
    )
    wait_until(lambda: measuring(place / "hpccoll-results"), "a measurement that has begun")
    began = time.monotonic()
    kill_a_rank(cluster)
    done = cluster.wait_for_job(job, place / "out")
    assert time.monotonic() - began < ENDS_WITHIN_S
    assert done.state == "FAILED", done.text
    # Slurm's PMIx ends the step at once, mostly before the rank's wrapper can say how its program ended.
    assert re.search(r"hpccoll launch: (lost )?ranks? [\d, ]+on node2", done.text), done.text
    assert (place / "hpccoll-results" / job / "PARTIAL").exists()


def test_killed_host_in_slurm(cluster: Cluster, place: Path, mended: None) -> None:
    job = cluster.submit(
        place,
        "-o",
        "out",
        "-t",
        "3",
        "--no-requeue",
        JOBS / "slurm_bench.sh",
        *ENDLESS,
        COLLECTIVES="allreduce",
    )
    wait_until(lambda: measuring(place / "hpccoll-results"), "a measurement that has begun")
    directory = place / "hpccoll-results" / job
    kill_the_host(cluster)
    # Slurm itself holds the job until it has given up the host.
    wait_until((directory / "PARTIAL").exists, "the end of the script", ENDS_WITHIN_S)
    done = cluster.wait_for_job(job, place / "out")
    assert done.state in ("FAILED", "NODE_FAIL"), done.text
    assert re.search(r"hpccoll launch: lost ranks? [\d, ]+on node2", done.text), done.text
    assert "ranks 4 on 2 hosts" in (directory / "allreduce.txt").read_text()


def test_full_disk(cluster: Cluster, place: Path) -> None:
    """The results' directory, as node1 sees it, has no room; the job says so instead of losing the results."""
    results = place / "results"
    results.mkdir()
    quoted = shlex.quote(str(results))
    cluster.shell(f"mount -t tmpfs -o size=16k tmpfs {quoted}", host="node1")
    try:
        options = ("-o", "out", "-t", "3", "-w", "node1,node2", JOBS / "slurm_bench.sh")
        sweep = ("--", "-b", "1", "-e", "1M", "-n", "2")
        job = cluster.submit(place, *options, *sweep, RESULTS=str(results))
        done = cluster.wait_for_job(job, place / "out")
        kept = cluster.shell(f"cat {quoted}/*/allreduce.txt", host="node1")
    finally:
        cluster.shell(f"umount {quoted}", host="node1")
    assert done.state == "FAILED", done.text
    assert "No space left on device" in done.text
    assert "node1" in done.text
    assert "ranks 4 on 2 hosts" in kept
    assert os.path.isdir(results)


def test_interrupted(cluster: Cluster, place: Path) -> None:
    """Ctrl-C comes to the shell and to the launcher; both end in order."""
    log, results = place / "log", place / "results"
    command = ["setsid", "bash", str(JOBS / "mpirun_bench.sh"), *ENDLESS]
    process = cluster.start(
        *command, log=log, HOSTS="node1:1,node2:1", RESULTS=str(results), COLLECTIVES="allreduce"
    )
    try:
        wait_until(lambda: measuring(results), "a measurement that has begun")
        leader = cluster.shell("pgrep -of '^bash .*mpirun_bench[.]sh'").strip()
        cluster.shell(f"kill -INT -{leader}")
        status = process.wait(timeout=60)
    finally:
        end(process)
    assert status not in (0, 124), log.read_text()
    assert "interrupted" in log.read_text()
    assert not cluster.left()


def test_program_of_a_user(cluster: Cluster, place: Path) -> None:
    """A plain MPI program, launched with output files: one per rank, and its own status."""
    program = place / "my program.py"
    program.write_text(
        "import sys\nfrom mpi4py import MPI\n"
        "c = MPI.COMM_WORLD\nprint(c.rank, MPI.Get_processor_name())\nc.Barrier()\nsys.exit(7 * (c.rank == 3))\n"
    )
    out = place / "out put"
    command = (
        sys.executable,
        "-m",
        "hpccoll.launch",
        "-n",
        "4",
        "--hosts",
        "node1:2,node2:2",
        "--output-dir",
        out,
    )
    done = cluster.run(*command, "--", program)
    assert done.status == 7, done.text
    assert "rank 3 on node2 ended with status 7" in done.text
    lines = [(out / f"rank-{rank:05d}.out").read_text() for rank in range(4)]
    assert lines == ["0 node1\n", "1 node1\n", "2 node2\n", "3 node2\n"]
