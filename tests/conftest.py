"""What the single-process tests share: `mpirun` starts a job of its own and leaves no process behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ["mpi_plugin"]

# It makes `print` write a line in pieces, and those of two ranks mix.
os.environ.pop("PYTHONUNBUFFERED", None)

# Set by an outer launcher, and misleading to an inner one. The *_MCA_* variables are settings of the user.
_LAUNCHER_PREFIXES = (
    "OMPI_",
    "PMIX_",
    "PMI_",
    "PRTE_",
    "HYDRA_",
    "HYDI_",
    "MPIR_",
    "MPI_LOCAL",
    "PALS_",
    "MV2_COMM_",
)
_SETTINGS = ("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_", "OMPI_ALLOW_RUN_AS_ROOT")
_JOB_MARK = "HPCCOLL_TEST_JOB"
_TERM_S = 5.0

Mpirun = Callable[..., "subprocess.CompletedProcess[str]"]


def launch_environment(ranks: int, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for an inner `mpirun`: nothing of an outer one, and what root and few cores need."""
    outer = os.environ if environ is None else environ
    env = {
        name: value
        for name, value in outer.items()
        if not name.startswith(_LAUNCHER_PREFIXES) or name.startswith(_SETTINGS)
    }
    if os.geteuid() == 0:
        env["OMPI_ALLOW_RUN_AS_ROOT"] = env["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    if ranks > len(os.sched_getaffinity(0)):
        env["OMPI_MCA_rmaps_base_oversubscribe"] = "1"
        env["PRTE_MCA_rmaps_default_mapping_policy"] = "slot:oversubscribe"
    env["OMPI_MCA_mpi_yield_when_idle"] = "1"
    env.setdefault("OMP_NUM_THREADS", "1")
    import hpccoll

    home = str(Path(hpccoll.__file__).parents[1])
    env["PYTHONPATH"] = os.pathsep.join(part for part in (home, env.get("PYTHONPATH")) if part)
    # Intel MPI's launcher finds its parts through PATH.
    env["PATH"] = os.pathsep.join((str(Path(sys.prefix) / "bin"), env.get("PATH", os.defpath)))
    return env


def find_mpirun() -> str:
    """The mpirun of the environment that this Python runs in, else the one in PATH."""
    own = Path(sys.prefix) / "bin" / "mpirun"
    found = str(own) if os.access(own, os.X_OK) else shutil.which("mpirun")
    if found is None:
        if os.environ.get("HPCCOLL_TEST_REQUIRE") == "1":
            pytest.fail("there is no mpirun in this environment nor in PATH")
        pytest.skip("there is no mpirun in this environment nor in PATH")
    return found


@pytest.fixture
def mpirun() -> Mpirun:
    """``mpirun(n, *args, env=None, timeout_s=60, check=True, options=())`` runs ``mpirun -n N OPTIONS python ARGS``.

    Returns the CompletedProcess with `stdout` and `stderr` as text. The test fails when the time is over, when the
    status is not zero (unless ``check=False``) and when a process of the job outlives mpirun.
    """
    return run_mpi


def run_mpi(
    n: int,
    *args: str | os.PathLike[str],
    env: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
    check: bool = True,
    cwd: str | os.PathLike[str] | None = None,
    options: Sequence[str] = (),
    prefix: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """What the fixture `mpirun` is; `prefix` is the environment of another MPI."""
    launcher, python = (
        (find_mpirun(), sys.executable) if prefix is None else (prefix / "bin/mpirun", prefix / "bin/python")
    )
    command = [str(launcher), "-n", str(n), *options, str(python), *map(os.fspath, args)]
    full_env = {**launch_environment(n), **(env or {})}
    if prefix is not None:
        full_env["PATH"] = os.pathsep.join((str(prefix / "bin"), full_env["PATH"]))
    statuses = (0,) if check else None
    return run_job(command, full_env, timeout_s=timeout_s, statuses=statuses, cwd=cwd)


def run_job(
    command: list[str],
    env: Mapping[str, str],
    *,
    timeout_s: float,
    statuses: Container[int] | None = (0,),
    cwd: str | os.PathLike[str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command that may start mpirun; the test fails as with `mpirun`. `statuses` None: any will do."""
    mark = uuid.uuid4().hex
    # Files and not pipes: a process that outlives mpirun would keep a pipe open.
    with (
        tempfile.TemporaryFile("w+", errors="replace") as out,
        tempfile.TemporaryFile("w+", errors="replace") as err,
        tempfile.TemporaryDirectory() as dumps,
    ):
        full_env = {"HPCCOLL_DUMP_DIR": dumps, **env, _JOB_MARK: mark}
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=full_env,
            cwd=cwd,
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None:
                _terminate(process)
            left = _kill_rest(mark, wait_s=0.0 if status is None else 3.0)
        out.seek(0)
        err.seek(0)
        stdout, stderr = out.read(), err.read()
    output = f"\n$ {' '.join(command)}\n---- stdout\n{stdout}\n---- stderr\n{stderr}"
    if status is None:
        pytest.fail(f"the command did not end within {timeout_s:g} s{output}", pytrace=False)
    if left:
        pytest.fail(f"processes {left} outlived the command{output}", pytrace=False)
    if statuses is not None and status not in statuses:
        pytest.fail(f"the command ended with status {status}{output}", pytrace=False)
    return subprocess.CompletedProcess(command, status, stdout, stderr)


def _terminate(process: subprocess.Popen[Any]) -> None:
    """mpirun takes its ranks with it when it is asked to end, but not when it is killed."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(_TERM_S)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        pass
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _kill_rest(mark: str, wait_s: float) -> list[int]:
    """Kill what carries the mark in its environment, after `wait_s`; return what had to be killed."""
    until = time.monotonic() + wait_s
    while (left := _marked(mark)) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return left


def _marked(mark: str) -> list[int]:
    needle = f"{_JOB_MARK}={mark}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if needle in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue  # ended meanwhile, or somebody else's
    return found
