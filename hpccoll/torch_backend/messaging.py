"""torch's messages between two ranks, and the barrier that is made of messages, in terms of :class:`hpccoll.Comm`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from hpccoll.torch_backend.arguments import one
from hpccoll.torch_backend.issuing import Issuing
from hpccoll.torch_backend.torch_internals import hide_from_compiler, profiler_enabled
from hpccoll.torch_backend.work import PendingWork
from hpccoll.work import Work


@hide_from_compiler
class Messaging(Issuing):
    """The messages of a process group."""

    limit_s: float

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        tensor = one(tensors)
        if self._elsewhere(tensor):
            return super().send([tensor], dst, tag)
        return self._message(
            "send", lambda: self._comm.send(tensor.detach(), dest=dst, tag=tag, blocking=False), tensor
        )

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        tensor = one(tensors)
        if self._elsewhere(tensor):
            return super().recv([tensor], src, tag)
        return self._message(
            "recv", lambda: self._comm.recv(tensor.detach(), source=src, tag=tag, blocking=False), tensor
        )

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        tensor = one(tensors)
        return self._message(
            "recvAnySource", lambda: self._comm.recv(tensor.detach(), tag=tag, blocking=False), tensor
        )

    def _message(self, name: str, call: Callable[[], Work], tensor: Any) -> PendingWork:
        self._sequence += 1
        finish = self._then_end_range(name, [tensor], None) if profiler_enabled() else None
        # A wait for a message can always give up: nothing is stuck inside MPI.
        return self._pending(name, call(), [tensor], finish, self.limit_s)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier that says which ranks did not come; after gloo's."""
        from hpccoll.torch_backend.monitored import monitored_barrier

        if timeout is None:
            limit_s = self.limit_s
        else:
            limit_s = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
        self._comm.recorded(
            "monitored_barrier", lambda: monitored_barrier(self._comm, limit_s, wait_all_ranks)
        )()
