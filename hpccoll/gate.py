"""The world gate: refuses to go on as N processes that are each rank 0 of 1.

That happens when the ``mpirun`` belongs to another MPI than the one mpi4py loads, or when ``srun`` and the
MPI do not speak the same start-up protocol. Every process then computes, and writes, the whole job's result.
"""

import ctypes
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hpccoll import settings
from hpccoll.environment import Launch, detect
from hpccoll.errors import LaunchError

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["check_world", "cuda_support", "library_path", "library_version", "mpirun_of"]

ESCAPE = settings.ALLOW_SINGLETONS.name
_LIBRARY = re.compile(r"lib(pmpi|mpi|mpich|mpi_abi|mpi_cray|mpi_gnu_\w+)\.(so|dylib)[.\d]*")


def check_world(mpi_world: "Intracomm", environ: Mapping[str, str] | None = None) -> None:
    """Raise unless the world is as large as the launcher says.

    A process that no launcher started, also in the batch script of a job, passes: it is alone on purpose.
    So does everything with ``HPCCOLL_ALLOW_SINGLETONS=1``.

    Parameters
    ----------
    mpi_world
        ``MPI.COMM_WORLD`` or a duplicate.
    environ
        The variables to read; those of this process if left out.

    Raises
    ------
    LaunchError
        If the communicator has fewer ranks than were launched. The message names the MPI library, its file,
        the launcher and what to do.
    """
    env = os.environ if environ is None else environ
    launch = detect(env)
    if (
        launch is None
        or launch.size is None
        or mpi_world.size >= launch.size
        or settings.ALLOW_SINGLETONS.get(env)
    ):
        return
    if _was_spawned():
        return  # by MPI_Comm_spawn: a world of its own, with its parents' variables
    raise LaunchError(_message(launch, mpi_world.size, library_version(), library_path()))


def library_version() -> str:
    """First line of ``MPI.Get_library_version()``, without the NUL byte that Open MPI 5.0.11 ends it with."""
    from mpi4py import MPI

    return " ".join(MPI.Get_library_version().replace("\0", "").strip().partition("\n")[0].split())


def library_path() -> Path | None:
    """File of the MPI library that this process has loaded; None where the system does not tell."""
    try:
        maps = Path("/proc/self/maps").read_text(errors="surrogateescape")
    except OSError:
        return None
    for line in maps.splitlines():
        path = Path(line.partition("/")[1] + line.partition("/")[2])
        if _LIBRARY.fullmatch(path.name):
            return path
    return None


def cuda_support() -> bool | None:
    """Whether the MPI library says that it takes CUDA memory; None if it has no way to say. MPI must be started."""
    path = library_path()
    for library in (None, str(path) if path else None):
        try:
            return bool(ctypes.CDLL(library).MPIX_Query_cuda_support())
        except (AttributeError, OSError):
            continue
    return None


def mpirun_of(library: Path | None) -> Path | None:
    """The ``mpirun`` installed with the MPI library `library`; None if there is none beside it."""
    if library is None:
        return None
    flavours: tuple[str, ...] = ("mpirun",)
    if re.search("openmpi|open-mpi", str(library)):
        flavours = ("mpirun.openmpi", "mpirun")
    elif "mpich" in str(library):
        flavours = ("mpirun.mpich", "mpirun")
    for prefix in list(library.parents)[1:6]:
        for flavour in flavours:
            candidate = prefix / "bin" / flavour
            if os.access(candidate, os.X_OK):
                return candidate
    return None


def _was_spawned() -> bool:
    from mpi4py import MPI

    return MPI.Comm.Get_parent() != MPI.COMM_NULL


def _message(launch: Launch, size: int, version: str, library: Path | None) -> str:
    ranks = "rank 0 of 1" if size == 1 else f"in a world of {size}"
    return (
        f"{launch.launcher} started {launch.size} processes, but to MPI number {launch.rank} is {ranks}: "
        "launcher and MPI library do not belong together.\n"
        f"  MPI library: {version}\n"
        f"  loaded from: {library or 'unknown'}\n"
        f"  launcher:    {launch.launcher}, {launch.size} processes\n"
        f"  fix:         {_fix(launch, version, library)}\n"
        f"  (If these processes are to run apart from one another, set {ESCAPE}=1.)"
    )


def _fix(launch: Launch, version: str, library: Path | None) -> str:
    mpirun = mpirun_of(library)
    start = f"{mpirun or 'the mpirun of this MPI library'} -n {launch.size} python ..."
    if launch.launcher == "srun":
        kind = "pmix" if "Open MPI" in version else "pmi2 (or pmix, if this MPI was built with it)"
        intel = " with I_MPI_PMI_LIBRARY set to Slurm's libpmi2.so" if "Intel" in version else ""
        return f"`srun --mpi=list` shows what Slurm offers; use --mpi={kind}{intel}; or start it with {start}"
    if launch.launcher in ("torchrun", "RANK and WORLD_SIZE"):
        return f"start it with {start} instead; MPI gives rank and size, torchrun is not needed"
    return f"start it with {start}, or install the mpi4py of the MPI that {launch.launcher} belongs to"
