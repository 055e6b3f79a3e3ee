"""How a rank ends: by an exception, after a timeout, and what becomes of its forked children."""

from __future__ import annotations

import atexit
import os
import sys
import time
import warnings
from typing import Any

import hpccoll
from hpccoll import settings
from hpccoll.recorder.ending import watched

_LEAST_GRACE_S = 5.0
_meeting: Any = None
_grace_s: float | None = None
_process = 0
_forks_guarded = False
_warned = False


def prepare(world: hpccoll.Comm) -> None:
    """Have the ranks meet at their end. Every rank has to call it."""
    global _meeting, _process
    if _meeting is None and world.size > 1:
        _meeting = world.run("init_process_group", world.mpi.Dup)
        _process = os.getpid()
        atexit.register(_leave)


def end_job_on_exception() -> None:
    """Let an uncaught exception on one rank end the job with its traceback.

    The others would wait for that rank for ever. ``HPCCOLL_TORCH_ABORT=0`` leaves Python's own behaviour.
    """
    if settings.TORCH_ABORT.get():
        hpccoll.abort_on_exception()


def after_timeout(limit_s: float) -> None:
    """Remember that an operation was over its limit: some rank may hang, and never come to its end."""
    global _grace_s
    _grace_s = max(_LEAST_GRACE_S, limit_s, _grace_s or 0.0)


def _leave() -> None:
    # MPI_Finalize waits for the other ranks. A rank whose operation has timed out waits here, and not for ever.
    from mpi4py import MPI

    from hpccoll import failures

    if MPI.Is_finalized() or os.getpid() != _process:
        return
    if failures.failed_ranks(MPI.COMM_WORLD):
        return  # in a job that goes on without them; nobody can wait for the dead
    with watched():
        try:
            _meet(MPI)
        except MPI.Exception as error:
            if not failures.is_of_a_failure(error):
                raise


def _meet(MPI: Any) -> None:
    request = _meeting.Ibarrier()
    deadline = float("inf") if _grace_s is None else time.monotonic() + _grace_s
    pause_s = 1e-5
    while not request.Test():
        if time.monotonic() > deadline:
            print(
                f"hpccoll: rank {MPI.COMM_WORLD.rank} has come to its end after a timeout, others have not within "
                f"{_grace_s:g} s; ending the job",
                file=sys.stderr,
                flush=True,
            )
            time.sleep(0.2)  # the launcher may drop what is still in its pipe
            MPI.COMM_WORLD.Abort(1)
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.01)


def guard_forks() -> None:
    """Warn once when this process forks, and let a forked child's operations raise."""
    global _forks_guarded
    if not _forks_guarded and hasattr(os, "register_at_fork"):
        _forks_guarded = True
        os.register_at_fork(before=_warn_of_fork, after_in_child=_forbid_in_child)


def _warn_of_fork() -> None:
    global _warned
    from hpccoll.torch_backend.process_group import live_groups

    if _warned or not live_groups():
        return
    _warned = True
    warnings.warn(
        "this process forks after MPI has started. The child can compute and read files, but must not communicate, and "
        'on some networks MPI itself may crash. For a DataLoader give multiprocessing_context="forkserver" or '
        '"spawn", or make its workers before init_process_group',
        RuntimeWarning,
        stacklevel=2,
    )


def _forbid_in_child() -> None:
    from hpccoll.torch_backend.process_group import live_groups

    for group in live_groups():
        group.forbid(
            "this process was forked from an MPI rank and cannot use its process groups: MPI does not survive a fork"
        )
