"""`hpccoll.Comm` on NumPy arrays or torch tensors, with ``out=``."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

from hpccoll.bench.case import Buffers
from hpccoll.bench.engines.base import Bound, Engine, joint_reason
from hpccoll.comm import Comm

__all__ = ["CommEngine"]


class CommEngine(Engine):
    """Methods of `Comm`; `kind` is ``numpy`` or ``torch``."""

    def __init__(self, kind: str) -> None:
        self.name = self.kind = kind

    def open(self, comm: Comm, control: Any) -> str | None:
        there = self.kind == "numpy" or importlib.util.find_spec("torch") is not None
        return joint_reason(control, None if there else "PyTorch is missing: pip install torch")

    def bind(self, collective: str, comm: Comm, buffers: Buffers) -> Bound:
        return Bound(self._call(collective, comm, buffers))

    @staticmethod
    def _call(collective: str, comm: Comm, b: Buffers) -> Callable[[], object]:
        rank, size, root = b.place
        if collective == "barrier":
            return comm.barrier
        method = getattr(comm, collective)
        if collective == "broadcast":
            return partial(method, b.recv, root=root)
        if collective == "sendrecv":
            ring = {"dest": (rank + 1) % size, "source": (rank - 1) % size}
            return partial(method, b.send, out=b.recv, **ring)
        options: dict[str, Any] = {}
        if collective in ("allreduce", "reduce", "reduce_scatter"):
            options["op"] = b.op
        if collective in ("reduce", "gather", "scatter"):
            options["root"] = root
        return partial(method, b.send, out=b.recv, **options)
