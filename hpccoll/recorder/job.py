"""What the recorder knows of the job: this process's place in it, and where dumps go.

It is told when the job's communicator is made, so that nothing has to be asked of MPI later.
"""

from __future__ import annotations

import os
import secrets
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpccoll import settings
from hpccoll.recorder import places

__all__ = ["Job", "enter", "known", "proposal", "proposal_of_launcher"]


@dataclass(frozen=True)
class Job:
    """One process of a job.

    Attributes
    ----------
    rank, size : int
        In the world.
    directory : Path
        Where dumps go; it need not exist.
    run : str
        A word that tells this run from others that have used the directory.
    pid : int
        Of the process that is meant: a forked child is none.
    mpi : str
        The MPI library.
    meets : bool
        Whether the ranks wait for one another at their end.
    entered_s : float
        Unix time.
    hosts : mapping of str to str
        The ranks of each host, ``"0-3"``; empty while they are not known.
    neighbours : mapping of int to int
        Process numbers of the other ranks on this host.
    """

    rank: int
    size: int
    directory: Path
    run: str
    pid: int
    mpi: str
    meets: bool
    entered_s: float
    hosts: Mapping[str, str] = field(default_factory=dict)
    neighbours: Mapping[int, int] = field(default_factory=dict)


_job: Job | None = None

when_entered: list[Callable[[Job], None]] = []
"""Called with the job when it is known."""


def known() -> Job | None:
    """The job; None before there is one, and in a forked child."""
    return _job if _job is not None and _job.pid == os.getpid() else None


def proposal(run: str | None = None) -> dict[str, Any]:
    """What rank 0 tells the others: where dumps go, the name of this run, and whether there is a limit."""
    run = run or secrets.token_hex(4)
    directory = settings.DUMP_DIR.text()
    if not directory:
        from hpccoll.records.lines import job_id

        batch = job_id()
        words = ["hpccoll-dump", *([batch["id"]] if batch else []), time.strftime("%Y%m%dT%H%M%S"), run[:4]]
        directory = "-".join(words).replace(os.sep, "_")
    return {
        "directory": os.path.abspath(directory),
        "run": run,
        "meets": settings.TIMEOUT_S.get() is not None,
    }


def proposal_of_launcher() -> dict[str, Any]:
    """The same where ranks cannot talk: from what the launcher tells all of them alike."""
    words = [os.environ.get(name, "") for name in ("PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID")]
    word = "".join(words) or str(os.getppid())
    agreed = proposal(f"{zlib.crc32(word.encode()):08x}")
    if not settings.DUMP_DIR.text():
        agreed["directory"] = os.path.abspath(f"hpccoll-dump-{agreed['run']}")
    return {**agreed, "meets": False}


def enter(rank: int, size: int, mpi: str, agreed: dict[str, Any], where: Sequence[places.Place] = ()) -> None:
    """Make the job known. `agreed` is rank 0's `proposal`, `where` the places of all ranks, or nothing."""
    global _job
    hosts, neighbours = places.laid_out(where, rank) if where else ({}, {})
    _job = Job(
        rank=rank,
        size=size,
        directory=Path(agreed["directory"]),
        run=agreed["run"],
        pid=os.getpid(),
        mpi=mpi,
        meets=agreed["meets"] and size > 1,
        entered_s=time.time(),
        hosts=hosts,
        neighbours=neighbours,
    )
    for call in when_entered:
        call(_job)


def end_meeting() -> None:
    """Do not wait for the others at the end: some of them are known to be lost."""
    global _job
    if _job is not None:
        _job = replace(_job, meets=False)
