"""What the launcher says about this process, before MPI is started.

After ``MPI_Init`` the communicator is the truth. These variables serve what comes before it (who prints a
usage error) and the check that launcher and MPI agree (`hpccoll.gate`).
"""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Launch", "detect", "hostname", "is_first_rank", "usable_cores"]


@dataclass(frozen=True)
class Launch:
    """One process as its launcher sees it.

    Attributes
    ----------
    launcher : str
        ``torchrun``, ``Open MPI mpirun``, ``PALS``, ``MVAPICH mpirun``, ``Hydra mpirun``, ``Flux``, ``srun``
        or ``PMIx``; ``RANK and WORLD_SIZE`` where only these two are set.
    rank : int
        Rank in the job or job step.
    size : int or None
        Number of processes; None where the launcher has no variable for it (PMIx).
    local_rank, local_size : int or None
        The same among the processes of this host; None where the launcher does not say.
    """

    launcher: str
    rank: int
    size: int | None
    local_rank: int | None = None
    local_size: int | None = None


# launcher, the variable that marks it, rank, size, local rank, local size; the innermost comes first: a
# launcher inside a job of another inherits the outer one's variables, never the other way round.
_TABLE = (
    ("torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    (
        "Open MPI mpirun",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("PALS", "PALS_RANKID", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
    (
        "MVAPICH mpirun",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    ("Hydra mpirun", "PMI_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("Flux", "FLUX_TASK_RANK", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", ""),
)

# Step ids from here on are Slurm's own: the batch shell, the interactive shell of salloc, the extern step.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


def detect(environ: Mapping[str, str] | None = None) -> Launch | None:
    """What the innermost launcher says about this process; None for a process that no launcher started.

    Parameters
    ----------
    environ
        The variables to read; those of this process if left out.
    """
    env = os.environ if environ is None else environ
    slurm = _slurm(env)
    for launcher, mark, rank_name, size_name, local_rank_name, local_size_name in _TABLE:
        rank, size = _integer(env, rank_name), _integer(env, size_name)
        if mark in env and rank is not None and size is not None and rank < size:
            local_rank, local_size = _integer(env, local_rank_name), _integer(env, local_size_name)
            if launcher == "Hydra mpirun" and slurm and (slurm.rank, slurm.size) == (rank, size):
                return slurm  # srun --mpi=pmi2 sets PMI_RANK and PMI_SIZE too
            return Launch(launcher, rank, size, local_rank, local_size)
    if slurm:
        return slurm
    rank, size = _integer(env, "PMIX_RANK"), None
    if rank is not None:
        return Launch("PMIx", rank, size)
    rank, size = _integer(env, "RANK"), _integer(env, "WORLD_SIZE")
    if rank is not None and size is not None and rank < size:
        local_rank, local_size = _integer(env, "LOCAL_RANK"), _integer(env, "LOCAL_WORLD_SIZE")
        return Launch("RANK and WORLD_SIZE", rank, size, local_rank, local_size)
    return None


def is_first_rank(environ: Mapping[str, str] | None = None) -> bool:
    """Whether this process is rank 0 as far as the launcher says, or was started without one."""
    launch = detect(environ)
    return launch is None or launch.rank == 0


def hostname() -> str:
    """Name of this host without its domain."""
    return socket.gethostname().partition(".")[0]


def usable_cores() -> int:
    """Cores that this process may use: those of its affinity mask, as far as its CPU quota reaches.

    Hardware threads of a core count once. It is what the ranks of a host share, and at least 1.
    """
    try:
        threads = os.sched_getaffinity(0)
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1
    cores = {_core_of(thread) for thread in threads}
    return max(1, min(len(cores), int(_cpu_quota())))


def _core_of(thread: int) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{thread}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(thread)


def _cpu_quota() -> float:
    """CPUs' worth of time that the control group grants (``docker run --cpus``), or very many."""
    unlimited = 1e9
    for root, names in (("", ("cpu.max",)), ("cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us"))):
        try:
            texts = [Path("/sys/fs/cgroup", root, name).read_text() for name in names]
            quota, period = " ".join(texts).split()
            return int(quota) / int(period) if int(quota) > 0 else unlimited
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return unlimited


def _integer(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    return int(text) if re.fullmatch(r"[0-9]{1,10}", text) else None


def _slurm(env: Mapping[str, str]) -> Launch | None:
    """The task of a job step that srun started.

    The batch shell and the shell of salloc have SLURM_PROCID=0 and SLURM_NTASKS too, and a program started
    there is alone on purpose; only a step has SLURM_STEP_NUM_TASKS and an ordinary step id.
    """
    rank, size = _integer(env, "SLURM_PROCID"), _integer(env, "SLURM_STEP_NUM_TASKS")
    step = _integer(env, "SLURM_STEP_ID")
    if rank is None or size is None or rank >= size or step is None or step >= _FIRST_SPECIAL_STEP:
        return None
    local_size = _tasks_of_node(env.get("SLURM_STEP_TASKS_PER_NODE", ""), _integer(env, "SLURM_NODEID"))
    return Launch("srun", rank, size, _integer(env, "SLURM_LOCALID"), local_size)


def _tasks_of_node(text: str, node: int | None) -> int | None:
    """Tasks on the node with the index `node`, from Slurm's ``4(x2),3`` (two nodes of 4 tasks, one of 3)."""
    if node is None:
        return None
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            return None
        node -= int(match[2] or 1)
        if node < 0:
            return int(match[1])
    return None
