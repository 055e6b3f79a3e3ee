"""What torch hands over: tensors bare or in lists, options or the ops themselves; and the flat tensors that travel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

_JOIN_BELOW_BYTES = 1 << 20
"""Up to here it is faster to join the tensors of a coalesced operation than to send each (see docs/torch.md)."""


def one(tensors: Any) -> Any:
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError("MPI process group does not support multi-GPU collectives")
    return tensors[0]


def list_of(tensors: Any) -> list[Any]:
    """The inner list of a list of one list; a plain list is taken as that."""
    if tensors and not isinstance(tensors[0], torch.Tensor):
        if len(tensors) != 1:
            raise ValueError("MPI process group does not support multi-GPU collectives")
        return list(tensors[0])
    return list(tensors)


def is_async(opts: Any) -> bool:
    return bool(getattr(opts, "asyncOp", True))  # torch's default; its synchronous functions say so


def root_of(opts: Any) -> int:
    return int(getattr(opts, "rootRank", opts if isinstance(opts, int) else 0))


def are_alike_and_small(tensors: Sequence[Any]) -> bool:
    return (
        len(tensors) > 1
        and sum(tensor.nbytes for tensor in tensors) <= _JOIN_BELOW_BYTES
        and len({(tensor.dtype, tensor.device) for tensor in tensors}) == 1
    )


def join(tensors: Sequence[Any]) -> Any:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def hand_out(joined: Any, tensors: Sequence[Any]) -> None:
    """Copy consecutive parts of a flat tensor to where they belong."""
    parts = joined.split([tensor.numel() for tensor in tensors])
    with torch.no_grad():
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part if tensor.dim() == 1 else part.view(tensor.shape))


def flat_target(output: Any) -> tuple[Any, Any]:
    """A flat tensor to receive into, and what brings it to `output` afterwards (None where it is the same memory)."""
    if output.is_contiguous():
        return output.detach().view(-1), None
    target, finish = contiguous_target(output)
    return target.view(-1), finish


def contiguous_target(output: Any) -> tuple[Any, Callable[[], Any]]:
    target = torch.empty(output.shape, dtype=output.dtype, device=output.device)
    return target, lambda: output.detach().copy_(target)
