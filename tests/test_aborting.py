"""One rank fails, the job ends: soon, with its traceback and a non-zero status."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import Mpirun, launch_environment

from hpccoll import abort_on_exception, aborting

ROOT = Path(aborting.__file__).parents[1]

# On rank 1 what the test is about happens, while the others wait in a barrier that never comes.
USER_SCRIPT = """
import sys, threading, time
from mpi4py import MPI
import hpccoll
hpccoll.abort_on_exception()
comm = MPI.COMM_WORLD
def fail():
    raise ValueError("boom")
{rank_all}
if comm.rank == 1:
    {rank_1}
comm.Barrier()
print("went on", flush=True)
"""
PROGRAM = """
import sys, time
from hpccoll.aborting import run_program
def main(argv):
    from mpi4py import MPI
    rank = MPI.COMM_WORLD.rank
    print("in", argv, flush=True)
    {body}
run_program(main, ["-x"])
"""
KEEP = "threading.Thread(target=time.sleep, args=(300,)).start()"  # a thread that outlives everything
SOON_S = 25.0  # on a busy machine, the start of MPI included


# What protects the script below is the launcher, or hpccoll; the others wait in a barrier that never comes.
BOTH = ["ompi", "mpich"]


def prefix_of(mpi: str) -> Path | None:
    """The environment of MPICH, which tests/run.sh makes and names; None for that of this Python."""
    prefix = os.environ.get("HPCCOLL_TEST_MPICH", "")
    if mpi == "ompi":
        return None
    if prefix and os.access(Path(prefix, "bin", "mpirun"), os.X_OK):
        return Path(prefix)
    if os.environ.get("HPCCOLL_TEST_REQUIRE") == "1":
        pytest.fail("HPCCOLL_TEST_MPICH names no environment with MPICH's mpirun")
    return pytest.skip("HPCCOLL_TEST_MPICH names no environment with MPICH's mpirun")


def user_script(rank_1: str, rank_all: str = "pass") -> str:
    return USER_SCRIPT.format(rank_1=rank_1, rank_all=rank_all)


@pytest.mark.parametrize(
    ("rank_1", "rank_all", "where"),
    [
        ("fail()", "pass", ""),
        ("fail()", KEEP, ""),
        ("threading.Thread(target=fail, name='worker').start(); time.sleep(60)", "pass", ", thread 'worker'"),
        ("threading.Thread(target=fail, name='worker').start(); time.sleep(60)", KEEP, ", thread 'worker'"),
    ],
    ids=["main", "main-with-thread", "thread", "thread-with-thread"],
)
def test_exception_ends_the_job(mpirun: Mpirun, rank_1: str, rank_all: str, where: str) -> None:
    start = time.monotonic()
    done = mpirun(3, "-c", user_script(rank_1, rank_all), check=False)
    assert done.returncode not in (0, None)
    assert time.monotonic() - start < SOON_S
    assert re.search(rf"^rank 1 of 3 on [\w.-]+{where}:\nTraceback \(most", done.stderr, re.MULTILINE), (
        done.stderr
    )
    assert "\nValueError: boom\n" in done.stderr
    assert "went on" not in done.stdout


def test_long_traceback_is_whole(mpirun: Mpirun) -> None:
    done = mpirun(2, "-c", user_script("raise ValueError('x' * 100_000 + 'end')"), check=False)
    assert "x" * 100_000 + "end\n" in done.stderr


def test_a_hook_that_puts_a_buffer_for_standard_error(mpirun: Mpirun) -> None:
    """init_process_group installs one, around ours where that was there first."""
    wrap = """
def wrap(*args, before=sys.excepthook):
    import io
    sys.stderr = io.StringIO()
    before(*args)
sys.excepthook = wrap
"""
    done = mpirun(2, "-c", user_script("fail()", wrap), check=False)
    assert done.returncode not in (0, None)
    assert "rank 1 of 2 on " in done.stderr and "\nValueError: boom\n" in done.stderr, done.stderr


def test_tracebacks_of_all_ranks_do_not_mix(mpirun: Mpirun) -> None:
    done = mpirun(3, "-c", user_script("pass", "comm.Barrier(); fail()"), check=False)
    assert done.returncode != 0
    pieces = re.findall(r"rank \d of 3 on [\w.-]+:\nTraceback.*\n(?:  .*\n)+ValueError: boom\n", done.stderr)
    assert 1 <= len(pieces) == len(re.findall(r"^rank \d of 3 on", done.stderr, re.MULTILINE)), done.stderr


def test_interrupt_is_130(mpirun: Mpirun) -> None:
    done = mpirun(2, "-c", user_script("raise KeyboardInterrupt"), check=False)
    assert done.returncode == 130
    assert re.search(r"rank 1 of 2 on \S+: interrupted", done.stderr)
    assert "Traceback" not in done.stderr


def test_exit_on_one_rank_keeps_its_status(mpirun: Mpirun) -> None:
    done = mpirun(2, "-c", user_script("sys.exit(3)"), check=False)
    assert done.returncode == 3
    assert "went on" not in done.stdout


def test_exit_with_a_message(mpirun: Mpirun) -> None:
    done = mpirun(2, "-c", user_script("sys.exit('no such lattice')"), check=False)
    assert done.returncode == 1
    assert "no such lattice" in done.stderr


def test_exit_on_all_ranks_is_no_abort(mpirun: Mpirun) -> None:
    done = mpirun(2, "-c", user_script("pass", "sys.exit(5)"), check=False)
    assert done.returncode == 5
    assert "MPI_ABORT" not in done.stderr


def test_exit_that_is_caught_goes_on(mpirun: Mpirun) -> None:
    """As argparse's does in tests; reading `code` must not count as leaving."""
    catch = "\n    try:\n        sys.exit(3)\n    except SystemExit as end:\n        assert end.code == 3"
    done = mpirun(2, "-c", user_script(catch))
    assert done.stdout.count("went on") == 2


def test_nothing_happens_to_a_good_job(mpirun: Mpirun) -> None:
    done = mpirun(2, "-c", user_script("sys.exit", "hpccoll.abort_on_exception()"))
    assert done.stdout.count("went on") == 2
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("return 0", 0),
        ("return None", 0),
        ("return 3", 3),
        ("raise SystemExit(4)", 4),
        ("return 3 if rank == 1 else 0", 3),  # all come to their end
        ("time.sleep(rank); return 3 if rank == 0 else 0", 3),
    ],
)
def test_status_of_a_program(mpirun: Mpirun, body: str, status: int) -> None:
    done = mpirun(2, "-c", PROGRAM.format(body=body), check=False)
    assert done.returncode == status
    assert done.stdout.count("in ['-x']") == 2
    assert "MPI_ABORT" not in done.stderr


@pytest.mark.parametrize("leave", ["return 7", "sys.exit(7)", "raise SystemExit(7)"])
def test_a_program_that_leaves_others_waiting(mpirun: Mpirun, leave: str) -> None:
    start = time.monotonic()
    body = f"\n    if rank == 1:\n        {leave}\n    MPI.COMM_WORLD.Dup().Barrier()"
    done = mpirun(2, "-c", PROGRAM.format(body=body), check=False)
    assert done.returncode == 7
    assert time.monotonic() - start < SOON_S


def test_exception_in_a_program(mpirun: Mpirun) -> None:
    body = "\n    if rank == 1:\n        raise ValueError('boom')\n    MPI.COMM_WORLD.Barrier()"
    done = mpirun(2, "-c", PROGRAM.format(body=body), check=False)
    assert done.returncode == 1
    assert re.search(r"rank 1 of 2 on \S+:\nTraceback", done.stderr)


def test_usage_error_of_rank_0_is_seen(mpirun: Mpirun) -> None:
    """Before MPI is started, on ranks that all leave with status 2, the first of which ends the job."""
    body = """
    pass
from hpccoll.environment import is_first_rank
def main(argv):
    if is_first_rank():
        time.sleep(0.5)
        print("bad option", file=sys.stderr, flush=True)
    return 2
    """
    done = mpirun(2, "-c", PROGRAM.format(body=body), check=False)
    assert done.returncode == 2
    assert done.stderr.count("bad option") == 1


@pytest.mark.parametrize("mpi", BOTH)
@pytest.mark.parametrize(
    ("rank_1", "status", "said"),
    [
        ("fail()", 1, "ValueError: boom"),
        ("threading.Thread(target=fail).start(); time.sleep(300)", 1, "ValueError: boom"),
        ("sys.exit(3)", 3, ""),
        (f"{KEEP}; sys.exit(3)", 3, ""),
        ("os._exit(3)", None, ""),
        ("os._exit(0)", 1, "os._exit(0) while other ranks go on"),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(300)", None, ""),
        ("os.kill(os.getpid(), signal.SIGKILL)", None, ""),
    ],
    ids=["raise", "thread", "exit", "exit-with-thread", "_exit-3", "_exit-0", "SIGTERM", "SIGKILL"],
)
def test_however_a_rank_ends_the_job_does(
    mpirun: Mpirun, rank_1: str, status: int | None, said: str, mpi: str
) -> None:
    """With the status of that rank; a signal has none, and MPICH's mpirun may join it with those of the killed."""
    script = "import os, signal\n" + user_script(rank_1)
    done = mpirun(3, "-c", script, check=False, prefix=prefix_of(mpi))
    assert done.returncode == status if status else done.returncode not in (0, None)
    assert said in done.stderr
    assert "went on" not in done.stdout


@pytest.mark.parametrize("rank_all", ["os._exit(0)", "if not os.fork(): os._exit(0)"])
def test_all_may_leave_at_once(mpirun: Mpirun, rank_all: str) -> None:
    """On all ranks it is no fault of ours, and a forked child has always left that way."""
    code = user_script("pass", f"import os\ncomm.Barrier()\n{rank_all}").replace(
        "comm.Barrier", "comm.barrier"
    )
    done = mpirun(2, "-c", code, check=False)
    assert "os._exit" not in done.stderr
    assert done.stdout.count("went on") == (2 if "fork" in rank_all else 0)


def test_exit_with_a_thread_on_all_ranks(mpirun: Mpirun) -> None:
    """Python itself would wait for the threads, and so would the job."""
    code = PROGRAM.format(body=f"\n    import threading\n    {KEEP}\n    return 5")
    assert mpirun(2, "-c", code, check=False).returncode == 5


CHECKED = """
import os, sys, time
from mpi4py import MPI
import hpccoll
rank = MPI.COMM_WORLD.rank
def main(first, second="b"):
    {body}
hpccoll.run_checked(main, "a", second="c")
"""


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("assert (first, second) == ('a', 'c')", 0),
        ("return 3 if rank else 0", 3),
        ("return True", 0),
        ("return [1, 2]", 0),
        ("raise SystemExit(4 if rank == 1 else 0)", 4),
        ("sys.exit(7) if rank == 1 else MPI.COMM_WORLD.Dup().Barrier()", 7),
        ("rank == 1 and 1 / 0; MPI.COMM_WORLD.Barrier()", 1),
    ],
)
def test_run_checked(mpirun: Mpirun, body: str, status: int) -> None:
    done = mpirun(2, "-c", CHECKED.format(body=body), check=False)
    assert done.returncode == status, done.stderr
    assert ("ZeroDivisionError" in done.stderr) == ("1 / 0" in body)
    assert "aborting.py" not in done.stderr


@pytest.mark.parametrize("mpi", BOTH)
def test_the_end_of_mpi_has_a_limit(mpirun: Mpirun, mpi: str) -> None:
    """Rank 1 has come to its end and does not come to MPI_Finalize, where rank 0 waits."""
    code = "import atexit, time\n" + CHECKED.format(body="return 0").replace(
        "def main", "rank == 1 and atexit.register(time.sleep, 300)\ndef main"
    )
    done = mpirun(2, "-c", code, check=False, env={"HPCCOLL_EXIT_TIMEOUT_S": "1"}, prefix=prefix_of(mpi))
    assert done.returncode not in (0, None)


def test_a_rank_at_its_end_waits_no_longer_than_the_limit(mpirun: Mpirun, tmp_path: Path) -> None:
    code = CHECKED.format(body="hpccoll.world(); rank and time.sleep(300)")
    env = {"HPCCOLL_TIMEOUT_S": "2", "HPCCOLL_DUMP_DIR": str(tmp_path)}
    done = mpirun(2, "-c", code, check=False, env=env)
    assert done.returncode == 76
    assert "rank 0 of 2: has come to its end and waited" in done.stderr


@pytest.mark.parametrize(
    ("leave", "status"),
    [("sys.exit(5)", 5), ("return 5", 5), ("return 0", 0), ("raise ValueError('of a child')", 1)],
)
def test_the_end_of_a_forked_child_is_its_own(mpirun: Mpirun, leave: str, status: int) -> None:
    """It neither meets the other ranks, nor finalises MPI, where it would wait for ever."""
    body = f"""MPI.COMM_WORLD.Barrier()
    child = rank and os.fork()
    if rank and not child:
        {leave}
    if rank:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == {status}
    MPI.COMM_WORLD.Barrier()"""
    done = mpirun(2, "-c", CHECKED.format(body=body), check=False)
    assert done.returncode == 0, done.stderr
    assert ("of a child" in done.stderr) == ("of a child" in leave)


def test_a_wrong_limit_of_the_end_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import hpccoll; hpccoll.run_checked(print)"],
        env={**os.environ, "HPCCOLL_EXIT_TIMEOUT_S": "soon"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "HPCCOLL_EXIT_TIMEOUT_S must be a number of seconds above 0; got 'soon'" in done.stderr


# ---- python -m hpccoll.run

SCRIPT = """
import os, sys
from mpi4py import MPI
import neighbour
assert __name__ == "__main__" and neighbour.number == 5
MPI.COMM_WORLD.rank == 1 and sys.argv[1:] == ["fail"] and neighbour.fail()
MPI.COMM_WORLD.Barrier()
sys.stdout.write(f"{sys.argv[1:]}\\n")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("number = 5\ndef fail(): raise ValueError('boom')\n")
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_run_a_script(mpirun: Mpirun, script: Path, tmp_path: Path) -> None:
    for what in ([script], ["-m", "script"]):
        done = mpirun(2, "-m", "hpccoll.run", *what, "-x", "1", cwd=tmp_path)
        assert done.stdout.splitlines() == ["['-x', '1']"] * 2


def test_run_a_script_that_fails(mpirun: Mpirun, script: Path) -> None:
    done = mpirun(2, "-m", "hpccoll.run", script, "fail", check=False)
    assert done.returncode == 1
    assert re.search(r"^rank 1 of 2 on \S+:\nTraceback", done.stderr, re.MULTILINE)
    assert "ValueError: boom" in done.stderr
    # The user's frames only, and all of them.
    frames = re.findall(r'^  File "(.+)", line (\d+)', done.stderr, re.MULTILINE)
    assert frames == [(str(script), "6"), (str(script.with_name("neighbour.py")), "2")]


def test_run_a_script_with_an_error_of_syntax(mpirun: Mpirun, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("if:\n")
    done = mpirun(1, "-m", "hpccoll.run", "script.py", check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert re.findall(r'^ +File "(.+)", line', done.stderr, re.MULTILINE) == ["script.py"]


def test_run_code(mpirun: Mpirun) -> None:
    code = "import sys; from mpi4py import MPI; assert sys.argv == ['-c', 'x']; sys.exit(MPI.COMM_WORLD.rank * 4)"
    assert mpirun(2, "-m", "hpccoll.run", "-c", code, "x", check=False).returncode == 4


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "missing"),
        (["-m"], "-m needs"),
        (["-x"], "no option"),
        (["nowhere.py"], "there is no 'nowhere.py'"),
    ],
)
def test_run_says_what_is_wrong(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from hpccoll.run import main

    assert main(arguments) == 2
    assert problem in capsys.readouterr().err


# ---- without MPI


def run_alone(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code], env=launch_environment(1), capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("mpi", ["", "from mpi4py import MPI"], ids=["no-mpi", "one-rank"])
@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("fail()", 1),
        (f"{KEEP}; fail()", 1),
        ("threading.Thread(target=fail).start(); time.sleep(60)", 1),
        ("sys.exit(3)", 3),
        ("raise SystemExit(3)", 3),
        ("sys.exit('words')", 1),
        ("raise KeyboardInterrupt", 130),
        ("pass", 0),
    ],
)
def test_a_single_process(mpi: str, ending: str, status: int) -> None:
    code = (
        "import hpccoll, sys, threading, time; hpccoll.abort_on_exception()\n"
        f"def fail(): raise ValueError('boom')\n{mpi}\n{ending}"
    )
    done = run_alone(code)
    assert done.returncode == status, done.stderr
    assert done.stderr.count("ValueError: boom") == ("fail" in ending)
    assert done.stderr.count("Traceback") == ("fail" in ending)


def test_exit_hooks_run_for_a_single_process(tmp_path: Path) -> None:
    code = (
        "import atexit, hpccoll, sys; hpccoll.abort_on_exception()\n"
        f"atexit.register(open, {str(tmp_path / 'left')!r}, 'w')\nraise ValueError('boom')"
    )
    assert run_alone(code).returncode == 1
    assert (tmp_path / "left").exists()


def test_closed_standard_error() -> None:
    code = "import hpccoll, sys; hpccoll.abort_on_exception(); sys.stderr.close(); raise ValueError('boom')"
    assert run_alone(code).returncode == 1


def test_hooks_are_installed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    for module, name in ((sys, "excepthook"), (threading, "excepthook"), (sys, "exit"), (os, "_exit")):
        monkeypatch.setattr(module, name, getattr(module, name))
    registered: list[object] = []
    monkeypatch.setattr(aborting, "_installed", False)
    monkeypatch.setattr(aborting.atexit, "register", registered.append)
    abort_on_exception()
    hook = sys.excepthook
    sys.excepthook = sys.__excepthook__
    abort_on_exception()
    assert sys.excepthook is sys.__excepthook__
    assert hook is aborting._main_thread_hook
    assert len(registered) == 1


AFTER_FINALIZE = """
import numpy as np
from mpi4py import MPI
import hpccoll as hc
comm, x = hc.world(), np.ones(1)
MPI.Finalize()
for blocking in (True, False):
    for call in (
        lambda: comm.send(x, dest=0, blocking=blocking), lambda: comm.recv(x, blocking=blocking),
        lambda: comm.recv(x, tag=1, blocking=blocking), lambda: comm.sendrecv(x, dest=0, out=x, source=0),
        lambda: comm.allreduce(x, blocking=blocking), lambda: comm.allreduce(x, op="max", blocking=blocking),
        lambda: comm.allreduce(x.astype(np.float16), out=x.astype(np.float16), blocking=blocking),
        lambda: comm.allreduce(1, blocking=blocking), lambda: comm.scan(x, blocking=blocking),
        lambda: comm.broadcast(x, blocking=blocking), lambda: comm.allgather(x, blocking=blocking),
        lambda: comm.alltoall(x, blocking=blocking), lambda: comm.barrier(blocking=blocking),
        lambda: comm.broadcast_object(1, blocking=blocking),
        comm.dup, comm.node, comm.leaders, lambda: comm.split(0), hc.world,
    ):
        try:
            call()
        except hc.CommunicatorError:
            continue
        raise SystemExit("went through")
comm.free()
print("all refused")
"""


def test_after_finalize(mpirun: Mpirun) -> None:
    assert mpirun(1, "-c", AFTER_FINALIZE).stdout == "all refused\n"


def test_no_mpi_library() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hpccoll.allreduce", "-e", "8"],
        env={**launch_environment(1), "MPI4PY_LIBMPI": "/nowhere/libmpi.so", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: mpi4py finds no MPI library.")
    assert len(done.stderr.splitlines()) == 1
