"""python -m hpccoll.doctor: alone, under mpirun, and under the mpirun of another MPI."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Mpirun, launch_environment


def alone(*arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "hpccoll.doctor", *arguments],
        env={**launch_environment(1), **env},
        capture_output=True,
        text=True,
        timeout=120,
    )


def findings_of(done: "subprocess.CompletedProcess[str]") -> dict[str, dict[str, object]]:
    return {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}


def test_alone() -> None:
    done = alone("--json", "-")
    found = findings_of(done)
    assert found["MPI library"]["level"] == "ok", done.stderr
    assert {"mpirun", "slurm", "host name", "shared memory", "TMPDIR", "limits", "versions"} <= set(found)
    assert done.returncode in (0, 1)


def test_alone_without_an_mpi(tmp_path: Path) -> None:
    done = alone(MPI4PY_LIBMPI=str(tmp_path / "libmpi.so"))
    assert done.returncode == 3
    assert "mpi4py loads no MPI library" in done.stdout


def test_bad_options() -> None:
    for arguments in (["--hosts", "n[1"], ["--preflight", "0"], ["--nonsense"]):
        done = alone(*arguments)
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1


def test_on_two_ranks(mpirun: Mpirun, tmp_path: Path) -> None:
    file = tmp_path / "findings.json"
    done = mpirun(2, "-m", "hpccoll.doctor", "--json", file, check=False, timeout_s=120, cwd=tmp_path)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    told = json.loads(file.read_text())
    found = {finding["check"]: finding["level"] for finding in told["findings"]}
    for check in (
        "world",
        "allreduce",
        "broadcast",
        "shared directory",
        "clocks",
        "versions",
        "torch",
        "bandwidth",
    ):
        assert found[check] == "ok", done.stdout
    assert told["ranks"] == 2
    assert [place["ranks"] for place in told["hosts"]] == [[0, 1]]
    assert "ranks on CPUs" in done.stdout
    assert not list(tmp_path.glob(".hpccoll*"))


def test_preflight(mpirun: Mpirun, tmp_path: Path) -> None:
    right = mpirun(2, "-m", "hpccoll.doctor", "--preflight", "2", "--hosts", "1", cwd=tmp_path)
    assert "0 errors" in right.stdout
    wrong = mpirun(2, "-m", "hpccoll.doctor", "--preflight", "4", "--hosts", "2", check=False, cwd=tmp_path)
    assert wrong.returncode == 3
    assert "4 ranks were expected and 2 hosts were expected" in wrong.stdout


def test_mpirun_of_another_mpi() -> None:
    """Every process is rank 0 of 1; one of them says so."""
    other = os.environ.get("HPCCOLL_TEST_MPICH")
    if not other:
        if os.environ.get("HPCCOLL_TEST_REQUIRE") == "1":
            pytest.fail("HPCCOLL_TEST_MPICH names no environment with MPICH")
        pytest.skip("HPCCOLL_TEST_MPICH names no environment with MPICH")
    done = subprocess.run(
        [f"{other}/bin/mpirun", "-n", "3", sys.executable, "-m", "hpccoll.doctor"],
        env=launch_environment(3),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert done.stdout.count("each is rank 0 of 1") == 1
    assert "bin/mpirun -n 3" in done.stdout


def test_what_hangs_is_named(mpirun: Mpirun, tmp_path: Path) -> None:
    hang = tmp_path / "hang.py"
    hang.write_text(
        "import sys, time\n"
        "from hpccoll.doctor import __main__, together\n"
        "together._broadcast = lambda comm: time.sleep(600) if comm.rank else None\n"
        "sys.exit(__main__.main(['--timeout', '5']))\n"
    )
    done = mpirun(2, hang, check=False, timeout_s=60, cwd=tmp_path)
    assert done.returncode != 0
    assert "hangs in" in done.stderr
