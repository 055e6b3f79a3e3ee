"""python -m hpccoll.launch: from the options to the job, on this host."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import find_mpirun, launch_environment

from hpccoll.bench.options import UsageError
from hpccoll.errors import ArgumentError
from hpccoll.launch.__main__ import choose, resolve_program
from hpccoll.launch.commands import Job
from hpccoll.probe import Mpi

OPEN_MPI = Mpi("Open MPI", 5, "Open MPI v5.0.11", "/venv/lib/libmpi.so.40", "/venv/bin/mpirun")
JOB = Job(2, ("/bin/true",))


def launch(*arguments: object, cwd: Path | None = None, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "hpccoll.launch", *map(str, arguments)],
        env={**launch_environment(1), **env},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_two_ranks_of_this_mpi(tmp_path: Path) -> None:
    program = tmp_path / "a program.py"
    program.write_text(
        "import os\nfrom mpi4py import MPI\nc = MPI.COMM_WORLD\n"
        "print(c.allreduce(c.rank), c.size, os.environ['HPCCOLL_MINE'], 'HPCCOLL_LAUNCH_REPORT' in os.environ)\n"
    )
    done = launch("-n", 2, "--oversubscribe", "--", "a program.py", cwd=tmp_path, HPCCOLL_MINE="yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["1 2 yes False"] * 2
    assert find_mpirun() in done.stderr


def test_status_and_output_files(tmp_path: Path) -> None:
    code = "import sys; from mpi4py import MPI; c = MPI.COMM_WORLD; print(c.rank); c.Barrier(); sys.exit(4 * c.rank)"
    out = tmp_path / "o u t"
    done = launch("-n", 2, "--oversubscribe", "--output-dir", out, "--", sys.executable, "-c", code)
    assert done.returncode == 4, done.stderr
    assert "rank 1 on" in done.stderr
    assert [(out / f"rank-0000{rank}.out").read_text() for rank in (0, 1)] == ["0\n", "1\n"]


def test_an_aborted_job_keeps_its_status() -> None:
    code = "import time; from mpi4py import MPI; c = MPI.COMM_WORLD; c.rank and c.Abort(9); time.sleep(60)"
    done = launch("-n", 2, "--oversubscribe", "--", sys.executable, "-c", code)
    assert done.returncode == 9, done.stderr


def test_the_printed_command_runs(tmp_path: Path) -> None:
    code = "from mpi4py import MPI; print('size', MPI.COMM_WORLD.size)"
    done = launch("-n", 2, "--oversubscribe", "--dry-run", "--", sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    assert shlex.split(done.stdout)[-3:] == [sys.executable, "-c", code]
    run = subprocess.run(
        ["sh", "-c", done.stdout], env=launch_environment(2), capture_output=True, text=True, timeout=120
    )
    assert run.stdout.splitlines() == ["size 2"] * 2, run.stderr


def test_more_ranks_than_cores_only_when_asked() -> None:
    done = launch("-n", 10_000, "--dry-run", "--", "true")
    assert done.returncode == 2
    assert "10000 ranks need 10000 cores" in done.stderr
    assert "--oversubscribe" in done.stderr
    said = launch("-n", 10_000, "--dry-run", "--oversubscribe", "--", "true")
    assert said.returncode == 0
    assert "10000 ranks share" in said.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-n", "2"], "no program"),
        (["-n", "0", "--", "true"], "at least 1"),
        (["--", "true"], "-n"),
        (["-n", "2", "--", "no-such-program"], "no program 'no-such-program'"),
        (["-n", "2", "--hosts", "a:x", "--", "true"], "number of ranks"),
        (["-n", "9", "--hosts", "a:4", "--", "true"], "the hosts take 4 (a:4)"),
        (["-n", "2", "--hostfile", "/no/such/file", "--", "true"], "--hostfile"),
        (["-n", "2", "--timeout", "-1", "--", "true"], "more than 0 seconds"),
        (["-n", "1", "--launcher", "srun", "--", "true"], "inside a Slurm job"),
    ],
)
def test_bad_options(arguments: list[str], words: str) -> None:
    done = launch(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_not_under_a_launcher() -> None:
    done = launch("-n", 2, "--", "true", OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="4")
    assert done.returncode == 2
    assert "run it once" in done.stderr


def test_choice_of_the_launcher() -> None:
    inside = {"SLURM_JOB_ID": "1"}
    assert choose("auto", JOB, OPEN_MPI, {}, [])[0].argv[0] == "/venv/bin/mpirun"
    assert choose("auto", JOB, OPEN_MPI, inside, ["pmix"])[0].argv[:2] == ("srun", "--mpi=pmix")
    assert choose("auto", JOB, OPEN_MPI, inside, ["pmi2"])[0].argv[0] == "/venv/bin/mpirun"
    assert choose("mpirun", JOB, OPEN_MPI, inside, ["pmix"])[0].argv[0] == "/venv/bin/mpirun"
    with pytest.raises(ArgumentError, match="srun offers pmi2, and Open MPI v5"):
        choose("srun", JOB, OPEN_MPI, inside, ["pmi2"])


def test_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").touch()
    env = {"PATH": os.defpath}
    assert resolve_program(["-m", "mod", "-a"], env) == ((sys.executable, "-m", "mod", "-a"), sys.executable)
    assert resolve_program(["x.py", "1"], env)[0] == (sys.executable, str(tmp_path / "x.py"), "1")
    python = tmp_path / "python3.11"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    assert resolve_program(["./python3.11", "-c", ""], env) == ((str(python), "-c", ""), str(python))
    assert Path(resolve_program(["sh"], env)[0][0]).is_absolute()
    with pytest.raises(UsageError, match=r"no program 'y\.py'"):
        resolve_program(["y.py"], env)
