"""How the ranks come to the same gradients: DistributedDataParallel, or hpccoll.gradients; and what it takes them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import hpccoll as hc
from hpccoll import gradients
from hpccoll.buckets import union_s
from training.options import Options

_MIB = 2**20


class Clock:
    """Marks in time: of the processor, or of the GPU's stream, which runs behind the program."""

    def __init__(self, device: torch.device):
        self._cuda = device.type == "cuda"

    def mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, origin: Any, mark: Any) -> float:
        """From one mark to another; both have to be over."""
        return origin.elapsed_time(mark) / 1000 if self._cuda else mark - origin

    def wait(self) -> None:
        """Until the device has done what it was given."""
        if self._cuda:
            torch.cuda.synchronize()


class OverDdp:
    """DistributedDataParallel, with a hook that notes when each bucket was ready and when it was averaged.

    Attributes
    ----------
    forward : Module
        To be called instead of the model.
    """

    def __init__(self, model: nn.Module, options: Options, clock: Clock, group: Any):
        self.forward = DistributedDataParallel(model, process_group=group, bucket_cap_mb=options.bucket_mb)
        self.forward.register_comm_hook(group, self._hook)
        self._reduce: Callable[..., Any] = (
            default_hooks.bf16_compress_hook if options.compress else default_hooks.allreduce_hook
        )
        self._clock = clock
        self._spans: list[tuple[Any, Any]] = []

    def _hook(self, group, bucket):  # DDP accepts no annotations as text
        began = self._clock.mark()

        def note(future: Any) -> torch.Tensor:
            self._spans.append((began, self._clock.mark()))
            return future.value()

        return self._reduce(group, bucket).then(note)

    def no_sync(self) -> AbstractContextManager[None]:
        return self.forward.no_sync()

    def finish(self) -> gradients.Times:
        """What the last backward pass, which has waited for the averages, took."""
        self._clock.wait()
        origin = self._spans[0][0]
        spans = [tuple(self._clock.seconds(origin, mark) for mark in span) for span in self._spans]
        self._spans.clear()
        last_ready, last_done = max(began for began, _ in spans), max(ended for _, ended in spans)
        return gradients.Times(union_s(spans, last_done), last_done - last_ready)

    def close(self) -> None:
        pass


class OverComm:
    """hpccoll.gradients: the mechanism in the open, without torch.distributed."""

    def __init__(self, model: nn.Module, options: Options, comm: hc.Comm):
        self.forward = model
        gradients.broadcast(comm, [*model.parameters(), *model.buffers()])
        self._averager = gradients.Averager(
            comm,
            model.parameters(),
            bucket_nbytes=int(options.bucket_mb * _MIB),
            compress="bfloat16" if options.compress else None,
        ).attach()

    def no_sync(self) -> AbstractContextManager[None]:
        return self._averager.no_sync()

    def finish(self) -> gradients.Times:
        return self._averager.finish()

    def close(self) -> None:
        self._averager.close()
