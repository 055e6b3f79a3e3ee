"""How programs on the backend begin and end; the programs are in jobs/lifecycle.py."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

JOB = Path(__file__).parent / "jobs" / "lifecycle.py"


@pytest.fixture
def job(entry_points, mpirun):
    """``job(n, scenario, ...)`` runs one under mpirun and returns it with the seconds that it took."""

    def run(n, *args, check=True, env=None, timeout_s=60):
        started = time.monotonic()
        found = mpirun(
            n, JOB, *args, check=check, timeout_s=timeout_s, env={"PYTHONPATH": entry_points, **(env or {})}
        )
        found.seconds = time.monotonic() - started
        return found

    return run


def alone(entry_points, *args, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_COMM", "PMI", "SLURM"))}
    return subprocess.run(
        [sys.executable, str(JOB), *args],
        env={**clean, "PYTHONPATH": entry_points, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_unmodified_program(job):
    lines = job(3, "plain").stdout.splitlines()
    assert sorted(lines) == [f"rank {rank} of 3: 3 by mpi" for rank in range(3)]


def test_without_autoload_and_without_a_launcher(entry_points):
    found = alone(entry_points, "plain")
    assert found.stdout == "rank 0 of 1: 1 by mpi\n", found.stderr
    found = alone(entry_points, "plain", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert found.stdout == "rank 0 of 1: 1 by mpi\n", found.stderr


def test_every_name_and_again(job):
    assert job(2, "by_every_name").stdout.count("rank done") == 2


def test_gloo_meets_over_mpi(job):
    assert sorted(job(4, "gloo_over_mpi").stdout.splitlines()) == [
        f"rank {rank}: 16 by gloo" for rank in range(4)
    ]


def test_wrong_launcher_is_told(entry_points):
    """Open MPI's library under the variables of MPICH's mpirun: N processes that each are alone."""
    found = alone(entry_points, "plain", PMI_RANK="1", PMI_SIZE="4")
    assert found.returncode != 0
    assert "LaunchError" in found.stderr
    assert "started 4 processes" in found.stderr


@pytest.mark.parametrize(
    "args", [["groups_alive"], ["work_pending"], ["work_pending", "destroy"]], ids=" ".join
)
def test_ends_well_with_things_left(job, args):
    found = job(2, *args)
    assert found.stdout.count("end") == 2
    assert found.seconds < 45


def test_ends_when_nobody_joins(job):
    found = job(2, "nobody_joins", check=False, env={"HPCCOLL_EXIT_TIMEOUT_S": "2"})
    assert found.stdout.count("end") == 2
    assert found.returncode != 0
    assert "still pending" in found.stderr


def test_an_exception_ends_the_job_with_its_traceback(job):
    found = job(3, "one_raises", check=False)
    assert found.returncode != 0
    assert "ValueError: rank 1 is broken" in found.stderr
    assert 'in one_raises\n    raise ValueError("rank 1 is broken")' in found.stderr
    assert "rank 1 of 3" in found.stderr
    assert "never here" not in found.stdout
    found = job(2, "one_raises_in_a_thread", check=False)
    assert found.returncode != 0
    assert "ZeroDivisionError" in found.stderr


def test_a_caught_exception_is_over(job):
    assert job(2, "exception_is_caught").stdout.count("caught") == 2


def test_a_timeout_ends_the_job_with_its_error(job):
    found = job(3, "times_out", check=False)
    assert found.returncode != 0
    assert "DistBackendError: all_reduce, sequence number 1" in found.stderr
    assert "Timed out after 1 s" in found.stderr
    assert "ranks 0-2" in found.stderr
    assert found.seconds < 30


def test_a_caught_timeout_does_not_hang_at_the_end(job):
    found = job(3, "times_out_and_goes_on", check=False)
    assert found.stdout.count("Timed out after 1 s") == 2
    assert found.seconds < 40
    assert found.returncode != 0  # the rank that hangs has to be ended
    for args in (["all_time_out_and_go_on"], ["all_time_out_and_go_on", "destroy"]):
        found = job(3, *args)
        assert found.stdout.count("caught") == 3
        assert found.seconds < 30


@pytest.mark.parametrize("args", [["default_limit"], ["default_limit", "async"]], ids=" ".join)
def test_the_watcher_ends_a_job_that_is_stuck(job, args):
    found = job(2, *args, check=False)
    assert found.returncode != 0
    assert "all_reduce, sequence number 1, on rank 1" in found.stderr
    assert "has been running for more than 1 s" in found.stderr
    assert found.seconds < 40


def test_data_loader_workers(job):
    assert job(2, "workers", timeout_s=90).stdout.count("workers done") == 2


@pytest.mark.large
def test_more_than_two_to_the_31_elements(job):
    assert job(2, "large", timeout_s=300).stdout.count("large done") == 2
