"""The world gate: N processes that are each rank 0 of 1 do not get far."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Mpirun, launch_environment

from hpccoll import LaunchError, gate

STEP = {
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "0",
}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "4"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "2", "WORLD_SIZE": "4"}


def world(size: int) -> Any:
    return SimpleNamespace(size=size)


@pytest.fixture(autouse=True)
def no_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests start no MPI in their own process."""
    monkeypatch.setattr(gate, "_was_spawned", lambda: False)
    monkeypatch.setattr(gate, "library_version", lambda: "Open MPI v5.0.11")
    monkeypatch.setattr(gate, "library_path", lambda: Path("/opt/there/lib/libmpi.so.40"))


@pytest.mark.parametrize("environ", [STEP, HYDRA, OPEN_MPI, TORCHRUN, {"RANK": "0", "WORLD_SIZE": "4"}])
def test_singletons_are_refused(environ: dict[str, str]) -> None:
    with pytest.raises(LaunchError) as error:
        gate.check_world(world(1), environ)
    message = str(error.value)
    for part in (
        "started 4 processes",
        "rank 0 of 1",
        "Open MPI v5.0.11",
        "/opt/there/lib/libmpi.so.40",
        "HPCCOLL_ALLOW_SINGLETONS=1",
    ):
        assert part in message


def test_half_a_world_is_refused() -> None:
    with pytest.raises(LaunchError, match="in a world of 2"):
        gate.check_world(world(2), HYDRA)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "9"},  # python in the batch script itself
        {
            "SLURM_PROCID": "0",
            "SLURM_NTASKS": "4",
            "SLURM_STEP_ID": "4294967290",
            "SLURM_STEP_NUM_TASKS": "4",
        },
        {"PMI_RANK": "0", "PMI_SIZE": "1"},
        {"PMIX_RANK": "0"},
        {**HYDRA, "HPCCOLL_ALLOW_SINGLETONS": "1"},
    ],
)
def test_alone_on_purpose(environ: dict[str, str]) -> None:
    gate.check_world(world(1), environ)


@pytest.mark.parametrize("environ", [STEP, HYDRA, OPEN_MPI, TORCHRUN])
def test_the_right_size_passes(environ: dict[str, str]) -> None:
    gate.check_world(world(4), environ)
    gate.check_world(world(8), environ)  # more ranks than launched: spawned, or a wrapper's variables


def test_spawned_processes_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_was_spawned", lambda: True)
    gate.check_world(world(1), HYDRA)


@pytest.mark.parametrize(
    ("environ", "version", "parts"),
    [
        (STEP, "Open MPI v5.0.11", ["srun --mpi=list", "--mpi=pmix"]),
        (STEP, "MPICH Version: 5.0.2", ["srun --mpi=list", "--mpi=pmi2"]),
        (STEP, "Intel(R) MPI Library 2021.18", ["--mpi=pmi2", "I_MPI_PMI_LIBRARY"]),
        (TORCHRUN, "Open MPI v5.0.11", ["-n 4 python", "torchrun is not needed"]),
        (HYDRA, "Open MPI v5.0.11", ["-n 4 python", "Hydra mpirun"]),
    ],
)
def test_the_fix(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], version: str, parts: list[str]
) -> None:
    monkeypatch.setattr(gate, "library_version", lambda: version)
    with pytest.raises(LaunchError) as error:
        gate.check_world(world(1), environ)
    fix = next(line for line in str(error.value).splitlines() if "fix:" in line)
    for part in parts:
        assert part in fix


def test_mpirun_beside_the_library(tmp_path: Path) -> None:
    library = tmp_path / "lib" / "openmpi" / "lib" / "libmpi.so.40"
    mpirun = tmp_path / "bin" / "mpirun"
    for path in (library, mpirun):
        path.parent.mkdir(parents=True)
        path.touch()
    assert gate.mpirun_of(library) is None  # not executable
    mpirun.chmod(0o755)
    assert gate.mpirun_of(library) == mpirun
    flavour = tmp_path / "bin" / "mpirun.openmpi"  # Debian's, where mpirun may be another MPI's
    flavour.touch(0o755)
    assert gate.mpirun_of(library) == flavour
    assert gate.mpirun_of(None) is None
    assert gate.mpirun_of(Path("/libmpi.so")) is None


@pytest.mark.parametrize(
    ("name", "is_library"),
    [
        ("libmpi.so.40", True),
        ("libmpi.so", True),
        ("libmpi.so.12.0.0", True),
        ("libmpi_abi.so.0", True),
        ("libmpich.so.12", True),
        ("libmpi_cray.so.12", True),
        ("libmpi_usempif08.so.40", False),
        ("libmpicxx.so.12", False),
        ("libopen-pal.so.80", False),
    ],
)
def test_names_of_the_library(name: str, is_library: bool) -> None:
    assert bool(gate._LIBRARY.fullmatch(name)) == is_library


PROGRAM = """
from mpi4py import MPI
from hpccoll.errors import LaunchError
from hpccoll.gate import check_world, library_path, library_version, mpirun_of
assert "\\0" not in library_version() and library_version()
try:
    check_world(MPI.COMM_WORLD)
except LaunchError as error:
    assert str(library_path()) in str(error) and str(mpirun_of(library_path())) in str(error), error
    assert library_version() in str(error), error
    print("refused", flush=True)
else:
    print("passed", MPI.COMM_WORLD.size, flush=True)
"""


def test_mpirun_of_this_mpi_passes(mpirun: Mpirun) -> None:
    assert mpirun(2, "-c", PROGRAM).stdout.split("\n")[:2] == ["passed 2"] * 2


def other_mpirun() -> str:
    """The mpirun of MPICH, in an environment that tests/run.sh makes and names."""
    prefix = os.environ.get("HPCCOLL_TEST_MPICH", "")
    path = Path(prefix, "bin", "mpirun")
    if prefix and os.access(path, os.X_OK):
        return str(path)
    if os.environ.get("HPCCOLL_TEST_REQUIRE") == "1":
        pytest.fail("HPCCOLL_TEST_MPICH names no environment with MPICH's mpirun")
    return pytest.skip("HPCCOLL_TEST_MPICH names no environment with MPICH's mpirun")


@pytest.mark.parametrize(
    ("allow", "expected"), [("", ["refused"] * 2), ("1", ["passed 1"] * 2)], ids=["refused", "allowed"]
)
def test_mpirun_of_another_mpi(allow: str, expected: list[str]) -> None:
    """Open MPI's library under the mpirun of MPICH: two processes that MPI takes for rank 0 of 1."""
    done = subprocess.run(
        ["timeout", "60", other_mpirun(), "-n", "2", sys.executable, "-c", PROGRAM],
        env={**launch_environment(2), "HPCCOLL_ALLOW_SINGLETONS": allow},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.stdout.split("\n")[:-1] == expected, done.stdout + done.stderr
    assert done.returncode == 0


def test_a_program_stops_at_the_gate() -> None:
    done = subprocess.run(
        ["timeout", "60", other_mpirun(), "-n", "2", sys.executable, "-m", "hpccoll.allreduce", "-e", "8"],
        env=launch_environment(2),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode not in (0, 124), done.stdout + done.stderr
    assert "Hydra mpirun started 2 processes" in done.stderr
    assert "libmpi.so" in done.stderr
    assert done.stderr.count("HPCCOLL_ALLOW_SINGLETONS") == 1
    assert "Traceback" not in done.stderr
    assert "busbw" not in done.stdout


def test_alone_in_a_batch_shell() -> None:
    """`python program.py` in a batch script of several tasks is one process on purpose."""
    env = {**launch_environment(1), "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "passed 1\n"
