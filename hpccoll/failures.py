"""What MPI's exceptions mean: from an error class to hpccoll's error, with the ranks that are known to be dead."""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import time
from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from hpccoll import gate
from hpccoll.errors import ProcessFailedError, TransferError

_DIED = frozenset((MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING))
_OF_A_FAILURE = _DIED | {MPI.ERR_REVOKED}
# Open MPI's barrier may say of a dead rank that something went wrong, and the news comes a moment later.
_VAGUE = frozenset((MPI.ERR_OTHER, MPI.ERR_UNKNOWN, MPI.ERR_INTERN))
_NEWS_S = 2.0


def transfer_error(
    prefix: str, error: MPI.Exception, mpi: Any = None, statuses: Sequence[Any] = ()
) -> TransferError:
    """Return the error to raise for what MPI has reported.

    Parameters
    ----------
    prefix
        Which operation, where; the message begins with it.
    error
        MPI's exception.
    mpi
        The communicator, asked for the ranks that have failed.
    statuses
        Of the requests, where the exception only says that the error is in them.
    """
    kind = _kind(error, statuses)
    if kind in _VAGUE and mpi is not None:
        kind = _of_late_news(mpi, kind)
    if kind not in _OF_A_FAILURE:
        return TransferError(f"{prefix}: {error}")
    dead = failed_ranks(mpi) if mpi is not None else []
    named = f" (failed: {'rank' if len(dead) == 1 else 'ranks'} {', '.join(map(str, dead))})" if dead else ""
    what = "the communicator has been revoked" if kind == MPI.ERR_REVOKED else "another rank has failed"
    failure = ProcessFailedError(f"{prefix}: {what}{named}: {error}")
    failure.ranks = tuple(dead)
    note_the_dead()
    failure.revoked = kind == MPI.ERR_REVOKED
    return failure


def failed_ranks(mpi: Any) -> list[int]:
    """Ranks of a communicator that this process knows to have failed; none where MPI does not say."""
    try:
        failed, members = mpi.Get_failed(), mpi.Get_group()
    except (MPI.Exception, NotImplementedError, AttributeError):
        return []
    try:
        found = MPI.Group.Translate_ranks(failed, list(range(failed.size)), members)
        return sorted(rank for rank in found if rank != MPI.UNDEFINED)
    finally:
        members.Free()
        if failed != MPI.GROUP_EMPTY:
            failed.Free()


@functools.cache
def ulfm_missing() -> str:
    """Say what is missing and what to do about it; empty if nothing is."""
    name, version = MPI.get_vendor()
    title = f"{name} {'.'.join(map(str, version))}"
    if name == "Open MPI":
        if version < (5, 0, 0):
            return f"{title} has no fault tolerance; Open MPI 5 has"
        # Without it the calls exist and seem to work, and then the end of the program hangs.
        setting = os.environ.get("OMPI_MCA_mpi_ft_enable", "0")  # noqa: SIM112
        if setting.lower() in ("", "0", "false", "no", "f", "n"):
            return (
                f"{title} has its fault tolerance switched off. Start the job with `mpirun --with-ft ulfm`, or under "
                "srun with OMPI_MCA_mpi_ft_enable=1 and --no-kill --kill-on-bad-exit=0"
            )
    try:
        probe = MPI.COMM_SELF.Dup()
        probe.Revoke()
        works = probe.Is_revoked()
        probe.Free()
    except (NotImplementedError, AttributeError, MPI.Exception):
        works = False
    if works:
        return ""
    return (
        f"{title}, as mpi4py sees it, has no fault tolerance (ULFM). Use Open MPI 5 and `mpirun --with-ft ulfm`, or "
        "restart from a checkpoint"
    )


def note_the_dead() -> None:
    """Have MPI_Finalize not wait for ranks that have died.

    Open MPI 5.0 has its launcher count who has come there, and about one time in twenty that goes on to expect the dead
    (open-mpi/ompi issue 11404). The library has a switch that leaves this meeting out.
    """
    if ulfm_missing() or MPI.get_vendor()[0] != "Open MPI":
        return
    try:
        library = ctypes.CDLL(str(gate.library_path()))
        ctypes.c_bool.in_dll(library, "ompi_async_mpi_finalize").value = True
    except (OSError, ValueError):  # a version without it
        return


@atexit.register
def _note_at_exit() -> None:
    # A rank that has not communicated since has met no error.
    if MPI.Is_initialized() and not MPI.Is_finalized() and failed_ranks(MPI.COMM_WORLD):
        note_the_dead()


def is_of_a_failure(error: MPI.Exception) -> bool:
    """Tell whether MPI's exception comes from a dead rank or a revoked communicator."""
    return error.Get_error_class() in _OF_A_FAILURE


def _kind(error: MPI.Exception, statuses: Sequence[Any]) -> int:
    kind = error.Get_error_class()
    if kind == MPI.ERR_IN_STATUS:
        for status in statuses:
            code = status.Get_error()
            if code not in (MPI.SUCCESS, MPI.ERR_PENDING):
                return int(MPI.Get_error_class(code))
    return kind


def _of_late_news(mpi: Any, kind: int) -> int:
    """What an error without a name turns out to be, once the news of a dead rank has come here too."""
    if ulfm_missing():
        return kind
    deadline = time.monotonic() + _NEWS_S
    while time.monotonic() < deadline:
        if mpi.Is_revoked():
            return int(MPI.ERR_REVOKED)
        if failed_ranks(mpi):
            return int(MPI.ERR_PROC_FAILED)
        MPI.COMM_SELF.Iprobe()  # lets MPI work
        time.sleep(0.01)
    return kind
