"""What an engine has to offer, and the timed calls themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from hpccoll.bench import clock
from hpccoll.bench.case import Buffers
from hpccoll.comm import Comm

__all__ = ["Bound", "Engine", "joint_reason"]


class Bound:
    """A collective on given buffers, ready to be called again and again.

    Attributes
    ----------
    call : callable
        Makes the call once, to completion.
    """

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call

    def load(self) -> None:
        """Before the timed region: take the input from the buffers, if the call works on others."""

    def unload(self) -> None:
        """After the timed region: put the result into the buffers."""

    def timed(self, calls: int) -> tuple[int, int]:
        """Make the call `calls` times; the clock before the first and after the last."""
        now, call = clock.now_ns, self.call
        if calls == 1:
            start = now()
            call()
            return start, now()
        repeat = range(calls)
        start = now()
        for _ in repeat:
            call()
        return start, now()


class Engine:
    """Something that can make collective calls.

    Attributes
    ----------
    name : str
        As on the command line.
    kind : str
        The buffers that it takes: ``numpy`` or ``torch``.
    """

    name: str
    kind: str

    def open(self, comm: Comm, control: Any) -> str | None:
        """Get ready; why that cannot be, the same on every rank. Collective over `comm` and `control`."""
        return None

    def refuses(self, collective: str, dtype: str, buffers: Buffers) -> str | None:
        """Why it cannot make this call on this rank; None if it can. Collective."""
        return None

    def bind(self, collective: str, comm: Comm, buffers: Buffers) -> Bound:
        """The call on `buffers`."""
        raise NotImplementedError

    def chain(self, bounds: Sequence[Bound]) -> Bound:
        """Calls one after the other as one."""
        calls = [bound.call for bound in bounds]

        def every() -> None:
            for call in calls:
                call()

        return Bound(every)

    def close(self) -> None:
        """Undo `open`. Collective."""


def joint_reason(control: Any, reason: str | None) -> str | None:
    """The reason of the lowest rank that has one, on every rank."""
    first = control.allreduce(control.rank if reason else control.size, MPI.MIN)
    if first == control.size:
        return None
    text: str = control.bcast(reason, first)
    return text if control.size == 1 or first == 0 else f"{text} (rank {first})"
