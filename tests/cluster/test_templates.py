"""The job templates on two and three hosts, with three MPIs and three ways to start."""

import re
import subprocess
import time
from pathlib import Path

import pytest
from cluster_support import DEBIAN_MPI, JOBS, Cluster, wait_until

QUICK = ("--", "-b", "8", "-e", "4K", "-f", "8", "-n", "5")
TWO = {"COLLECTIVES": "allreduce broadcast"}


@pytest.fixture(params=["wheel", "debian", "mpich"])
def mpi(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    """Name of the MPI, and the variables that choose it."""
    if request.param == "debian":
        assert DEBIAN_MPI.exists(), "bash tests/cluster/install.sh"
        return "debian", {"MPI4PY_LIBMPI": str(DEBIAN_MPI)}
    if request.param == "mpich":
        return "mpich", {"PYTHON": request.getfixturevalue("mpich")}
    return "wheel", {}


def check_results(directory: Path, text: str, hosts: list[str], ranks: int, mpi: str) -> None:
    """Ranks sat on every host, every result was verified, and every rank has left its records."""
    assert (directory / "COMPLETE").exists(), text
    assert not (directory / "PARTIAL").exists()
    a_host = ranks // len(hosts)
    for name in ("allreduce", "broadcast"):
        table = (directory / f"{name}.txt").read_text()
        named = " ".join(hosts).replace(" ", ", ")
        assert f"ranks {ranks} on {len(hosts)} hosts ({a_host} a host): {named}" in table, table
        assert "every result of every call verified on every rank" in table
        version = {"wheel": "Open MPI v5", "debian": "Open MPI v4", "mpich": "MPICH"}[mpi]
        assert version in table
        found = {path.name.partition(".")[0] for path in (directory / name).rglob("rank-*.jsonl*")}
        assert found == {f"rank-{rank:05d}" for rank in range(ranks)}
    summary = (directory / "summary.txt").read_text()
    assert summary.count(f"{ranks} of {ranks} ranks on {len(hosts)} hosts") == 2, summary


@pytest.mark.parametrize("launcher", ["auto", "mpirun"])
def test_slurm(cluster: Cluster, place: Path, mpi: tuple[str, dict[str, str]], launcher: str) -> None:
    name, env = mpi
    job = cluster.submit(
        place, "-o", "out", "-t", "3", JOBS / "slurm_bench.sh", *QUICK, **TWO, **env, LAUNCHER=launcher
    )
    done = cluster.wait_for_job(job, place / "out")
    assert (done.state, done.code) == ("COMPLETED", "0:0"), done.text
    check_results(place / "hpccoll-results" / job, done.text, ["node1", "node2"], 4, name)
    assert (place / "hpccoll-results" / "LATEST").resolve().name == job
    started = {"wheel": "srun --mpi=pmix", "debian": "srun --mpi=pmix", "mpich": "srun --mpi=pmi2"}[name]
    assert (started in done.text) == (launcher == "auto"), done.text


def test_ssh(cluster: Cluster, place: Path, mpi: tuple[str, dict[str, str]]) -> None:
    name, env = mpi
    command = ("bash", JOBS / "mpirun_bench.sh", *QUICK)
    done = cluster.run(
        *command, **TWO, **env, HOSTS="node1:2,node2:2", RESULTS=str(place / "results"), timeout_s=90
    )
    assert done.status == 0, done.text
    check_results(place / "results" / "LATEST", done.text, ["node1", "node2"], 4, name)


def test_three_hosts(cluster: Cluster, place: Path) -> None:
    options = ("-N", "3", "--ntasks-per-node=1", "-o", "out", "-t", "3")
    job = cluster.submit(place, *options, JOBS / "slurm_bench.sh", *QUICK, **TWO)
    done = cluster.wait_for_job(job, place / "out")
    check_results(place / "hpccoll-results" / job, done.text, ["node1", "node2", "node3"], 3, "wheel")
    command = ("bash", JOBS / "mpirun_bench.sh", *QUICK)
    run = cluster.run(*command, **TWO, HOSTS="node1,node2,node3", RESULTS=str(place / "over"), timeout_s=90)
    check_results(place / "over" / "LATEST", run.text, ["node1", "node2", "node3"], 3, "wheel")


def test_array_and_export(cluster: Cluster, place: Path) -> None:
    """The tasks of an array write to directories of their own, also with a clean environment."""
    exported = ",".join(
        f"{name}={cluster.env[name]}"
        for name in (
            "PYTHON",
            "PYTHONPATH",
            "OMPI_MCA_btl",
            "OMPI_ALLOW_RUN_AS_ROOT",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
        )
    )
    options = ("--array=3-4", "-o", "out-%a", f"--export=NONE,{exported},COLLECTIVES=allreduce")
    job = cluster.submit(place, *options, "-t", "3", JOBS / "slurm_bench.sh", *QUICK)
    for task in ("3", "4"):
        done = cluster.wait_for_job(f"{job}_{task}", place / f"out-{task}")
        assert done.state == "COMPLETED", done.text
        assert (place / "hpccoll-results" / f"{job}_{task}" / "COMPLETE").exists(), done.text


def test_requeue_goes_on(cluster: Cluster, place: Path) -> None:
    """What is measured is not measured again, and the output is appended to."""
    options = ("--requeue", "-o", "out", "-t", "3")
    job = cluster.submit(
        place,
        *options,
        JOBS / "slurm_bench.sh",
        "--",
        "-b",
        "8",
        "-e",
        "8",
        "-n",
        "3000",
        COLLECTIVES="allreduce broadcast",
    )
    directory = place / "hpccoll-results" / job
    wait_until((directory / "allreduce.done").exists, "the first collective")
    cluster.run("scontrol", "requeue", job)
    wait_until((directory / "PARTIAL").exists, "the end of the script")
    time.sleep(
        4
    )  # if it were started again sooner, the end of the first run would count as that of the second
    wait_until(lambda: cluster.state(job) == "PENDING", "the job to be queued again")
    time_of_first = (directory / "allreduce.done").stat().st_mtime
    # Slurm holds a requeued job back for two minutes.
    wait_until(
        lambda: cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now").status == 0,
        "a new start time",
    )
    done = cluster.wait_for_job(job, place / "out")
    assert done.state == "COMPLETED", done.text
    assert (directory / "allreduce.done").stat().st_mtime == time_of_first
    assert (directory / "broadcast.done").exists()
    assert (directory / "COMPLETE").exists()
    assert len(re.findall("srun --mpi=pmix for", done.text)) >= 4  # of both runs


def test_time_limit(cluster: Cluster, place: Path) -> None:
    """USR1 comes before the limit: what was measured is kept, and marked."""
    options = ("-o", "out", "-t", "2", "--signal=B:USR1@105")
    program = (JOBS / "slurm_bench.sh", "--", "-b", "8", "-e", "8", "-n", "100000000")
    job = cluster.submit(place, *options, *program, COLLECTIVES="allreduce broadcast")
    done = cluster.wait_for_job(job, place / "out", timeout_s=100)
    directory = place / "hpccoll-results" / job
    assert done.state == "FAILED", done.text
    assert done.code != "0:0"
    assert (directory / "PARTIAL").read_text() == "the time limit is near\n"
    assert not (directory / "COMPLETE").exists()
    assert "ranks 4 on 2 hosts" in (directory / "allreduce.txt").read_text()
    assert not cluster.left()


def test_without_slurm() -> None:
    done = subprocess.run(["bash", str(JOBS / "slurm_bench.sh")], capture_output=True, text=True, timeout=30)
    assert (done.returncode, "start it with sbatch" in done.stderr) == (2, True)
