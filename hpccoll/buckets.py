"""Many tensors as a few blocks of memory that travel as a whole, and the ranks' agreement on what is in them.

For :mod:`hpccoll.gradients`. A bucket holds tensors of one library, dtype and device.
"""

from __future__ import annotations

import hashlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hpccoll.buffers import check, dtype_of
from hpccoll.comm import Comm
from hpccoll.errors import ArgumentError, UnsupportedError

__all__ = [
    "Bucket",
    "agree",
    "arrange",
    "check_like",
    "copy_into",
    "describe",
    "is_tensor",
    "tensors_of",
    "union_s",
    "wire_of",
]

_FLOATING = ("half", "float", "complex")


class Bucket:
    """One block of memory for several tensors, that travels as a whole.

    Attributes
    ----------
    flat : array or tensor
    pieces : dict
        Views of `flat` in the shapes of the tensors, by their numbers.
    missing : int
        Tensors that have not come yet, for :class:`hpccoll.gradients.Averager`.
    work : Work or None
    span : tuple of float
        When the average began and ended, by the performance counter; ``inf`` while it goes on.
    """

    def __init__(self, items: Sequence[tuple[int, Any]], dtype: Any):
        like = items[0][1]
        self.flat = _empty(like, sum(_count(x) for _, x in items), dtype)
        self.pieces: dict[int, Any] = {}
        start = 0
        for index, x in items:
            stop = start + _count(x)
            self.pieces[index] = self.flat[start:stop].reshape(tuple(x.shape))
            start = stop
        self.missing = len(items)
        self.work: Any = None
        self.span = (0.0, 0.0)

    def start(self, comm: Comm) -> None:
        """Begin the average over all ranks."""
        began = time.perf_counter()
        self.span = (began, math.inf)

        def note(_: Any) -> None:
            self.span = (began, time.perf_counter())

        self.work = comm.allreduce(self.flat, op="avg", out=self.flat, blocking=False)
        self.work.add_done_callback(note)

    def fill(self, tensors: Sequence[Any]) -> None:
        """Copy the tensors, by their numbers, into the block."""
        for index, piece in self.pieces.items():
            copy_into(tensors[index], piece)

    def empty_into(self, tensors: Sequence[Any]) -> None:
        """Copy the block back into the tensors; what is None is left out."""
        for index, piece in self.pieces.items():
            if tensors[index] is not None:
                copy_into(piece, tensors[index])


def arrange(items: Sequence[tuple[int, Any]], bucket_nbytes: int, wire: Callable[[Any], Any]) -> list[Bucket]:
    """Put tensors with their numbers into buckets, in the given order.

    Parameters
    ----------
    items
        Number and tensor, in the order in which they will come.
    bucket_nbytes
        Of a bucket at most; a larger tensor has one of its own.
    wire
        Gives the dtype in which a tensor travels.

    Returns
    -------
    list of Bucket
        In the order in which they will be complete.
    """
    if bucket_nbytes < 1:
        raise ArgumentError(f"`bucket_nbytes` must be 1 or more, got {bucket_nbytes!r}")
    open_ones: dict[Any, tuple[list[tuple[int, Any]], int]] = {}
    complete: list[tuple[int, Bucket]] = []

    def close(key: Any) -> None:
        held, _ = open_ones.pop(key)
        complete.append((place[held[-1][0]], Bucket(held, wire(held[0][1]))))

    place = {index: position for position, (index, _) in enumerate(items)}
    for index, x in items:
        dtype = wire(x)
        key = (is_tensor(x), dtype, getattr(x, "device", None) if is_tensor(x) else None)
        nbytes = _count(x) * dtype.itemsize
        if key in open_ones and open_ones[key][1] + nbytes > bucket_nbytes:
            close(key)
        held, so_far = open_ones.setdefault(key, ([], 0))
        held.append((index, x))
        open_ones[key] = (held, so_far + nbytes)
    for key in list(open_ones):
        close(key)
    return [bucket for _, bucket in sorted(complete, key=lambda entry: entry[0])]


def union_s(spans: Iterable[tuple[float, float]], now: float) -> float:
    """Seconds that lie in at least one of the spans; what has not ended counts until `now`."""
    total = end = 0.0
    for began, ended in sorted(spans):
        stop = min(ended, now)
        total += max(0.0, stop - max(began, end))
        end = max(end, stop)
    return total


# ---- What the ranks agree on


def tensors_of(method: str, tensors: Iterable[Any], *, written: bool, none: bool = False) -> list[Any]:
    """The list, if it holds only arrays and tensors, that can be `written`; None too where it may."""
    given = list(tensors)
    for index, x in enumerate(given):
        if x is None and none:
            continue
        if not isinstance(x, np.ndarray) and not is_tensor(x):
            raise ArgumentError(
                f"{method}: tensor {index} must be a NumPy array or a torch tensor, got {type(x).__name__}"
            )
        check(x, method, f"tensors[{index}]", written=written)
    return given


def describe(x: Any) -> str:
    """Library, dtype, shape and kind of device in words."""
    if x is None:
        return "None"
    kind = "tensor" if is_tensor(x) else "array"
    where = f" on {x.device.type}" if is_tensor(x) and not x.is_cpu else ""
    return f"a {dtype_of(x.dtype).name} {kind} of shape {tuple(x.shape)}{where}"


def agree(comm: Comm, method: str, tensors: Sequence[Any], **options: Any) -> None:
    """Raise on every rank if the ranks differ in what their tensors are, or in an option."""
    mine = [describe(x) for x in tensors]
    digest = hashlib.blake2b("\n".join([repr(options), *mine]).encode(), digest_size=16).digest()
    digests = comm.allgather(np.frombuffer(digest, np.uint8))
    if np.all(digests == digests[0]):
        return
    everybody = comm.allgather_object((options, mine))
    for rank, (other, _) in enumerate(everybody):
        for name in options:
            if other[name] != everybody[0][0][name]:
                raise ArgumentError(
                    f"{method}: `{name}` is {everybody[0][0][name]!r} on rank 0 and {other[name]!r} on rank {rank}; it "
                    f"must be the same on every rank. Nothing has been changed"
                )
    lists = [described for _, described in everybody]
    rank = next(rank for rank, other in enumerate(lists) if other != lists[0])
    one, other = lists[0], lists[rank]
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            what = f"tensor {index} is {a} on rank 0 and {b} on rank {rank}"
            break
    else:
        first = min(len(one), len(other))
        extra = (one if len(one) > len(other) else other)[first]
        what = f"rank 0 has {len(one)} tensors and rank {rank} {len(other)}; number {first}, {extra}, is not on both"
    raise ArgumentError(f"{method}: {what}; every rank must pass the same list. Nothing has been changed")


def wire_of(method: str, tensors: Sequence[Any], compress: str | None) -> Callable[[Any], Any]:
    """How to find the dtype in which a tensor travels."""
    for index, x in enumerate(tensors):
        if x is None:
            continue
        if dtype_of(x.dtype).kind not in _FLOATING:
            raise UnsupportedError(
                f"{method}: tensor {index} is {describe(x)}, and an average of it would have to be rounded; leave it "
                "out, or broadcast it"
            )
        if compress is not None and (not is_tensor(x) or dtype_of(x.dtype).kind == "complex"):
            raise UnsupportedError(
                f"{method}: tensor {index} is {describe(x)}; `compress` is for real torch tensors"
            )
    if compress is None:
        return lambda x: x.dtype
    if compress not in ("bfloat16", "float16"):
        raise ArgumentError(f"{method}: `compress` must be None, 'bfloat16' or 'float16', got {compress!r}")
    return lambda _: getattr(sys.modules["torch"], compress)


def check_like(gradient: Any, tensor: Any, index: int) -> None:
    """Raise unless the gradient is of the library, dtype and shape of its tensor, and can be written."""
    same_kind = is_tensor(gradient) if is_tensor(tensor) else isinstance(gradient, np.ndarray)
    if not same_kind or gradient.dtype != tensor.dtype or tuple(gradient.shape) != tuple(tensor.shape):
        got = describe(gradient) if hasattr(gradient, "dtype") else type(gradient).__name__
        kind = "torch tensor" if is_tensor(tensor) else "NumPy array"
        raise ArgumentError(
            f"put: the gradient of tensor {index} must be a {kind} like it, {describe(tensor)}; got {got}"
        )
    check(gradient, "put", f"gradient of tensor {index}", written=True)


# ---- Either library


def is_tensor(x: Any) -> bool:
    """Whether it is a torch tensor; does not load torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _count(x: Any) -> int:
    return int(x.numel() if is_tensor(x) else x.size)


def _empty(like: Any, count: int, dtype: Any) -> Any:
    if is_tensor(like):
        return sys.modules["torch"].empty(count, dtype=dtype, device=like.device)
    return np.empty(count, dtype)


def copy_into(source: Any, destination: Any) -> None:
    """Copy values between two of the same library and shape; dtypes may differ."""
    if is_tensor(destination):
        destination.detach().copy_(source.detach())
    else:
        np.copyto(destination, source)
