"""What is timed: a collective through `hpccoll.Comm`, or raw mpi4py with prebuilt buffer specs.

The loop, the buffers, the clock and the verification are the same for every engine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from hpccoll.bench.case import Buffers, Case

if TYPE_CHECKING:
    from hpccoll.comm import Comm

__all__ = ["ENGINES", "CommEngine", "Engine", "RawEngine"]


class Engine(Protocol):
    """Something that can make a collective call.

    Attributes
    ----------
    name : str
        As in the table and the JSON document.
    kind : str
        The buffers that it takes: ``numpy`` or ``torch``.
    """

    name: str
    kind: str

    def bind(self, case: Case, comm: Comm, buffers: Buffers) -> Callable[[], object]:
        """A function of no arguments that makes the call once, to completion."""
        ...


class CommEngine:
    """`hpccoll.Comm` on NumPy arrays or torch tensors, with ``out=``."""

    def __init__(self, kind: str) -> None:
        self.name = self.kind = kind

    def bind(self, case: Case, comm: Comm, buffers: Buffers) -> Callable[[], object]:
        return case.bind(comm, buffers)


class RawEngine:
    """mpi4py's upper-case methods; the buffer specs are built before the loop."""

    name = "mpi4py"
    kind = "numpy"

    def bind(self, case: Case, comm: Comm, buffers: Buffers) -> Callable[[], object]:
        from mpi4py import MPI

        mpi: Any = comm.mpi
        rank, size, root = buffers.place

        def spec(array: Any) -> Any:
            return None if array is None else [array, MPI.Datatype.fromcode(array.dtype.char)]

        send = MPI.IN_PLACE if buffers.in_place else spec(buffers.send)
        recv = spec(buffers.recv)
        op = {"sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX}.get(buffers.op)
        ring = {"dest": (rank + 1) % size, "source": (rank - 1) % size}
        calls: dict[str, Callable[[], object]] = {
            "allreduce": partial(mpi.Allreduce, send, recv, op),
            "broadcast": partial(mpi.Bcast, recv, root),
            "reduce": partial(mpi.Reduce, send, recv, op, root),
            "allgather": partial(mpi.Allgather, send, recv),
            "gather": partial(mpi.Gather, send, recv, root),
            "scatter": partial(mpi.Scatter, send, recv, root),
            "reduce_scatter": partial(mpi.Reduce_scatter_block, send, recv, op),
            "alltoall": partial(mpi.Alltoall, send, recv),
            "sendrecv": partial(mpi.Sendrecv, send, ring["dest"], 0, recv, ring["source"], 0),
            "barrier": mpi.Barrier,
        }
        return calls[case.name]


ENGINES: dict[str, Callable[[], Engine]] = {
    "numpy": partial(CommEngine, "numpy"),
    "torch": partial(CommEngine, "torch"),
    "mpi4py": RawEngine,
}
