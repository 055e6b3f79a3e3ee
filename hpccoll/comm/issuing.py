"""The part of a communicator that issues operations: on the caller's thread, or on the communicator's own."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from hpccoll.comm import identity
from hpccoll.errors import ArgumentError, CommunicatorError, TransferError
from hpccoll.failures import transfer_error
from hpccoll.recorder import ring, seam
from hpccoll.work import ThreadWork, Worker


class Issuing:
    """A communicator that runs operations in the order of their calls.

    Attributes
    ----------
    rank, size : int
    mpi : mpi4py.MPI.Intracomm
        The communicator beneath; once freed, an object that raises CommunicatorError.
    """

    mpi: Any
    _check: Callable[[list[Any], tuple[Any, ...], dict[str, Any]], None] | None = None
    """Check mode's hook; see :mod:`hpccoll.recorder.seam`."""

    def __init__(self, mpi: Any, log: ring.Log | None = None):
        if not isinstance(mpi, MPI.Intracomm) or mpi == MPI.COMM_NULL:
            raise ArgumentError(f"Comm: `mpi` must be an mpi4py intracommunicator, got {mpi!r}")
        self.mpi = mpi
        self.rank: int = mpi.rank
        self.size: int = mpi.size
        self._worker: Worker | None = None
        self._log = log if log is not None else identity.of_wrapped(mpi)
        live.add(self)

    def run(self, method: str, operation: Callable[[], Any], blocking: bool = True) -> Any:
        """Run something that communicates in its turn: after what is pending on this communicator.

        Parameters
        ----------
        method : str
            Its name, for messages.
        operation : callable
            Takes nothing, returns the result. Collectives of this communicator called in it run at once.
        blocking : bool
            Whether to wait. Without anything pending a blocking operation stays on the caller's thread.

        Returns
        -------
        What `operation` returns, or with ``blocking=False`` a Work
        """
        return self._run(method, self.recorded(method, operation, blocking), blocking)

    def recorded(self, method: str, operation: Callable[[], Any], blocking: bool = True) -> Callable[[], Any]:
        """`operation`, which the flight recorder shows as issued now, and as running when it is called."""
        return seam.recorded(self._log, method, operation, blocking)

    def _run(self, method: str, operation: Callable[[], Any], blocking: bool = True) -> Any:
        """As `run`, for the methods, which are recorded already."""
        if seam.ACTIVE:
            operation = seam.take(operation)
        worker = self._worker
        if blocking and (worker is None or worker.idle or worker.is_current):
            try:
                return operation()
            except MPI.Exception as error:
                raise self._transfer_error(method, error) from error
        if worker is None:
            worker = self._start_worker()

        def guarded() -> Any:
            try:
                return operation()
            except MPI.Exception as error:
                raise self._transfer_error(method, error) from error

        work = ThreadWork(method, guarded)
        if worker.is_current:
            work.execute()
        else:
            worker.submit(work)
        return work.wait() if blocking else work

    def _directly(self, method: str, call: Callable[..., Any], *args: Any) -> None:
        try:
            call(*args)
        except MPI.Exception as error:
            raise self._transfer_error(method, error) from error

    def _start_worker(self) -> Worker:
        try:
            self.mpi.Get_rank()
        except MPI.Exception as error:  # somebody has freed it with MPI's own call
            raise CommunicatorError(f"{self!r} cannot be used any more: {error}") from error
        with _starting:
            if self._worker is None:
                self._worker = Worker(f"hpccoll worker of {self!r}")
            return self._worker

    def _transfer_error(self, method: str, error: MPI.Exception) -> TransferError:
        return transfer_error(f"{method} on rank {self.rank} of {self.size}", error, self.mpi)

    @property
    def _free_to_go(self) -> bool:
        """Whether a blocking operation may run on the caller's thread at once."""
        worker = self._worker
        return worker is None or worker.idle

    @property
    def pending(self) -> bool:
        """Whether collectives issued with ``blocking=False`` are still under way."""
        return self._worker is not None and not self._worker.idle

    def close(self, reason: str) -> None:
        """Let go of the communicator; every later use raises CommunicatorError with this reason."""
        self.mpi = Gone(reason)

    @property
    def closed(self) -> str | None:
        """Why the communicator can no longer be used; None while it can."""
        return self.mpi.reason if isinstance(self.mpi, Gone) else None


class Gone:
    """Stands where the MPI communicator was, and says why it is not there."""

    def __init__(self, reason: str):
        self.reason = reason

    def __getattr__(self, name: str) -> Any:
        raise CommunicatorError(f"{self.reason}; get a new one from hpccoll.world(), split() or dup()")


_starting = threading.Lock()

live: weakref.WeakSet[Issuing] = weakref.WeakSet()
"""Every communicator that has not been collected: MPI's end closes them."""
