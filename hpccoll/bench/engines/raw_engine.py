"""mpi4py's upper-case methods on buffer specs that are built before the loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.bench.case import Buffers
from hpccoll.bench.engines.base import Bound, Engine
from hpccoll.buffers import dtype_of
from hpccoll.comm import Comm

__all__ = ["REDUCTIONS", "RawEngine", "mpi_op", "mpi_type", "raw_refusal"]

REDUCTIONS = ("allreduce", "reduce", "reduce_scatter")

_OPS = {
    "sum": MPI.SUM,
    "prod": MPI.PROD,
    "min": MPI.MIN,
    "max": MPI.MAX,
    "band": MPI.BAND,
    "bor": MPI.BOR,
    "bxor": MPI.BXOR,
    "land": MPI.LAND,
    "lor": MPI.LOR,
    "lxor": MPI.LXOR,
}
_OF_KIND = {
    "int": frozenset(_OPS),
    "float": frozenset(("sum", "prod", "min", "max")),
    "complex": frozenset(("sum", "prod")),
    "bool": frozenset(("land", "lor", "lxor")),
}


def raw_refusal(collective: str, dtype: str, op: str) -> str | None:
    """Why MPI alone cannot make this call; None if it can."""
    if collective not in REDUCTIONS:
        return None
    kind = {"b": "bool", "i": "int", "u": "int", "f": "float", "c": "complex"}.get(dtype[0], "")
    if dtype in ("float16", "bfloat16"):
        return f"MPI has no reductions of {dtype}"
    if op not in _OF_KIND.get(kind, ()):
        return f"MPI has no {op} of {dtype}"
    return None


def mpi_op(op: str) -> Any:
    """mpi4py's operation; MPI.OP_NULL for the empty string."""
    return _OPS[op] if op else MPI.OP_NULL


def mpi_type(array: Any, collective: str) -> Any:
    """The datatype of a NumPy array: its own where MPI has to compute, and bytes where it only moves."""
    return dtype_of(array.dtype).mpi if collective in REDUCTIONS else MPI.BYTE


def _spec(array: Any, collective: str) -> Any:
    """mpi4py's buffer specification of an array; None stays None."""
    if array is None:
        return None
    return [array.reshape(-1).view(np.uint8), mpi_type(array, collective)]


class RawEngine(Engine):
    """mpi4py without hpccoll."""

    name = "mpi4py"
    kind = "numpy"

    def refuses(self, collective: str, dtype: str, buffers: Buffers) -> str | None:
        return raw_refusal(collective, dtype, buffers.op)

    def bind(self, collective: str, comm: Comm, buffers: Buffers) -> Bound:
        mpi: Any = comm.mpi
        rank, size, root = buffers.place
        send = MPI.IN_PLACE if buffers.in_place else _spec(buffers.send, collective)
        recv = _spec(buffers.recv, collective)
        op = mpi_op(buffers.op)
        dest, source = (rank + 1) % size, (rank - 1) % size
        calls: dict[str, Callable[[], object]] = {
            "allreduce": partial(mpi.Allreduce, send, recv, op),
            "broadcast": partial(mpi.Bcast, recv, root),
            "reduce": partial(mpi.Reduce, send, recv, op, root),
            "allgather": partial(mpi.Allgather, send, recv),
            "gather": partial(mpi.Gather, send, recv, root),
            "scatter": partial(mpi.Scatter, send, recv, root),
            "reduce_scatter": partial(mpi.Reduce_scatter_block, send, recv, op),
            "alltoall": partial(mpi.Alltoall, send, recv),
            "sendrecv": partial(mpi.Sendrecv, send, dest, 0, recv, source, 0),
            "barrier": mpi.Barrier,
        }
        return Bound(calls[collective])
