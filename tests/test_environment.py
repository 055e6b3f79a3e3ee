"""hpccoll.environment: which launcher started this process, from its variables."""

import pytest

from hpccoll import environment
from hpccoll.environment import Launch, detect

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_RANK": "3",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
BATCH_SHELL = {
    "SLURM_JOB_ID": "7",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "8",
    "SLURM_NODEID": "0",
}
STEP = {
    **BATCH_SHELL,
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_STEP_TASKS_PER_NODE": "4,2",
}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        (OPEN_MPI, Launch("Open MPI mpirun", 3, 8, 1, 4)),
        (HYDRA, Launch("Hydra mpirun", 1, 2, 1, 2)),
        (
            {
                "PALS_RANKID": "1",
                "PMI_SIZE": "4",
                "PMI_RANK": "1",
                "PALS_LOCAL_RANKID": "1",
                "PALS_LOCAL_SIZE": "2",
            },
            Launch("PALS", 1, 4, 1, 2),
        ),
        (
            {"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_LOCAL_RANK": "0"},
            Launch("MVAPICH mpirun", 1, 2, 0, None),
        ),
        (
            {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2", "FLUX_TASK_LOCAL_ID": "1"},
            Launch("Flux", 1, 2, 1, None),
        ),
        (TORCHRUN, Launch("torchrun", 2, 4, 0, 2)),
        (STEP, Launch("srun", 5, 6, 1, 2)),
        ({**STEP, "PMIX_RANK": "5"}, Launch("srun", 5, 6, 1, 2)),
        ({**STEP, "PMI_RANK": "5", "PMI_SIZE": "6"}, Launch("srun", 5, 6, 1, 2)),
        ({"PMIX_RANK": "5"}, Launch("PMIx", 5, None)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, Launch("RANK and WORLD_SIZE", 1, 2)),
    ],
)
def test_detect(environ: dict[str, str], expected: Launch | None) -> None:
    assert detect(environ) == expected


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [
        ({**STEP, **OPEN_MPI}, "Open MPI mpirun"),  # mpirun in an srun'd shell
        ({**STEP, **HYDRA}, "Hydra mpirun"),
        ({**BATCH_SHELL, **OPEN_MPI}, "Open MPI mpirun"),
        ({**OPEN_MPI, **TORCHRUN}, "torchrun"),
        ({**OPEN_MPI, "RANK": "0", "WORLD_SIZE": "2"}, "Open MPI mpirun"),  # exported for torch by a script
    ],
)
def test_innermost_launcher_wins(environ: dict[str, str], launcher: str) -> None:
    found = detect(environ)
    assert found is not None
    assert found.launcher == launcher


@pytest.mark.parametrize(
    "environ",
    [
        BATCH_SHELL,
        # The shells of `salloc` and of the batch job are steps to some versions of Slurm, with ids of their
        # own.
        {**STEP, "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290"},
        {**STEP, "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967291"},
        {**BATCH_SHELL, "SLURM_STEP_ID": "0"},
        {"OMPI_COMM_WORLD_RANK": "0"},
        {"OMPI_COMM_WORLD_RANK": "x", "OMPI_COMM_WORLD_SIZE": "2"},
        {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "2"},
        {"PMI_RANK": "-1", "PMI_SIZE": "2"},
        {"WORLD_SIZE": "4"},
    ],
)
def test_nothing_launched(environ: dict[str, str]) -> None:
    assert detect(environ) is None


@pytest.mark.parametrize(
    ("text", "node", "tasks"),
    [
        ("4", 0, 4),
        ("4(x2),3", 1, 4),
        ("4(x2),3", 2, 3),
        ("4(x2),3", 3, None),
        ("", 0, None),
        ("4", None, None),
        ("4(y", 0, None),
    ],
)
def test_slurm_tasks_per_node(text: str, node: int | None, tasks: int | None) -> None:
    assert environment._tasks_of_node(text, node) == tasks


def test_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in HYDRA.items():
        monkeypatch.setenv(name, value)
    for name in (*OPEN_MPI, *TORCHRUN):
        monkeypatch.delenv(name, raising=False)
    assert detect() == Launch("Hydra mpirun", 1, 2, 1, 2)
    assert not environment.is_first_rank()
    assert environment.is_first_rank({})


def test_hostname_has_no_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment.socket, "gethostname", lambda: "node7.cluster.example")
    assert environment.hostname() == "node7"


def test_usable_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment.usable_cores() >= 1
    monkeypatch.setattr(environment.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(
        environment, "_core_of", lambda thread: str(thread // 2)
    )  # two hardware threads a core
    monkeypatch.setattr(environment, "_cpu_quota", lambda: 1e9)
    assert environment.usable_cores() == 2
    monkeypatch.setattr(environment, "_cpu_quota", lambda: 1.5)
    assert environment.usable_cores() == 1
    monkeypatch.setattr(environment, "_cpu_quota", lambda: 0.5)
    assert environment.usable_cores() == 1
