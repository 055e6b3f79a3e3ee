"""The lines that a job writes, and what it can find out for them without MPI."""

from __future__ import annotations

import math
import os
import platform
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpccoll._version import __version__
from hpccoll.environment import detect
from hpccoll.records.schema import SCHEMA

__all__ = ["git_state", "job_id", "make_end", "make_event", "make_manifest", "make_metric"]


def make_manifest(
    program: str,
    *,
    run: str,
    rank: int,
    size: int,
    local_rank: int | None = None,
    versions: Mapping[str, str | None] | None = None,
    git: Mapping[str, Any] | None = None,
    clock: Mapping[str, Any] | None = None,
    flags: str = "",
) -> dict[str, Any]:
    """First line of a rank: who it is, where it runs, and under which conditions.

    Parameters
    ----------
    program, run, rank, size, local_rank, git, clock, flags
        As in `FIELDS`; `run` has to be the same on every rank.
    versions
        Of what hpccoll cannot know here: ``numpy``, ``torch``, ``mpi4py``, ``mpi``.
    """
    launch = detect()
    return {
        "type": "manifest",
        "schema": SCHEMA,
        "run": run,
        "program": program,
        "rank": rank,
        "size": size,
        "local_rank": local_rank if local_rank is not None or launch is None else launch.local_rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "argv": list(sys.argv),
        "started": _utc(),
        "versions": {
            "hpccoll": __version__,
            "python": platform.python_version(),
            **dict.fromkeys(("numpy", "torch", "mpi4py", "mpi")),
            **(versions or {}),
        },
        "launcher": None
        if launch is None
        else {
            "name": launch.launcher,
            "rank": launch.rank,
            "size": launch.size,
            "local_rank": launch.local_rank,
            "local_size": launch.local_size,
        },
        "job": job_id(),
        "cores": os.cpu_count() or 1,
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
        "environment": _selected(os.environ),
        "git": None if git is None else dict(git),
        "clock": None if clock is None else dict(clock),
        "flags": flags,
    }


def make_event(
    rank: int, level: str, kind: str, text: str, values: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Something that happened: a warning, a size that was skipped."""
    return {
        "type": "event",
        "rank": rank,
        "unix_ns": time.time_ns(),
        "level": level,
        "kind": kind,
        "text": text,
        "values": dict(values or {}),
    }


def make_metric(rank: int, *, step: int, values: Mapping[str, float]) -> dict[str, Any]:
    """Numbers of one step of a job of yours; units belong into the names.

    JSON has no word for what is not finite: these are written as text, ``"nan"``, ``"inf"``, ``"-inf"``.
    """
    plain = {name: float(value) for name, value in values.items()}
    shown = {name: value if math.isfinite(value) else str(value) for name, value in plain.items()}
    return {"type": "metric", "rank": rank, "step": step, "unix_ns": time.time_ns(), "values": shown}


def make_end(rank: int, *, status: str, lines: int) -> dict[str, Any]:
    """Last line of a rank that came to its end; `lines` are those that it wrote before."""
    return {"type": "end", "rank": rank, "status": status, "ended": _utc(), "lines": lines}


def _utc() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


_PREFIXES = (
    *(
        "OMPI_MCA_",
        "PRTE_MCA_",
        "PMIX_MCA_",
        "MPICH_",
        "MPIR_CVAR_",
        "I_MPI_",
        "MV2_",
        "FI_",
        "UCX_",
        "HCOLL_",
    ),
    *(
        "SHARP_",
        "NCCL_",
        "GLOO_",
        "TORCH_",
        "PYTORCH_",
        "OMP_",
        "KMP_",
        "GOMP_",
        "HPCCOLL_",
        "SLURM_CPU_BIND",
    ),
)
_NAMES = (
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("MPI4PY_MPIABI", "MPI4PY_LIBMPI", "MALLOC_ARENA_MAX", "LD_PRELOAD"),
    *("SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "SLURM_MPI_TYPE", "SLURM_DISTRIBUTION"),
)
# What Open MPI's launcher tells its ranks: nobody's choice, and different for each run.
_LAUNCHERS_OWN = (
    *("OMPI_MCA_PREFIXES", "OMPI_MCA_initial_wdir", "OMPI_MCA_num_procs", "OMPI_MCA_cpu_type"),
    *("HPCCOLL_LAUNCH_", "PRTE_MCA_PREFIXES", "PMIX_MCA_PREFIXES"),
)
_SECRET = re.compile("TOKEN|SECRET|PASSW|CREDENTIAL|(^|_)KEY($|_)", re.IGNORECASE)


def _selected(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables worth keeping; never what may be a secret."""
    return {
        name: environ[name]
        for name in sorted(environ)
        if (name in _NAMES or name.startswith(_PREFIXES))
        and not name.startswith(_LAUNCHERS_OWN)
        and not _SECRET.search(name)
    }


_JOBS = (
    ("Slurm", "SLURM_JOB_ID"),
    ("Flux", "FLUX_JOB_ID"),
    ("PBS", "PBS_JOBID"),
    ("LSF", "LSB_JOBID"),
    ("Grid Engine", "JOB_ID"),
)


def job_id(environ: Mapping[str, str] | None = None) -> dict[str, str] | None:
    """``{"system": ..., "id": ...}`` of the batch job that this process belongs to; None outside of one."""
    env = os.environ if environ is None else environ
    for system, name in _JOBS:
        if env.get(name):
            return {"system": system, "id": env[name]}
    return None


def git_state(directory: Path) -> dict[str, Any] | None:
    """``{"commit": ..., "modified": ...}`` of the checkout that holds `directory`; None where there is none.

    It starts git, so call it before MPI is started, and on one rank.
    """

    def ask(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(directory), *words], capture_output=True, text=True, timeout=5.0, check=True
        )
        return done.stdout.strip()

    try:
        return {
            "commit": ask("rev-parse", "HEAD"),
            "modified": bool(ask("status", "--porcelain", "-uno", "--", ".")),
        }
    except (OSError, subprocess.SubprocessError):
        return None
