"""jobs/train_ddp.py as people start it: killed and going on, stopped by signals, refused; with its records."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Mpirun, launch_environment
from mpi_plugin import need

from hpccoll.records import read_records, record_files

torch = need("torch")
need("sklearn")

HERE = Path(__file__).parent
JOBS = HERE.parents[1] / "jobs"
KILLED = HERE / "programs" / "killed.py"
LIMIT_S = 150
# Three ranks: where two add up in any order, three have an order of their own.
RANKS = 3
STEPS, EVERY = 60, 10
SAVED = 75


def result(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def test_killed_at_any_moment_and_going_on(mpirun: Mpirun, tmp_path: Path) -> None:
    """The last of six runs has the same bits as one that was never stopped."""
    options = ("--steps", str(STEPS), "--checkpoint-every", str(EVERY), "--json")

    def run(*moment: object, directory: str) -> Any:
        arguments = (
            *map(str, moment),
            *options,
            tmp_path / f"{directory}.json",
            "--checkpoint-dir",
            tmp_path / directory,
        )
        return mpirun(RANKS, KILLED, *arguments, check=False, timeout_s=LIMIT_S)

    whole = run("never", 0, 0, directory="whole")
    assert whole.returncode == 0, whole.stdout + whole.stderr
    assert sorted(path.name for path in (tmp_path / "whole").iterdir()) == [
        "step-00000050.pt",
        "step-00000060.pt",
    ]

    chosen = random.randrange(EVERY + 2, 2 * EVERY)  # the checkpoint of step 10 is there, that of 20 is not
    chain = (
        (("step", chosen, random.randrange(RANKS)), 10),
        (("write", 1, 0), 10),
        (("rename", 2, 0), 20),
        (("renamed", 1, 0), 30),
        (("USR1", 4, 2), 34),
    )
    for moment, newest in chain:
        done = run(*moment, directory="killed")
        text = f"{moment} {done.stdout}{done.stderr}"
        assert done.returncode == SAVED if moment[0] == "USR1" else done.returncode not in (0, SAVED), text
        found = sorted((tmp_path / "killed").glob("step-*.pt"))
        assert found[-1].name == f"step-{newest:08d}.pt", text
    assert "SIGUSR1 after step 34 of 60" in done.stdout, done.stdout
    assert "recorder" not in done.stderr, "a stop that was planned needs no dump"
    assert "going on after step 30" in done.stdout, done.stdout
    last = run("never", 0, 0, directory="killed")
    assert last.returncode == 0, last.stdout + last.stderr
    assert "going on after step 34" in last.stdout
    assert result(tmp_path / "killed.json")["digest"] == result(tmp_path / "whole.json")["digest"], chain
    assert sorted(path.name for path in (tmp_path / "killed").iterdir()) == [
        "step-00000050.pt",
        "step-00000060.pt",
    ]


def test_other_backend_with_all_options(mpirun: Mpirun, tmp_path: Path) -> None:
    """gloo, bfloat16, parts; TERM on one rank; and the records of the run."""
    options = ("--backend", "gloo", "--compress", "bf16", "--accumulate", "3", "--epochs", "12")
    paths = (
        "--json",
        tmp_path / "result.json",
        "--log-dir",
        tmp_path / "runs",
        "--checkpoint-dir",
        tmp_path / "kept",
    )
    stopped = mpirun(2, KILLED, "TERM", "333", "1", *options, *paths, timeout_s=LIMIT_S, check=False)
    assert stopped.returncode == SAVED, stopped.stdout + stopped.stderr
    assert result(tmp_path / "result.json")["step"] == 333
    done = mpirun(2, JOBS / "train_ddp.py", *options, *paths, timeout_s=LIMIT_S)
    assert "going on after step 333" in done.stdout
    found = result(tmp_path / "result.json")
    assert found["step"] == 348
    assert found["accuracy"] >= 0.95
    again = mpirun(2, JOBS / "train_ddp.py", *options, *paths[-2:], timeout_s=LIMIT_S)
    told = "the checkpoint is at step 348, --epochs 12 ends at step 348: nothing to train\n"
    assert again.stdout.count(told) == 1

    first, second = sorted((tmp_path / "runs").iterdir())
    for directory, status, kind in ((first, "stopped", "stopped"), (second, "ok", "resumed")):
        files = record_files(directory)
        assert [path.name for path in files] == ["rank-00000.jsonl", "rank-00001.jsonl"]
        for rank, path in enumerate(files):
            lines = [line.record for line in read_records(path)]
            assert all(lines)
            kinds = [line["type"] for line in lines]
            assert kinds[0] == "manifest" and kinds[-1] == "end"
            assert lines[-1]["status"] == status
            assert [line["kind"] for line in lines if line["type"] == "event"] == (
                [kind] if rank == 0 else []
            )
            values = next(line["values"] for line in lines if line["type"] == "metric")
            assert {
                "loss",
                "samples_per_s",
                "step_s",
                "sync_busy_s",
                "sync_wait_s",
                "sync_wait_share",
            } == set(values)
            assert 0 < values["sync_wait_s"] <= values["step_s"]
            assert values["sync_wait_share"] < 1


def test_scaling(mpirun: Mpirun, tmp_path: Path) -> None:
    """Figures for 1, 2 and 3 ranks; whether they are good is nobody's claim here."""
    path = tmp_path / "scaling.json"
    options = ("--scaling", "5", "--batch-size", "16", "--json", path)
    done = mpirun(3, JOBS / "train_ddp.py", *options, timeout_s=LIMIT_S)
    assert len(done.stdout.splitlines()) == 4, done.stdout
    rows = json.loads(path.read_text())
    assert [row["ranks"] for row in rows] == [1, 2, 3]
    assert rows[0]["efficiency"] == 1
    assert all(row["efficiency"] > 0 and row["sync_wait_share"] > 0 for row in rows)


def alone(
    *options: str, program: Path = JOBS / "train_ddp.py", **env: str
) -> subprocess.CompletedProcess[str]:
    """One process, without a launcher."""
    return subprocess.run(
        [sys.executable, str(program), *options],
        env={**launch_environment(1), **env},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def test_help_needs_neither_mpi_nor_torch() -> None:
    code = f"""
import sys
sys.path.insert(0, {str(JOBS)!r})
import train_ddp
try:
    train_ddp.main(["--help"])
except SystemExit:
    pass
assert not {{"torch", "mpi4py", "numpy"}} & set(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=launch_environment(1), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "--checkpoint-dir" in done.stdout and "exit with status 75" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--backend", "nccl"), "--backend nccl is for GPUs: add --device cuda"),
        (("--without-ddp", "--backend", "mpi"), "--without-ddp uses no torch.distributed"),
        (("--batch-size", "0"), "must be 1 or more, got 0"),
        (("--bucket-mb", "nan"), "--bucket-mb must be more than 0"),
        (("--bucket-mb", "inf"), "--bucket-mb must be more than 0"),
        (("--lr", "nan"), "argument --lr: must be a number of 0 or more, got nan"),
        (("--momentum", "-1"), "argument --momentum: must be a number of 0 or more, got -1"),
        (("--json", "{tmp}/nowhere/result.json"), "nowhere/result.json: there is no directory"),
        (("--log-dir", "/dev/null"), "--log-dir /dev/null cannot be used"),
        (("--checkpoint-dir", "/dev/null"), "--checkpoint-dir /dev/null cannot be used"),
        (("--batch-size", "50", "--accumulate", "4"), "--batch-size 50 cannot be divided among 1 ranks"),
        (("--device", "cuda"), "a rank sees no GPU"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_refused(options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    if "cuda" in options and "nccl" not in options and torch.cuda.device_count():
        pytest.skip("there is a GPU")
    done = alone(*(option.format(tmp=tmp_path) for option in options))
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("train_ddp: error: ") and message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_refused_later(tmp_path: Path) -> None:
    """What only the data or the directory show; without torch.distributed."""
    often = ("--without-ddp", "--steps", "2", "--checkpoint-dir", str(tmp_path), "--resume")
    none = alone(*often, "require")
    assert none.returncode == 2 and "has no checkpoint to go on from" in none.stderr, none.stderr
    done = alone(*often, "never")
    assert done.returncode == 0, done.stderr
    there = alone(*often, "never")
    assert there.returncode == 2 and "has checkpoints, and --resume never was given" in there.stderr
    other = alone(*often, "auto", "--seed", "2")
    assert other.returncode == 2 and "was written with seed=1, and this run has 2" in other.stderr
    half = alone(*often, "auto", "--compress", "bf16")
    assert half.returncode == 2 and "was written with compress=None, and this run has bf16" in half.stderr


def test_without_scikit_learn(mpirun: Mpirun, tmp_path: Path) -> None:
    """Every rank ends, and one says what to install."""
    (tmp_path / "sklearn.py").write_text("raise ImportError('No module named sklearn')")
    home = f"{tmp_path}{os.pathsep}{launch_environment(2)['PYTHONPATH']}"
    done = mpirun(
        2, JOBS / "train_ddp.py", "--without-ddp", env={"PYTHONPATH": home}, check=False, timeout_s=LIMIT_S
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("pip install scikit-learn") == 1


def test_the_script_for_mpirun(tmp_path: Path) -> None:
    """Preflight, training with a time limit that stops it, the same command again, and the summary."""
    place = tmp_path / "with space"
    env = {
        **launch_environment(2),
        "PYTHON": sys.executable,
        "RESULTS": str(place),
        "RUN": "digits",
        "RANKS": "2",
        "OVERSUBSCRIBE": "1",
    }

    def script(*options: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(JOBS / "mpirun_ddp.sh"), *options],
            env={**env, **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * LIMIT_S,
        )

    # So many steps that the limit comes first, however fast the machine is.
    stopped = script("--", "--steps", "100000000", TIME_LIMIT="8")
    directory = place / "digits"
    assert stopped.returncode == SAVED, stopped.stdout + stopped.stderr
    assert "saved before the end" in (directory / "PARTIAL").read_text()
    assert not (directory / "COMPLETE").exists()
    step = result(directory / "result.json")["step"]
    assert step > 0
    assert (directory / "summary.txt").read_text().count("train_ddp, 2 of 2 ranks") == 1
    assert "train_ddp, 2 of 2 ranks" in stopped.stdout
    done = script("--", "--steps", str(step + 30))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (directory / "COMPLETE").exists() and not (directory / "PARTIAL").exists()
    assert (place / "LATEST").resolve() == directory.resolve()
    assert result(directory / "result.json")["step"] == step + 30
    summary = (directory / "summary.txt").read_text()
    assert summary.count("train_ddp, 2 of 2 ranks") == 2
    assert "metrics of 2 ranks, median over the steps" in summary
    assert f"going on after step {step}" in summary


@pytest.mark.parametrize("name", ["mpirun_ddp.sh", "slurm_ddp.sh"])
def test_help_of_the_scripts(name: str) -> None:
    done = subprocess.run(
        ["bash", str(JOBS / name), "--help"], capture_output=True, text=True, timeout=30, check=True
    )
    assert "jobs/train_ddp.py" in done.stdout and "-- --epochs 50" in done.stdout
    assert "SBATCH" not in done.stdout and "set -e" not in done.stdout
    without = subprocess.run(
        ["bash", str(JOBS / name)],
        env={"PATH": os.environ["PATH"], "PROGRAM": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert without.returncode == 2
    assert ("start it with sbatch" if name.startswith("slurm") else "there is no /nowhere") in without.stderr
