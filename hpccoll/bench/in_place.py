"""``dist.all_reduce`` in place, which has a short cut of its own: an engine for what ``hpccoll.overhead`` compares."""

from __future__ import annotations

from typing import Any

from hpccoll.bench.case import Buffers
from hpccoll.bench.engines import Bound, Engine
from hpccoll.comm import Comm

__all__ = ["DistributedInPlace", "start"]


def start() -> None:
    """Make the default group, which the others stand on."""
    import torch.distributed as dist

    import hpccoll.torch_backend  # noqa: F401  # gives torch the backend where nothing is installed

    if not dist.is_initialized():
        dist.init_process_group("hpccoll", init_method="mpi://")


class DistributedInPlace(Engine):
    """On a process group of its own.

    Parameters
    ----------
    name : str
        Of the row.

    Attributes
    ----------
    group : ProcessGroup
    """

    kind = "torch"

    def __init__(self, name: str):
        import torch.distributed as dist

        start()
        self.name = name
        self.group: Any = dist.new_group(backend="hpccoll")

    def refuses(self, collective: str, dtype: str, buffers: Buffers) -> str | None:
        return None if collective == "allreduce" else "not compared"

    def bind(self, collective: str, comm: Comm, buffers: Buffers) -> Bound:
        import torch.distributed as dist

        send, recv, group = buffers.send, buffers.recv, self.group

        def call() -> None:
            recv.copy_(send)
            dist.all_reduce(recv, group=group)

        return Bound(call)
