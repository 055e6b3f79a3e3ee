"""jobs/slurm_ddp.sh: before the time limit it saves, queues itself again, and goes on."""

import json
import time
from pathlib import Path

from cluster_support import JOBS, Cluster, wait_until
from mpi_plugin import need

need("torch")
need("sklearn")


def test_saves_and_queues_itself_again(cluster: Cluster, place: Path) -> None:
    options = ("-N", "2", "--ntasks-per-node=1", "-o", "out", "-t", "5")
    program = ("--", "--steps", "100000000", "--checkpoint-every", "50")
    job = cluster.submit(
        place, *options, JOBS / "slurm_ddp.sh", *program, RUN="digits", PROGRAM=str(JOBS / "train_ddp.py")
    )
    directory = place / "hpccoll-results" / "digits"
    checkpoints = directory / "checkpoints"

    def printed() -> str:
        return (place / "out").read_text(errors="replace") if (place / "out").exists() else ""

    wait_until(
        lambda: list(checkpoints.glob("step-*.pt")) or "failed" in printed(), "a checkpoint", timeout_s=120
    )
    assert list(checkpoints.glob("step-*.pt")), printed()
    # What Slurm does 120 s before the limit.
    cluster.run("scancel", "--signal=USR1", "--batch", job)
    wait_until(lambda: "queued again" in printed(), "the job to save", timeout_s=60)
    wait_until(lambda: cluster.state(job) == "PENDING", "the job to be queued again")
    assert "the time limit is near" in (directory / "PARTIAL").read_text(), printed()
    assert "SIGUSR1 after step" in printed()
    step = json.loads((directory / "result.json").read_text())["step"]
    assert (checkpoints / f"step-{step:08d}.pt").exists()
    # Slurm holds a requeued job back for two minutes, in which what is left of it ends: started in the same
    # second, it fails before its first line.
    assert not cluster.left()
    time.sleep(5)
    moved = cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    assert moved.status == 0, moved.text
    wait_until(lambda: f"going on after step {step} from" in printed(), "the job to go on", timeout_s=240)
    # Cancelled, it saves as well, and stays away.
    cluster.run("scancel", "--signal=TERM", "--batch", job)
    done = cluster.wait_for_job(job, place / "out")
    assert (done.state, done.code) == ("FAILED", "75:0"), done.text
    assert "the job was cancelled: saved before the end; RUN=digits" in (directory / "PARTIAL").read_text()
    # Another job, of the same name, ends it.
    last = json.loads((directory / "result.json").read_text())["step"] + 20
    job = cluster.submit(
        place,
        *("-N", "2", "--ntasks-per-node=1", "-o", "out2", "-t", "5", JOBS / "slurm_ddp.sh", "--"),
        *("--steps", str(last)),
        RUN="digits",
        PROGRAM=str(JOBS / "train_ddp.py"),
    )
    done = cluster.wait_for_job(job, place / "out2", timeout_s=150)
    assert (done.state, done.code) == ("COMPLETED", "0:0"), done.text
    assert (directory / "COMPLETE").exists()
    assert (directory / "summary.txt").read_text().count("2 of 2 ranks on 2 hosts") == 3
    assert not cluster.left()
