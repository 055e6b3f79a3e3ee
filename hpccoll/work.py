"""Work: an operation that has been issued and may still be running.

Collectives with ``blocking=False`` run on a thread of their communicator, one after the other in the order of
the calls, as blocking MPI calls that hold no GIL. MPI's own non-blocking collectives progress only while the
program is inside MPI; a thread also completes what nobody waits for. Sends and receives are MPI requests:
they have no order among themselves, so one thread for them could deadlock.
"""

from __future__ import annotations

import atexit
import math
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from hpccoll import leaving, settings
from hpccoll.errors import ArgumentError, CommunicatorError, WaitTimeout
from hpccoll.failures import transfer_error
from hpccoll.recorder import limits, ring

_EXIT_TIMEOUT_S = settings.EXIT_TIMEOUT_S.get_or_default()


class Work:
    """An operation under way.

    Attributes
    ----------
    method : str
        The collective: ``"allreduce"`` …
    result : object
        What the blocking call would have returned; waits for it if need be.
    """

    def __init__(self, method: str):
        self.method = method
        self._result: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Work], Any]] = []
        self._lock = threading.Lock()
        self._done = False
        self._noticed = False

    def __del__(self) -> None:
        if self._error is not None and not self._noticed:
            print(f"hpccoll: {self.method} failed, and nobody waited for it: {self._error}", file=sys.stderr)

    def wait(self, timeout_s: float | None = None) -> Any:
        """Wait until the operation is complete and return its result.

        Parameters
        ----------
        timeout_s : float, optional
            How long to wait, in seconds; by default without limit.

        Raises
        ------
        WaitTimeout
            It took longer. The operation goes on, its buffers stay in use, and a later wait may succeed.
        TransferError
            MPI reported an error. What else the operation raised is raised as it was.
        """
        if not self._done and not self._await(_limit(timeout_s, self.method)):
            raise WaitTimeout(
                f"{self.method}: not complete after {timeout_s:g} s; the operation goes on and its buffers stay in use"
            )
        if self._error is not None:
            self._noticed = True
            raise self._error
        return self._result

    def test(self) -> bool:
        """Tell whether the operation is complete, without waiting."""
        return self._done or self._await(0)

    @property
    def result(self) -> Any:
        return self.wait()

    def exception(self) -> BaseException | None:
        """Return the exception of a complete operation, None if it has succeeded or is still running."""
        self._noticed = True
        return self._error if self.test() else None

    def add_done_callback(self, callback: Callable[[Work], Any]) -> None:
        """Call ``callback(work)`` when the operation completes: on the thread that ends it, or here if it has
        ended.

        A collective's own thread calls it before it starts on the next operation, so collectives issued
        inside run there at once, in an order that all ranks share. Exceptions in it are printed and go no
        further.
        """
        with self._lock:
            if not self._done:
                self._callbacks.append(callback)
                return
        _call(callback, self)

    def _await(self, timeout_s: float | None) -> bool:
        """Wait, at most so long; return whether it is complete. Subclasses say how."""
        raise NotImplementedError

    def _complete(self, result: Any = None, error: BaseException | None = None) -> None:
        with self._lock:
            self._result, self._error = result, error
            self._done = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            _call(callback, self)

    def __repr__(self) -> str:
        state = (
            "pending" if not self._done else "complete" if self._error is None else f"failed: {self._error}"
        )
        return f"<Work {self.method}, {state}>"


def _limit(timeout_s: Any, method: str) -> float | None:
    """A limit that locks and clocks can work with, or ArgumentError."""
    if timeout_s is None:
        return None
    try:
        limit_s = float(timeout_s)
    except (TypeError, ValueError):
        limit_s = math.nan
    if math.isnan(limit_s):
        raise ArgumentError(f"{method}: `timeout_s` must be seconds or None, got {timeout_s!r}")
    return min(max(limit_s, 0.0), threading.TIMEOUT_MAX)


def _call(callback: Callable[[Work], Any], work: Work) -> None:
    try:
        callback(work)
    except Exception:
        sys.excepthook(*sys.exc_info())


# ---- Collectives


class ThreadWork(Work):
    """A collective that the communicator's worker runs."""

    def __init__(self, method: str, run: Callable[[], Any]):
        super().__init__(method)
        self._run: Callable[[], Any] | None = run
        self._event = threading.Event()
        self.worker: Worker | None = None

    def _await(self, timeout_s: float | None) -> bool:
        if timeout_s != 0 and self.worker is not None and self.worker.is_current:
            raise CommunicatorError(
                f"{self.method}: a callback of the same communicator waits for it, and it can only start when the "
                "callback has ended; use add_done_callback here too"
            )
        return self._event.wait(timeout_s)

    def execute(self) -> None:
        """Run the operation here and complete."""
        result, error = None, None
        try:
            result = self._run()  # type: ignore[misc]
        except BaseException as raised:
            error = raised
        self._run = None  # lets go of the buffers
        self._complete(result, error)
        self._event.set()


class Worker:
    """The thread that runs a communicator's non-blocking collectives in order."""

    def __init__(self, name: str):
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise CommunicatorError(
                "blocking=False needs MPI_THREAD_MULTIPLE, and this MPI was started with less; "
                'set mpi4py.rc.thread_level = "multiple" (the default) before mpi4py.MPI is imported, or use an MPI '
                "built with it"
            )
        self.submitted = 0
        self.completed = 0
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[ThreadWork | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()
        _workers.add(self)

    @property
    def idle(self) -> bool:
        return self.submitted == self.completed

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this worker: in a callback."""
        return threading.get_ident() == self._thread.ident

    def submit(self, work: ThreadWork) -> None:
        work.worker = self
        with self._lock:
            self.submitted += 1
        self._queue.put(work)

    def stop(self) -> None:
        """End the thread after what is queued."""
        self._queue.put(None)
        _workers.discard(self)

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is pending; return whether it came to that."""
        deadline = time.monotonic() + timeout_s
        while not self.idle and time.monotonic() < deadline:
            time.sleep(0.001)
        return self.idle

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            work.execute()
            del work  # the next get() may last for hours; the result must not
            self.completed += 1


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


@atexit.register
def finish_pending() -> None:
    """Before MPI is finalised, let pending collectives end; if they do not, end the job instead of hanging.

    Under a limit, meet the other ranks then.
    """
    deadline = time.monotonic() + _EXIT_TIMEOUT_S
    for worker in list(_workers):
        if not worker.drain(max(0.0, deadline - time.monotonic())):
            sys.stdout.flush()
            print(
                f"hpccoll: rank {MPI.COMM_WORLD.rank}: a collective was still pending {_EXIT_TIMEOUT_S:g} s after "
                "the end of the program (another rank has not joined it); ending the job",
                file=sys.stderr,
                flush=True,
            )
            MPI.COMM_WORLD.Abort(1)
    leaving.meet()


# ---- Point to point


class RequestWork(Work):
    """Sends and receives that MPI carries out; the first request is a receive if there is one.

    Attributes
    ----------
    source, tag, nbytes : int or None
        Of a completed receive: who sent, with which tag, how many bytes.
    """

    def __init__(self, method: str, requests: list[Any], finish: Callable[[Any], Any], mpi: Any = None):
        super().__init__(method)
        self._mpi = mpi
        self.source: int | None = None
        self.tag: int | None = None
        self.nbytes: int | None = None
        self._requests = requests
        self._finish: Callable[[Any], Any] | None = finish
        self._asking = threading.Lock()
        self._entry: list[Any] | None = None
        # MPI uses the buffers until the end, also when the caller has dropped this object.
        _pending.add(self)
        if len(_pending) >= _REAP_FROM:
            for work in list(_pending):
                work.test()

    def _await(self, timeout_s: float | None) -> bool:
        if self._entry is not None and timeout_s != 0:
            self._entry[ring.WAITING] = ring.now_ns(), limits.current()
        try:
            return self._await_turn(timeout_s)
        finally:
            if self._entry is not None:
                self._entry[ring.WAITING] = None

    def _await_turn(self, timeout_s: float | None) -> bool:
        # One thread at a time asks MPI; the others find the answer.
        if not self._asking.acquire(timeout=-1 if timeout_s is None else timeout_s):
            return False
        try:
            return self._done or self._ask(timeout_s)
        finally:
            self._asking.release()

    def _ask(self, timeout_s: float | None) -> bool:
        statuses = [MPI.Status() for _ in self._requests]
        result = None
        error: BaseException | None = None
        try:
            if timeout_s is None:
                MPI.Request.Waitall(self._requests, statuses)
            elif not self._poll(statuses, timeout_s):
                return False
            if self.method != "send":
                self.source, self.tag = statuses[0].Get_source(), statuses[0].Get_tag()
                self.nbytes = statuses[0].Get_elements(MPI.BYTE)
            result = self._finish(statuses[0])  # type: ignore[misc]
        except MPI.Exception as raised:
            error = transfer_error(self.method, raised, self._mpi, statuses)
            if any(request != MPI.REQUEST_NULL for request in self._requests):
                _abandoned.append((self._requests, self._finish))  # MPI may still write into their buffers
        except Exception as raised:
            error = raised
        self._finish = None
        _pending.discard(self)
        if self._entry is not None:
            _note_end(self._entry, error)
        self._complete(result, error)
        return True

    def carry(self, entry: list[Any]) -> None:
        """Note the end in the flight recorder's entry."""
        self._entry = entry
        if self._done:
            _note_end(entry, self._error)

    def _poll(self, statuses: list[Any], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        pause_s = 0.0
        while not MPI.Request.Testall(self._requests, statuses):
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause_s)
            pause_s = min(pause_s + 1e-6, 1e-3)
        return True


def _note_end(entry: list[Any], error: BaseException | None) -> None:
    if error is None:
        ring.finish(entry)
    else:
        ring.fail(entry)


_pending: set[RequestWork] = set()
_abandoned: list[Any] = []
_REAP_FROM = 64
