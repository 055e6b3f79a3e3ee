"""The work objects that torch gets from our process groups.

A synchronous operation is over when its method returns, so all of them share one object. An asynchronous one carries
hpccoll's :class:`~hpccoll.work.Work`. DDP never waits for a work: it takes the future, which therefore has to be
completed by the thread that ends the operation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hpccoll.errors import WaitTimeout
from hpccoll.torch_backend.torch_internals import hide_from_compiler
from hpccoll.work import Work


@hide_from_compiler
class DoneWork(dist.Work):  # type: ignore[misc]
    """An operation that was over before anybody could ask."""

    def __init__(self, tensors: Sequence[torch.Tensor] = ()):
        super().__init__()
        self._tensors = list(tensors)

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> list[torch.Tensor]:
        return list(self._tensors)

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        future = _new_future(self._tensors)
        future.set_result(list(self._tensors))
        return future


DONE = DoneWork()


@hide_from_compiler
class PendingWork(dist.Work):  # type: ignore[misc]
    """An operation under way, made of one or several of hpccoll's.

    Parameters
    ----------
    works
        In the order in which they were issued.
    tensors
        What ``result()`` and the future give.
    finish
        Called once when the last of them is complete and none has failed: copies results to where they belong.
    describe
        Gives the operation's name, sequence number and ranks for the message of a timeout.
    limit_s
        The limit of a ``wait()`` without one; None waits for as long as it takes.
    """

    def __init__(
        self,
        works: Sequence[Work],
        tensors: Sequence[torch.Tensor],
        finish: Callable[[], Any] | None,
        describe: Callable[[], str],
        limit_s: float | None = None,
    ):
        super().__init__()
        self._works = works
        self._tensors = list(tensors)
        self._finish = finish
        self._describe = describe
        self._limit_s = limit_s
        self._error: BaseException | None = None
        self._ended: threading.Event | None = None
        self._after_end: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        if finish is not None:
            # The thread that ends the operation runs it: a future must not be complete before.
            self._ended = threading.Event()
            works[-1].add_done_callback(self._end)

    def _end(self, _: Work) -> None:
        try:
            self._raise_first_error()
            self._finish()  # type: ignore[misc]
        except BaseException as error:
            self._error = error
        self._finish = None
        with self._lock:
            self._ended.set()  # type: ignore[union-attr]
        for complete in self._after_end:
            complete()

    def _raise_first_error(self) -> None:
        for work in self._works:
            error = work.exception()
            if error is not None:
                raise error

    def wait(self, timeout: timedelta | None = None) -> bool:
        limit_s = timeout.total_seconds() if timeout is not None else 0.0
        if limit_s <= 0:  # torch's way to say "none given"
            limit_s = self._limit_s  # type: ignore[assignment]
        try:
            for work in self._works:
                work.wait(limit_s)
        except WaitTimeout:
            raise dist.DistBackendError(f"{self._describe()}: Timed out after {limit_s:g} s") from None
        if self._ended is not None:
            self._ended.wait()
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return all(work.test() for work in self._works) and (self._ended is None or self._ended.is_set())

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        if not self.is_completed():
            return None
        return self._error or next((work.exception() for work in self._works if work.exception()), None)

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return list(self._tensors)

    def _source_rank(self) -> int:
        self.wait()
        return getattr(self._works[-1], "source", None) if self._works else -1  # type: ignore[return-value]

    source_rank = _source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        # A future that torch itself fails reaches its C++ users as an error; set_exception would hand them an object.
        started: torch.futures.Future[None] = torch.futures.Future()
        future = started.then(self._value) if not _devices(self._tensors) else self._device_future(started)
        self._when_done(lambda: started.set_result(None))
        return future

    def _when_done(self, complete: Callable[[], None]) -> None:
        last = self._works[-1]
        if getattr(last, "method", "") in ("send", "recv"):
            # MPI's requests make progress only while somebody asks, and nobody waits for a future.
            threading.Thread(
                target=self._wait_and, args=[complete], daemon=True, name="hpccoll request"
            ).start()
        elif self._ended is None:
            last.add_done_callback(lambda _: complete())
        else:
            with self._lock:
                if not self._ended.is_set():
                    self._after_end.append(complete)
                    return
            complete()

    def _wait_and(self, complete: Callable[[], None]) -> None:
        try:
            self.wait()
        except Exception as error:
            self._error = error
        complete()

    def _value(self, _: Any = None) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        self._raise_first_error()
        return list(self._tensors)

    def _device_future(self, started: torch.futures.Future[None]) -> torch.futures.Future[list[torch.Tensor]]:
        future = _new_future(self._tensors)

        def pass_on(_: Any) -> None:
            try:
                future.set_result(self._value())
            except Exception as error:
                future.set_exception(error)  # type: ignore[arg-type]

        started.add_done_callback(pass_on)
        return future


@hide_from_compiler
class CoalescedWork(DoneWork):
    """The operations between ``_start_coalescing`` and ``_end_coalescing``."""

    def __init__(self, works: Sequence[Any]):
        super().__init__([tensor for work in works for tensor in work._tensors])
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def get_future(self) -> Any:
        return torch.futures.collect_all([work.get_future() for work in self._works]).then(
            lambda _: list(self._tensors)
        )


def _devices(tensors: Sequence[torch.Tensor]) -> list[torch.device]:
    return sorted({tensor.device for tensor in tensors if not tensor.is_cpu}, key=str)


def _new_future(tensors: Sequence[torch.Tensor]) -> torch.futures.Future[list[torch.Tensor]]:
    return torch.futures.Future(devices=_devices(tensors)) if _devices(tensors) else torch.futures.Future()
