"""The part of a process group that issues operations: on the caller's thread, or on the communicator's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from hpccoll.torch_backend.torch_internals import begin_range, hide_from_compiler, profiler_enabled
from hpccoll.torch_backend.work import DONE, CoalescedWork, PendingWork
from hpccoll.work import Work

NAMES = {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all"}
"""hpccoll's name of an operation -> torch's, where they differ."""


@hide_from_compiler
class Issuing(dist.ProcessGroup):  # type: ignore[misc]
    """A process group that runs operations of a :class:`~hpccoll.Comm` in the order of their calls."""

    _comm: Any
    """The communicator, or what raises in its place."""
    _other_backends: dict[str, Any]
    """Type of device -> the backend of torch's own that serves it."""
    _ranks: list[int]
    _size: int
    _name: str
    _desc: str
    _backend_name: str
    _sequence: int
    """Of the operation that was issued last."""
    _inside: str | None
    """The operation that the caller's thread is in."""
    _last: Work | None
    _coalesced: list[Any] | None

    def describe(self, name: str | None = None, number: int | None = None) -> str:
        """Name an operation (the present one), its sequence number and the ranks, for a message."""
        if name is None:
            name = self._inside or (self._last.method if self._last is not None else "an operation")
        number = self._sequence if number is None else number
        where = f"process group {self._desc or self._name or 'unnamed'} (ranks {_short(self._ranks)})"
        return f"{NAMES.get(name, name)}, sequence number {number}, on rank {self.rank()} of {where}"

    def running(self) -> int | None:
        """A number that stays the same while one operation runs; None while none does."""
        if self._inside is not None:
            return self._sequence
        if getattr(self._comm, "pending", False):
            return -2 - self._comm._worker.completed
        return None

    def _elsewhere(self, tensor: Any) -> bool:
        """Whether the tensor belongs to a backend of torch's own ("cuda:nccl")."""
        return bool(self._other_backends) and tensor.device.type in self._other_backends

    def _issue(
        self,
        name: str,
        call: Callable[[bool], Any],
        is_async: bool,
        inputs: Sequence[torch.Tensor] = (),
        outputs: Sequence[torch.Tensor] = (),
        finish: Callable[[], Any] | None = None,
    ) -> Any:
        """Run ``call(blocking)``, which makes one call of a Comm method or a list of them, and `finish` after it."""
        self._sequence += 1
        if profiler_enabled():
            finish = self._then_end_range(name, inputs, finish)
        if is_async:
            return self._pending(name, call(False), outputs or inputs, finish)
        self._inside = name
        try:
            call(True)
        finally:
            self._inside = None
        if finish is not None:
            finish()
        return DONE

    def _then_end_range(self, name: str, inputs: Any, finish: Callable[[], Any] | None) -> Callable[[], Any]:
        end = begin_range(f"{self._backend_name}:{name}", inputs)

        def finish_and_end() -> None:
            if finish is not None:
                finish()
            end()

        return finish_and_end

    def _pending(
        self, name: str, works: Any, tensors: Any, finish: Any, limit_s: float | None = None
    ) -> PendingWork:
        works = works if isinstance(works, list) else [works]
        self._last = works[-1]
        sequence = self._sequence

        def describe() -> str:
            return self.describe(name, sequence)

        made = PendingWork(works, tensors, finish, describe, limit_s)
        if self._coalesced is not None:
            self._coalesced.append(made)
        return made

    def _issue_all(
        self, name: str, calls: list[tuple[Any, Any]], is_async: bool, inputs: Any, outputs: Any
    ) -> Any:
        finishes = [finish for _, finish in calls if finish is not None]
        return self._issue(
            name,
            lambda b: [call(b) for call, _ in calls],
            is_async,
            inputs,
            outputs,
            (lambda: [finish() for finish in finishes]) if finishes else None,
        )

    # ---- Coalescing

    def _start_coalescing(self, device: Any = None) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: Any = None) -> Any:
        works, self._coalesced = self._coalesced or [], None
        return CoalescedWork(works)

    # ---- Checks

    def _check_list(self, name: str, which: str, tensors: Any, like: Any, same_size: bool = False) -> None:
        if len(tensors) != self._size:
            raise ValueError(
                f"{name}: invalid {which} tensor list size, must be world size ({self._size}), got {len(tensors)}"
            )
        for tensor in tensors:
            if tensor.dtype != like.dtype or tensor.device != like.device:
                raise ValueError(
                    f"{name}: invalid tensor type in the {which} list: expected {like.dtype} on {like.device}, "
                    f"got {tensor.dtype} on {tensor.device}"
                )
            if same_size and tensor.numel() != like.numel():
                raise ValueError(
                    f"{name}: invalid tensor size in the {which} list: expected {like.numel()} elements "
                    f"(shape {list(like.shape)}), got {tensor.numel()} (shape {list(tensor.shape)})"
                )


def _short(ranks: Sequence[int]) -> str:
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks))
