"""torch.distributed over this package's backend, gloo or nccl; the ranks meet over MPI (``mpi://``).

What differs from the other engines: torch's allreduce and reduce have one buffer. So where input and output are two,
the input is copied first, inside the timed region: it belongs to what a caller who keeps the input has to do. nccl
works on the GPU; copies to it and back are outside the timed region, waiting for it is inside.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from hpccoll.bench.case import Buffers
from hpccoll.bench.engines.base import Bound, Engine, joint_reason
from hpccoll.comm import Comm

__all__ = ["TorchEngine"]

_BACKENDS = {"torch-mpi": "hpccoll", "gloo": "gloo", "nccl": "nccl"}
_OPS = {
    "sum": "SUM",
    "prod": "PRODUCT",
    "min": "MIN",
    "max": "MAX",
    "avg": "AVG",
    "band": "BAND",
    "bor": "BOR",
    "bxor": "BXOR",
}


class TorchEngine(Engine):
    """torch.distributed; `name` is ``torch-mpi``, ``gloo`` or ``nccl``."""

    kind = "torch"

    def __init__(self, name: str) -> None:
        self.name = name
        self._group: Any = None
        self._refusals: dict[tuple[str, str, str, int], str | None] = {}

    def open(self, comm: Comm, control: Any) -> str | None:
        reason = joint_reason(control, self._missing(control))
        if reason:
            return reason
        import torch.distributed as dist

        import hpccoll.torch_backend  # noqa: F401  # gives torch the backend where nothing is installed

        backend = _BACKENDS[self.name]
        try:
            if dist.is_initialized():
                self._group = dist.new_group(backend=backend)
            else:
                dist.init_process_group(backend, init_method="mpi://")
                self._group = dist.group.WORLD
        except Exception as exc:  # whatever a backend raises, the others can still be measured
            reason = f"{type(exc).__name__}: {_one_line(exc)}"
        return joint_reason(control, reason)

    def _missing(self, control: Any) -> str | None:
        if importlib.util.find_spec("torch") is None:
            return "PyTorch is missing: pip install torch"
        import torch
        import torch.distributed as dist

        if not dist.is_available():
            return "this PyTorch was built without torch.distributed"
        if self.name == "gloo" and not dist.is_gloo_available():
            return "this PyTorch was built without gloo"
        if self.name == "nccl":
            if not dist.is_nccl_available():
                return "this PyTorch was built without nccl"
            if not torch.cuda.is_available():
                return "there is no GPU that this PyTorch can use"
            from hpccoll.environment import detect

            launch = detect()
            local_rank = control.rank if launch is None else launch.local_rank or 0
            if local_rank >= torch.cuda.device_count():
                return f"local rank {local_rank} has no GPU of its own; there are {torch.cuda.device_count()}"
            torch.cuda.set_device(local_rank)
        return None

    def refuses(self, collective: str, dtype: str, buffers: Buffers) -> str | None:
        """Ask torch itself, by a call on a few elements; what it raises is the reason."""
        # The root belongs to it: all ranks have to ask, or none.
        key = (collective, dtype, buffers.op, buffers.place.root)
        if key not in self._refusals:
            self._refusals[key] = self._ask(collective, dtype, buffers)
        return self._refusals[key]

    def _ask(self, collective: str, dtype: str, buffers: Buffers) -> str | None:
        if collective == "sendrecv" and buffers.place.size == 1:
            return "torch.distributed sends no message to the same rank"
        if collective == "alltoall" and buffers.in_place and self.name != "torch-mpi":
            return f"{self.name} exchanges wrong blocks where input and output are one buffer"
        if buffers.op and buffers.op not in _OPS:
            return f"torch.distributed has no op {buffers.op}"
        small = [b if b is None else b[..., :1].contiguous().clone() for b in (buffers.send, buffers.recv)]
        try:
            bound = self.bind(
                collective, None, Buffers(small[0], small[1], buffers.op, buffers.place, buffers.in_place)
            )
            bound.load()
            bound.call()
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as exc:
            return _one_line(exc)
        return None

    def close(self) -> None:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()  # with all groups: the other engines of this kind are through too

    def bind(self, collective: str, comm: Comm | None, buffers: Buffers) -> Bound:
        if self.name == "nccl":
            return _OnDevice(self, collective, buffers)
        return Bound(self.make(collective, buffers))

    def make(self, collective: str, b: Buffers) -> Callable[[], object]:
        """The call, on tensors that the backend can use."""
        import torch.distributed as dist

        group, (rank, size, root) = self._group, b.place
        send, recv = b.send, b.recv
        op = getattr(dist.ReduceOp, _OPS[b.op]) if b.op else None

        def allreduce() -> None:
            if not b.in_place:
                recv.copy_(send)
            dist.all_reduce(recv, op, group=group)

        # On the other ranks torch's reduce may overwrite its argument, and this input has to stay.
        scratch = recv if recv is not None or send is None else send.clone()

        def reduce() -> None:
            if not b.in_place:
                scratch.copy_(send)
            dist.reduce(scratch, root, op, group=group)

        def sendrecv() -> None:
            out = dist.P2POp(dist.isend, send, (rank + 1) % size, group)
            into = dist.P2POp(dist.irecv, recv, (rank - 1) % size, group)
            for work in dist.batch_isend_irecv([out, into]):
                work.wait()

        parts = {"gather": recv, "scatter": send}.get(collective)
        blocks = None if parts is None or rank != root else list(parts.unbind(0))
        own = send
        if collective == "allgather" and b.in_place:
            own = recv[rank]
        calls: dict[str, Callable[[], object]] = {
            "allreduce": allreduce,
            "broadcast": lambda: dist.broadcast(recv, root, group=group),
            "reduce": reduce,
            "allgather": lambda: dist.all_gather_into_tensor(recv.view(-1), own, group=group),
            "gather": lambda: dist.gather(send, blocks, root, group=group),
            "scatter": lambda: dist.scatter(recv, blocks, root, group=group),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(recv, send.view(-1), op, group=group),
            "alltoall": lambda: dist.all_to_all_single(recv.view(-1), send.view(-1), group=group),
            "sendrecv": sendrecv,
            "barrier": lambda: dist.barrier(group=group),
        }
        return calls[collective]


class _OnDevice(Bound):
    """A call on copies of the buffers in GPU memory."""

    def __init__(self, engine: TorchEngine, collective: str, buffers: Buffers) -> None:
        import torch

        self._host = buffers
        send, recv = (None if b is None else b.cuda() for b in (buffers.send, buffers.recv))
        if buffers.in_place and recv is not None:
            send = recv if buffers.send is buffers.recv else recv[buffers.place.rank]
        self._send, self._recv = send, recv
        inner = engine.make(collective, Buffers(send, recv, buffers.op, buffers.place, buffers.in_place))

        def call() -> None:
            inner()
            torch.cuda.synchronize()

        self._synchronize = torch.cuda.synchronize
        super().__init__(call)

    def load(self) -> None:
        for device, host in ((self._recv, self._host.recv), (self._send, self._host.send)):
            if device is not None:
                device.copy_(host)
        self._synchronize()

    def unload(self) -> None:
        if self._recv is not None:
            self._host.recv.copy_(self._recv)


def _one_line(exc: BaseException) -> str:
    text = " ".join(str(exc).split())
    return text if len(text) <= 200 else text[:200] + " ..."
