"""The harness of tests/mpi proves itself on small jobs; each property is shown to be missing without the plugin."""

from __future__ import annotations

import subprocess
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parent
LIMIT_S = 3.0
GRACE_S = 1.0

HEAD = """
import os, time
import pytest
from mpi4py import MPI
comm = MPI.COMM_WORLD
rank = comm.rank
"""


class Job(NamedTuple):
    status: int
    out: str
    err: str
    seconds: float
    dir: Path

    def cases(self, rank: int) -> dict[str, str]:
        """Test -> passed, failure, error or skipped, from the JUnit file of a rank."""
        root = ElementTree.parse(self.dir / f"suite.rank{rank}.xml").getroot()
        return {
            str(case.get("name")): next((child.tag for child in case if child.tag != "properties"), "passed")
            for case in root.iter("testcase")
        }

    def stacks(self, rank: int) -> str:
        return (self.dir / f"suite.rank{rank}.stacks").read_text()


def pytest_job(
    mpirun, path: Path, body: str, ranks: int = 2, plugin: bool = True, timeout_s: float = 60.0
) -> Job:
    path.mkdir(exist_ok=True)
    (path / "test_job.py").write_text(HEAD + body)
    options = ["-m", "pytest", "-p", "pytest_mpi", "--with-mpi", "-p", "no:cacheprovider", "--rootdir", path]
    options += [path / "test_job.py"]
    if plugin:
        options += ["-p", "mpi_plugin", "--mpi-junit-dir", path, "--mpi-suite", "suite"]
    else:
        (path / "conftest.py").write_text(
            "def pytest_configure(config):\n"
            "    from mpi4py import MPI\n"
            f"    config.option.xmlpath = {str(path)!r} + f'/suite.rank{{MPI.COMM_WORLD.rank}}.xml'\n"
            "pytest_configure.pytest_impl = {'tryfirst': True}\n"
        )
    environment = {
        "PYTHONPATH": f"{TESTS}:{TESTS.parent}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # half of the time that such a job takes
        "HPCCOLL_TEST_TIMEOUT_S": str(LIMIT_S),
        "HPCCOLL_TEST_GRACE_S": str(GRACE_S),
    }
    start = time.monotonic()
    done: subprocess.CompletedProcess[str] = mpirun(
        ranks, *options, env=environment, timeout_s=timeout_s, check=False, cwd=path
    )
    return Job(done.returncode, done.stdout, done.stderr, time.monotonic() - start, path)


# A job that the plugin aborts takes its start (seconds), the limit and the grace; the harness's own limit is 60 s.
SOON_S = 30.0

FAILS_ON_ONE = """
def test_before():
    comm.Barrier()
def test_one():
    assert rank != 1, "rank one is bad"
def test_after():
    comm.Barrier()
"""


def test_a_failure_on_one_rank_fails_the_test_on_all_and_stops(mpirun, tmp_path):
    job = pytest_job(mpirun, tmp_path / "with", FAILS_ON_ONE, ranks=3)
    assert job.status != 0
    for rank in range(3):
        assert job.cases(rank) == {"test_before": "passed", "test_one": "failure"}, f"rank {rank}"
    assert "call failed on rank 1 of 3:\n  rank 1: AssertionError: rank one is bad" in job.out
    assert "stopped after test_job.py::test_one" in job.out
    assert job.out.count("test session starts") == 1  # the other ranks print no progress
    assert "test_job.py::test_one (call) failed on rank 1:" in job.err

    without = pytest_job(mpirun, tmp_path / "without", FAILS_ON_ONE, plugin=False)
    assert without.cases(0)["test_one"] == "passed"
    assert "test_after" in without.cases(0)


SKIPS_ON_ONE = """
def test_one():
    if rank == 1:
        pytest.skip("not here")
"""


def test_a_skip_on_one_rank_only_is_a_failure(mpirun, tmp_path):
    job = pytest_job(mpirun, tmp_path / "with", SKIPS_ON_ONE)
    assert job.status != 0
    assert [job.cases(rank) for rank in range(2)] == [{"test_one": "failure"}] * 2
    assert "skipped on some ranks only" in job.out and "not here" in job.out

    without = pytest_job(mpirun, tmp_path / "without", SKIPS_ON_ONE, plugin=False)
    assert without.status == 0


FIXTURE_FAILS_ON_ONE = """
@pytest.fixture
def broken():
    yield
    if rank == 0:
        raise RuntimeError("no tear-down")
@pytest.fixture
def missing():
    if rank == 1:
        raise RuntimeError("no set-up")
def test_setup(FIXTURE):
    comm.Barrier()
def test_after():
    comm.Barrier()
"""


@pytest.mark.parametrize(
    ("fixture", "where"), [("missing", "setup failed on rank 1"), ("broken", "teardown failed on rank 0")]
)
def test_set_up_and_tear_down_have_a_joint_outcome_too(mpirun, tmp_path, fixture, where):
    job = pytest_job(mpirun, tmp_path, FIXTURE_FAILS_ON_ONE.replace("FIXTURE", fixture))
    assert job.status != 0
    assert [set(job.cases(rank)) for rank in range(2)] == [{"test_setup"}] * 2
    assert [job.cases(rank)["test_setup"] for rank in range(2)] == ["error"] * 2
    assert where in job.out


FAILS_WHILE_OTHERS_WAIT = """
def waits_for_rank_one():
    comm.Barrier()
def test_one():
    if rank == 1:
        raise ValueError("the reason is here")
    waits_for_rank_one()
"""
HANGS = """
def waits_for_rank_one():
    comm.Barrier()
def sleeps():
    time.sleep(1000)
def test_hang():
    if rank == 1:
        sleeps()
    waits_for_rank_one()
"""
KEEPS_THE_GIL = HANGS.replace("time.sleep(1000)", "sum(range(10**15))")
# All ranks: the daemon thread of the plugin cannot run on any of them.
ALL_KEEP_THE_GIL = """
def sleeps():
    sum(range(10**15))
def test_hang():
    sleeps()
"""


def aborted(job: Job, test: str) -> None:
    assert job.status != 0
    assert job.seconds < SOON_S
    for rank in range(2):
        assert job.cases(rank)[test] in ("failure", "error"), f"rank {rank}"


def test_a_failure_while_the_others_wait_is_shown_with_the_stacks_of_all(mpirun, tmp_path):
    job = pytest_job(mpirun, tmp_path / "with", FAILS_WHILE_OTHERS_WAIT)
    aborted(job, "test_one")
    assert "ValueError: the reason is here" in job.err
    assert "waits_for_rank_one" in job.stacks(0)
    assert "meet" in job.stacks(1)
    for part in ("stacks of rank 0 of 2", "stacks of rank 1 of 2", "waits_for_rank_one"):
        assert part in job.err

    with pytest.raises(pytest.fail.Exception, match="did not end within"):
        pytest_job(mpirun, tmp_path / "without", FAILS_WHILE_OTHERS_WAIT, plugin=False, timeout_s=LIMIT_S + 8)


@pytest.mark.parametrize("body", [HANGS, KEEPS_THE_GIL], ids=["in Python", "keeping the GIL"])
def test_a_hang_ends_within_the_limit_with_the_stacks_of_all(mpirun, tmp_path, body):
    job = pytest_job(mpirun, tmp_path, body)
    aborted(job, "test_hang")
    assert "waits_for_rank_one" in job.stacks(0)
    assert "sleeps" in job.stacks(1)
    assert "the limit of 3 s was over" in job.err
    assert "waits_for_rank_one" in job.err and "sleeps" in job.err


def test_a_hang_that_keeps_the_gil_on_every_rank_ends_too(mpirun, tmp_path):
    job = pytest_job(mpirun, tmp_path, ALL_KEEP_THE_GIL)
    aborted(job, "test_hang")
    assert "in sleeps" in job.err


def test_a_rank_that_leaves_the_session_ends_the_job(mpirun, tmp_path):
    body = (
        "def test_one():\n"
        "    if rank == 1:\n"
        "        raise KeyboardInterrupt\n"  # leaves the session of this rank
    )
    job = pytest_job(mpirun, tmp_path, body)
    assert job.status != 0
    assert job.seconds < SOON_S
    assert "aborting the test session" in job.err


EXITS = """
def test_exit():
    if rank == 1:
        os._exit(7)
    comm.Barrier()
"""


def test_a_rank_that_exits_ends_the_job_and_the_junit_files_say_where(mpirun, tmp_path):
    job = pytest_job(mpirun, tmp_path / "with", EXITS)
    assert job.status != 0
    assert job.seconds < SOON_S
    for rank in range(2):
        assert job.cases(rank) == {"test_exit": "error"}

    without = pytest_job(mpirun, tmp_path / "without", EXITS, plugin=False)
    assert not (without.dir / "suite.rank1.xml").exists()


COLLECTS_DIFFERENTLY = """
def test_one():
    pass
if rank == 1:
    def test_two():
        pass
"""
FAILS_TO_IMPORT_ON_ONE = """
def test_one():
    pass
if rank == 1:
    raise ImportError("no such thing here")
"""


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (COLLECTS_DIFFERENTLY, "on rank 1 only: test_job.py::test_two"),
        (FAILS_TO_IMPORT_ON_ONE, "errors on rank 1"),
    ],
    ids=["another test", "an import error"],
)
def test_ranks_that_collect_different_tests_run_none(mpirun, tmp_path, body, text):
    job = pytest_job(mpirun, tmp_path / "with", body)
    assert job.status != 0
    assert "did not collect the same tests" in job.out
    assert text in job.out
    for rank in range(2):
        assert "passed" not in job.cases(rank).values()
        assert "error" in job.cases(rank).values()

    without = pytest_job(mpirun, tmp_path / "without", body, plugin=False)
    assert without.cases(0) == {"test_one": "passed"}


def test_a_good_session_passes_on_all_ranks(mpirun, tmp_path):
    body = (
        "def test_one():\n    comm.Barrier()\n"
        "@pytest.mark.skip('everywhere')\ndef test_two():\n    raise AssertionError\n"
        "@pytest.mark.limit_s(10)\ndef test_longer_than_the_limit():\n    time.sleep(3.5)\n"
    )
    job = pytest_job(mpirun, tmp_path, body)
    assert job.status == 0, job
    expected = {"test_one": "passed", "test_two": "skipped", "test_longer_than_the_limit": "passed"}
    assert [job.cases(rank) for rank in range(2)] == [expected] * 2
    assert not list(tmp_path.glob("*.stacks"))
