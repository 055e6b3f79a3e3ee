"""hpccoll.launch.runner and .rank, on a launcher that exits 0 whatever happens to its ranks."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hpccoll

HERE = Path(__file__).parent
MARK = "HPCCOLL_TEST_JOB"
RANK = "int(__import__('os').environ['OMPI_COMM_WORLD_RANK'])"

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """``start(code, size=3, ...)`` starts the runner on ranks that execute `code`; nothing may outlive the test."""
    mark = uuid.uuid4().hex
    started: list[subprocess.Popen[str]] = []

    def start_one(
        code: str,
        size: int = 3,
        ranks: int | None = None,
        timeout_s: float = 0,
        start_s: float = 60,
        output: object = "-",
    ) -> "subprocess.Popen[str]":
        arguments = [
            size,
            size if ranks is None else ranks,
            timeout_s,
            start_s,
            output,
            sys.executable,
            "-c",
            code,
        ]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_COMM", "PMI"))}
        process = subprocess.Popen(
            [sys.executable, str(HERE / "drive_runner.py"), *map(str, arguments)],
            env={**env, "PYTHONPATH": str(Path(hpccoll.__file__).parents[1]), MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start_one
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert not marked(mark, wait_s=8), "processes outlived the job"


def marked(mark: str, wait_s: float) -> list[int]:
    until = time.monotonic() + wait_s
    while (found := _marked(f"{MARK}={mark}".encode())) and time.monotonic() < until:
        time.sleep(0.1)
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    return found


def _marked(needle: bytes) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if needle in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def ended(process: "subprocess.Popen[str]", within_s: float = 60) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=within_s)
    return process.returncode, out, err


def wait_for(paths: list[Path]) -> None:
    until = time.monotonic() + 60
    while not all(path.exists() for path in paths):
        assert time.monotonic() < until, paths
        time.sleep(0.05)


def test_success(start: Start) -> None:
    status, out, _ = ended(start(f"print('rank', {RANK})"))
    assert status == 0
    assert sorted(out.splitlines()) == ["rank 0", "rank 1", "rank 2"]


def test_status_is_the_programs(start: Start) -> None:
    status, _, err = ended(start(f"import sys; sys.exit(3 * ({RANK} == 2))"))
    assert status == 3
    assert "rank 2 on" in err
    assert "status 3" in err


def test_a_killed_rank(start: Start) -> None:
    code = f"import os, time\nif {RANK} == 1: os.kill(os.getpid(), 9)"
    status, _, err = ended(start(code))
    assert status == 137
    assert "rank 1 on" in err
    assert "SIGKILL" in err


def test_a_lost_rank_ends_the_job_where_the_launcher_exits_0(start: Start) -> None:
    """Its wrapper is killed, as when the host goes down; the others wait for it for ever."""
    code = f"import os, time\nif {RANK} == 1: os.kill(os.getppid(), 9)\ntime.sleep(600)"
    status, _, err = ended(start(code))
    assert status == 69
    assert "lost rank 1 on" in err


def test_ranks_that_never_start(start: Start) -> None:
    status, _, err = ended(start("import time; time.sleep(600)", size=3, ranks=2, start_s=4))
    assert status == 69
    assert "1 of 3 ranks have not started (2)" in err


def test_fewer_ranks_than_expected_that_end_well(start: Start) -> None:
    status, _, err = ended(start("pass", size=3, ranks=2))
    assert status == 69
    assert "did not end well: 2" in err


def test_time_limit(start: Start) -> None:
    status, _, err = ended(start("import time; time.sleep(600)", timeout_s=4))
    assert status == 124
    assert "time limit of 4 s" in err


def test_time_limit_of_a_program_that_does_not_want_to_end(start: Start) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    assert ended(start(code, timeout_s=4))[0] == 124


def test_output_files(start: Start, tmp_path: Path) -> None:
    directory = tmp_path / "a b"
    code = f"import sys; print('out', {RANK}); print('err', {RANK}, file=sys.stderr)"
    for _ in range(2):  # appended, as when a job is requeued
        assert ended(start(code, output=directory))[:2] == (0, "")
    assert (directory / "rank-00002.out").read_text() == "out 2\nout 2\n"
    assert (directory / "rank-00000.err").read_text() == "err 0\nerr 0\n"
    assert len(list(directory.iterdir())) == 6


SLEEPER = """
import os, signal, sys, time
from pathlib import Path
rank = os.environ["OMPI_COMM_WORLD_RANK"]
def note(number, frame):
    Path(DIRECTORY, f"got-{number}-{rank}").touch()
    if number != signal.SIGUSR1:
        sys.exit(5)
for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
    signal.signal(number, note)
Path(DIRECTORY, f"up-{rank}").touch()
end = time.monotonic() + 600
while time.monotonic() < end:
    time.sleep(0.1)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_come_to_every_rank(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    process = start(SLEEPER.replace("DIRECTORY", repr(str(tmp_path))))
    wait_for([tmp_path / f"up-{rank}" for rank in range(3)])
    time.sleep(0.5)  # the monitor hears of the start after the wrapper has told it
    process.send_signal(signal.SIGUSR1)
    wait_for([tmp_path / f"got-{int(signal.SIGUSR1)}-{rank}" for rank in range(3)])
    assert process.poll() is None
    process.send_signal(number)
    status, _, err = ended(process)
    assert status == 5  # the program's own
    assert f"{number.name} handed on" in err
    wait_for([tmp_path / f"got-{int(number)}-{rank}" for rank in range(3)])


def test_twice_ctrl_c_kills(start: Start, tmp_path: Path) -> None:
    code = (
        "import signal, time; from pathlib import Path; signal.signal(2, signal.SIG_IGN);"
        f"signal.signal(15, signal.SIG_IGN); Path({str(tmp_path)!r}, str({RANK})).touch(); time.sleep(600)"
    )
    process = start(code)
    wait_for([tmp_path / str(rank) for rank in range(3)])
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    status, _, err = ended(process)
    assert status == 130
    assert "interrupted twice" in err
    assert time.monotonic() - began < 15


def test_nothing_stays_when_the_runner_itself_is_killed(start: Start, tmp_path: Path) -> None:
    process = start(
        f"from pathlib import Path; import time; Path({str(tmp_path)!r}, str({RANK})).touch(); time.sleep(600)"
    )
    wait_for([tmp_path / str(rank) for rank in range(3)])
    process.kill()
    process.wait()  # the fixture looks for what is left


def test_launcher_that_starts_no_rank(start: Start) -> None:
    """As mpirun does when ssh reaches no host: a status of its own, which says nothing."""
    process = start("pass", ranks="none")  # type: ignore[arg-type]
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 69
    assert "no rank has started (the launcher ended with status 1)" in errors
