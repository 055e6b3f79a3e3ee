"""Jobs that hang, fail or are signalled: what they leave behind, and how they end."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Mpirun, launch_environment
from mpi_plugin import need

from hpccoll.recorder import dump

JOBS = Path(__file__).parent / "jobs"
LIMIT = {"HPCCOLL_TIMEOUT_S": "1.5"}
EXIT_STATUS = 76
FOUND = "recorder and stacks are in "


def dumps_in(directory: Path) -> dict[int, dict[str, Any]]:
    return {
        dump["rank"]: dump for path in directory.glob("rank*.json") for dump in [json.loads(path.read_text())]
    }


class Job:
    """A run of ``jobs/broken.py`` and what it has left."""

    def __init__(self, mpirun: Mpirun, tmp_path: Path, *args: str, program: str = "broken.py", **env: str):
        directory = tmp_path / "dumps"
        self.done = mpirun(
            2,
            JOBS / program,
            *args,
            env={"HPCCOLL_DUMP_DIR": str(directory), **env},
            check=False,
            cwd=tmp_path,
            timeout_s=50,
        )
        self.status, self.stdout, self.stderr = self.done.returncode, self.done.stdout, self.done.stderr
        self.dumps = dumps_in(directory)
        self.reasons = {rank: dump["reason"] for rank, dump in sorted(self.dumps.items())}
        self.left = sorted(path.name for path in tmp_path.iterdir())

    def last(self, rank: int) -> dict[str, Any]:
        return self.dumps[rank]["operations"][-1]  # type: ignore[no-any-return]


def test_an_infinite_loop_on_one_rank(mpirun: Mpirun, tmp_path: Path) -> None:
    job = Job(mpirun, tmp_path, "loop", **LIMIT)
    assert job.status == EXIT_STATUS, job.stderr
    assert job.reasons == {0: "timeout", 1: "peer"}
    last = job.last(0)
    assert (last["comm"], last["seq"], last["method"], last["state"]) == ("world", 4, "barrier", "running")
    assert last["function"] == "loop"
    assert last["site"].startswith(str(JOBS / "broken.py:"))
    assert job.last(1)["seq"] == 3
    assert job.dumps[0]["exit_status"] == EXIT_STATUS
    assert job.dumps[1]["exit_status"] is None
    assert {dump["run"] for dump in job.dumps.values()} == {job.dumps[0]["run"]}
    main = next(stack for stack in job.dumps[1]["stacks"] if stack["thread"] == "MainThread")
    assert main["frames"][-1]["function"] == "loop"
    assert not any("watchdog" in stack["thread"] for stack in job.dumps[1]["stacks"])
    [world] = [each for each in job.dumps[0]["communicators"] if each["id"] == "world"]
    assert (world["ranks"], world["issued"], world["completed"]) == ("0-1", 4, 3)
    [line] = [line for line in job.stderr.splitlines() if line.startswith("hpccoll: ")]
    for part in ("rank 0 of 2", "barrier", "broken.py:", "1.5 s", f"hpccoll.diagnose {tmp_path / 'dumps'}"):
        assert part in line


def test_a_rank_that_has_come_to_its_end(mpirun: Mpirun, tmp_path: Path) -> None:
    job = Job(mpirun, tmp_path, "early", **LIMIT)
    assert job.status == EXIT_STATUS, job.stderr
    assert job.reasons == {0: "timeout", 1: "exit"}
    assert (
        job.dumps[1]["operations"][-1]["method"] == "allreduce"
    )  # waiting at the end is none of the program's
    assert [each["id"] for each in job.dumps[1]["communicators"]] == ["MPI_COMM_WORLD", "world"]


@pytest.mark.parametrize("what", ["raises", "thread_raises"])
def test_an_exception(mpirun: Mpirun, tmp_path: Path, what: str) -> None:
    job = Job(mpirun, tmp_path, what, **LIMIT)
    assert job.status == EXIT_STATUS, job.stderr
    assert job.reasons == {0: "timeout", 1: "exception"}
    assert job.dumps[1]["message"] in ("ValueError: of rank 1", "KeyError: 'in a thread'")
    assert "Traceback" in job.dumps[1]["exception"]
    assert job.dumps[1]["message"].partition(":")[0] in job.stderr  # Python's own report stays


def test_an_exception_that_ends_the_job(mpirun: Mpirun, tmp_path: Path) -> None:
    """Together with abort_on_exception, whose hooks take the place of all others."""
    program = (
        "import hpccoll as hc; comm = hc.world(); hc.abort_on_exception(); comm.barrier()\n"
        "if comm.rank: 1/0\n"
        "comm.barrier()"
    )
    done = mpirun(2, "-c", program, env={"HPCCOLL_DUMP_DIR": ""}, check=False, cwd=tmp_path)
    assert done.returncode not in (0, EXIT_STATUS), done.stderr
    [directory] = tmp_path.glob("hpccoll-dump-*")
    dump = dumps_in(directory)[1]
    assert (dump["reason"], dump["message"]) == ("exception", "ZeroDivisionError: division by zero")


EARLY = "import hpccoll as hc; comm = hc.world()\nif comm.rank in {0}: comm.allreduce(1, op='mean')\ncomm.barrier()"


def test_an_exception_before_the_first_operation_leaves_nothing(mpirun: Mpirun, tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text(EARLY.format((0, 1)))
    done = mpirun(2, "early.py", env={"HPCCOLL_DUMP_DIR": ""}, check=False, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "ArgumentError" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["early.py"]


def test_an_exception_before_the_first_operation_while_others_wait(mpirun: Mpirun, tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text(EARLY.format((1,)))
    job = Job(mpirun, tmp_path, program=str(tmp_path / "early.py"), **LIMIT)
    assert job.status == EXIT_STATUS, job.stderr
    assert job.reasons == {0: "timeout", 1: "exception"}
    assert '\n  File "early.py", line 2, in <module>\n' in job.dumps[1]["exception"]  # short, as other places


def test_the_command_on_standard_error_can_be_pasted() -> None:
    line = dump.whereabouts(Path("/scratch/my runs/dumps"))
    assert line.startswith(f"{FOUND}/scratch/my runs/dumps: ")
    assert shlex.split(line)[-4:] == ["python", "-m", "hpccoll.diagnose", "/scratch/my runs/dumps"]


@pytest.mark.parametrize("what", ["pending", "awaited", "inner"])
def test_a_limit_for_a_part_of_the_program(mpirun: Mpirun, tmp_path: Path, what: str) -> None:
    job = Job(mpirun, tmp_path, what)
    assert job.status == EXIT_STATUS, job.stderr
    assert job.reasons[0] == "timeout"
    last = next(each for each in reversed(job.dumps[0]["operations"]) if each["state"] != "done")
    assert last["state"] == "running"
    assert last["method"] == {"pending": "broadcast", "awaited": "recv", "inner": "barrier"}[what]
    assert last["blocking"] == (what == "inner")
    assert job.stdout.count("not yet") == (2 if what == "awaited" else 0)


def test_many_open_files(mpirun: Mpirun, tmp_path: Path) -> None:
    """The watchdog's own descriptors are above those that select() can watch."""
    program = (
        "import os, resource, time\n"
        "_, most = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))\n"
        "kept = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]\n"
        "import hpccoll as hc; comm = hc.world()\n"
        "if comm.rank: time.sleep(60)\n"
        "comm.barrier()"
    )
    env = {"HPCCOLL_DUMP_DIR": str(tmp_path), **LIMIT}
    done = mpirun(2, "-c", program, env=env, check=False, cwd=tmp_path)
    assert done.returncode == EXIT_STATUS, done.stderr
    assert dumps_in(tmp_path)[0]["reason"] == "timeout"


def test_a_long_queue_before_a_blocking_operation(mpirun: Mpirun, tmp_path: Path) -> None:
    """It takes longer than the limit all together, and nothing in it does."""
    program = (
        "import time, hpccoll as hc; comm = hc.world()\n"
        "with hc.timeout(4):\n"
        "    for _ in range(30): comm.barrier(blocking=False).add_done_callback(lambda work: time.sleep(0.2))\n"
        "    begun = time.monotonic(); comm.barrier(); assert time.monotonic() - begun > 4\n"
    )
    mpirun(2, "-c", program, env={"HPCCOLL_DUMP_DIR": str(tmp_path)}, cwd=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_limit_of_centuries(mpirun: Mpirun, tmp_path: Path) -> None:
    program = "import time, hpccoll as hc; comm = hc.world(); comm.barrier(); time.sleep(1.5); comm.barrier()"
    done = mpirun(2, "-c", program, env={"HPCCOLL_TIMEOUT_S": "1e12"}, cwd=tmp_path)
    assert "fault" not in done.stderr


def test_nothing_is_over_its_limit(mpirun: Mpirun, tmp_path: Path) -> None:
    job = Job(mpirun, tmp_path, "clean", **LIMIT)
    assert (job.status, job.left, job.stderr) == (0, [], "")


def test_processes_that_were_stopped(mpirun: Mpirun, tmp_path: Path) -> None:
    job = Job(mpirun, tmp_path, "stopped", HPCCOLL_TIMEOUT_S="4")
    assert job.status == 0, job.stderr
    assert job.stdout.count("through") == 2
    assert job.left == []


def test_c_code_that_keeps_the_gil(mpirun: Mpirun, tmp_path: Path) -> None:
    job = Job(mpirun, tmp_path, "holds_gil", **LIMIT)
    assert job.status == EXIT_STATUS, job.stderr
    assert job.reasons[0] == "timeout"
    assert "most recent call first" in job.stderr


@pytest.mark.parametrize("chained", [(), ("chained",)], ids=["ours", "the user's"])
def test_sigusr1(mpirun: Mpirun, tmp_path: Path, chained: tuple[str, ...]) -> None:
    job = Job(mpirun, tmp_path, "usr1", *chained)
    assert job.status == 0, job.stderr
    assert job.stdout.count("went on") == 2
    assert job.stdout.count("my own handler") == len(chained)
    assert job.reasons == ({} if chained else {0: "signal"})
    if not chained:
        assert job.last(0)["state"] == "running"  # while the main thread was in MPI


def test_sigterm(mpirun: Mpirun, tmp_path: Path) -> None:
    job = Job(mpirun, tmp_path, "term")
    assert job.status not in (0, EXIT_STATUS)
    assert job.reasons[0] == "terminated"
    assert job.dumps[0]["exit_status"] == 143
    assert f"hpccoll: rank 0 of 2: ended by SIGTERM (other ranks that are say nothing): {FOUND}" in job.stderr


def test_a_forked_child(mpirun: Mpirun, tmp_path: Path) -> None:
    job = Job(mpirun, tmp_path, "forked", **LIMIT)
    assert job.status == 0, job.stderr
    assert job.stdout.count("through") == 2
    assert job.left == []


def test_a_rank_that_never_comes(mpirun: Mpirun, tmp_path: Path) -> None:
    """Not even to the first call, which makes hpccoll's own communicator."""
    program = "import hpccoll as hc, time; from mpi4py import MPI\nif MPI.COMM_WORLD.rank: time.sleep(60)\nhc.world()"
    directory = tmp_path / "dumps"
    done = mpirun(2, "-c", program, env={"HPCCOLL_DUMP_DIR": str(directory), **LIMIT}, check=False)
    assert done.returncode == EXIT_STATUS, done.stderr
    [dump] = dumps_in(directory).values()
    assert [each["method"] for each in dump["operations"]] == ["world"]
    assert "world (number 1 of MPI_COMM_WORLD)" in done.stderr


@pytest.mark.parametrize("finalize", ["", "MPI.Finalize()"])
def test_a_program_that_ends_well(mpirun: Mpirun, tmp_path: Path, finalize: str) -> None:
    """Also where one rank is late, and where the program finalises MPI by itself on one of them."""
    program = (
        "import hpccoll as hc, time, numpy as np; from mpi4py import MPI; comm = hc.world()\n"
        "comm.broadcast(np.ones(2), root=np.int64(1))\n"
        f"if comm.rank: time.sleep(1); {finalize}"
    )
    done = mpirun(2, "-c", program, env={**LIMIT, "HPCCOLL_DUMP_DIR": ""}, cwd=tmp_path)
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def other_mpi() -> tuple[str, str]:
    """MPICH's mpirun and its Python, in an environment that tests/run.sh makes and names."""
    prefix = Path(os.environ.get("HPCCOLL_TEST_MPICH", ""), "bin")
    if os.access(prefix / "mpirun", os.X_OK) and os.access(prefix / "python", os.X_OK):
        return str(prefix / "mpirun"), str(prefix / "python")
    if os.environ.get("HPCCOLL_TEST_REQUIRE") == "1":
        pytest.fail("HPCCOLL_TEST_MPICH names no environment with MPICH's mpirun")
    return pytest.skip("HPCCOLL_TEST_MPICH names no environment with MPICH's mpirun")


@pytest.mark.parametrize(
    ("what", "reasons"),
    [("loop", {0: "timeout", 1: "peer"}), ("early", {0: "timeout", 1: "exit"}), ("term", {0: "terminated"})],
)
def test_mpich(tmp_path: Path, what: str, reasons: dict[int, str]) -> None:
    launcher, python = other_mpi()
    env = {"HPCCOLL_DUMP_DIR": str(tmp_path), **({} if what == "term" else LIMIT)}
    done = subprocess.run(
        ["timeout", "50", launcher, "-n", "2", python, str(JOBS / "broken.py"), what],
        env={**launch_environment(2), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == (15 if what == "term" else EXIT_STATUS), done.stderr
    found = {rank: dump["reason"] for rank, dump in dumps_in(tmp_path).items()}
    assert {rank: found.get(rank) for rank in reasons} == reasons


@pytest.mark.parametrize("way", ["plain", "async", "own", "caught", "default"])
def test_torch(mpirun: Mpirun, tmp_path: Path, way: str) -> None:
    need("torch")
    statuses = {"own": 1, "caught": 5, "default": 1}  # the others end by HPCCOLL_TIMEOUT_S
    job = Job(mpirun, tmp_path, way, program="torch_broken.py", **({} if way in statuses else LIMIT))
    assert job.status == statuses.get(way, EXIT_STATUS), job.stderr
    assert job.reasons[0] == "timeout"
    last = job.last(0)
    assert (last["comm"], last["seq"], last["method"]) == ("torch:0", 2, "allreduce")
    assert (last["called_as"], last["op"], last["count"], last["dtype"]) == (
        "all_reduce",
        "sum",
        8,
        "float32",
    )
    assert last["function"] == "step"
    assert last["site"].startswith(str(JOBS / "torch_broken.py:"))
    if way == "own":
        assert "rank000000.json" in job.stdout  # when it was raised
        assert "DistBackendError" in job.dumps[0]["exception"]
    elif way == "default":
        assert job.dumps[0]["exit_status"] == 1
    else:
        assert job.reasons[1] == "peer"
    made = [each for each in job.dumps[0]["operations"] if each["comm"] == "torch:1"]
    assert [each["method"] for each in made] == ["broadcast"]


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({"HPCCOLL_RECORDER": "many"}, "HPCCOLL_RECORDER must be the number of operations"),
        ({"HPCCOLL_TIMEOUT_S": "-1"}, "HPCCOLL_TIMEOUT_S must be a number of seconds above 0; got '-1'"),
        ({"HPCCOLL_TIMEOUT_S": "5", "HPCCOLL_RECORDER": "0"}, "HPCCOLL_TIMEOUT_S needs the flight recorder"),
    ],
)
def test_a_wrong_variable(env: dict[str, str], text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import hpccoll; hpccoll.world()"],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "ArgumentError" in done.stderr.splitlines()[-1]
    assert text in done.stderr.splitlines()[-1]


def test_a_plain_script_writes_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import hpccoll; hpccoll.world().barrier(); 1/0"],
        env={**os.environ, **LIMIT},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_recorder_off(tmp_path: Path) -> None:
    """The methods are the functions themselves, and nothing is watched or caught."""
    program = (
        "import signal, hpccoll as hc; comm = hc.world(); comm.barrier()\n"
        "assert not hasattr(hc.Comm.allreduce, '__wrapped__')\n"
        "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
        "try: hc.timeout(5).__enter__()\n"
        "except hc.ArgumentError as error: assert 'HPCCOLL_RECORDER' in str(error)\n"
        "else: raise AssertionError\n"
    )
    subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "HPCCOLL_RECORDER": "0"},
        cwd=tmp_path,
        timeout=60,
        check=True,
    )
