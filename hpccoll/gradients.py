"""Data-parallel training by hand: every rank has the same parameters, and the mean of all ranks' gradients.

Without torch.distributed, on torch tensors or NumPy arrays, so for any framework that gives its gradients as such.
Gradients travel in *buckets*, some megabytes at a time, the last tensors first, because the backward pass is done with
those first: the communication of one bucket goes on while the next gradients are computed::

    comm = hc.world()
    gradients.broadcast(comm, [*model.parameters(), *model.buffers()])
    with gradients.Averager(comm, model.parameters()).attach() as averager:
        for x, y in batches:
            loss(model(x), y).backward()      # starts each bucket when its last gradient is there
            averager.finish()                 # waits; the gradients are the averages now
            optimizer.step()
"""

from __future__ import annotations

import contextlib
import operator
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpccoll.buckets import (
    agree,
    arrange,
    check_like,
    copy_into,
    describe,
    is_tensor,
    tensors_of,
    union_s,
    wire_of,
)
from hpccoll.comm import Comm
from hpccoll.errors import ArgumentError

__all__ = ["Averager", "BUCKET_NBYTES", "Times", "average", "broadcast"]

BUCKET_NBYTES = 25 * 2**20
"""Gradients that travel together, at most; a larger tensor has a bucket of its own. PyTorch's DDP has the same."""

_TIMEOUT_S = 1800.0


class Times(NamedTuple):
    """What the averaging of one step took on this rank.

    Attributes
    ----------
    busy_s : float
        Seconds in which a bucket was under way; waiting for ranks that came later is in it.
    waited_s : float
        The part of it that no computing hid: from :meth:`Averager.finish` to the last average.
    """

    busy_s: float
    waited_s: float


def broadcast(
    comm: Comm, tensors: Iterable[Any], *, root: int = 0, bucket_nbytes: int = BUCKET_NBYTES
) -> None:
    """Copy the root's tensors to all ranks, in place: parameters and buffers before the first step.

    Parameters
    ----------
    comm : Comm
    tensors : iterable of array or tensor
        Any dtypes, mixed; in the same order, of the same shapes and dtypes on every rank.
    root : int
    bucket_nbytes : int
        Tensors that are smaller travel together, so much at a time.

    Raises
    ------
    ArgumentError
        The ranks differ in the number of tensors, a shape or a dtype (on every rank; nothing has been written), or
        something is neither an array nor a tensor, or, on a rank other than `root`, read-only or an expanded view.
    UnsupportedError
        A tensor is sparse, nested or quantized.
    """
    given = tensors_of("broadcast", tensors, written=comm.rank != root)
    agree(comm, "broadcast", given, root=root, bucket_nbytes=bucket_nbytes)
    for bucket in arrange(list(enumerate(given)), bucket_nbytes, lambda x: x.dtype):
        if len(bucket.pieces) == 1:
            comm.broadcast(given[next(iter(bucket.pieces))], root=root)
            continue
        if comm.rank == root:
            bucket.fill(given)
        comm.broadcast(bucket.flat, root=root)
        if comm.rank != root:
            bucket.empty_into(given)


def average(
    comm: Comm,
    gradients: Iterable[Any],
    *,
    bucket_nbytes: int = BUCKET_NBYTES,
    compress: str | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> list[Any]:
    """Replace each gradient by its mean over all ranks, in place.

    Parameters
    ----------
    comm : Comm
    gradients : iterable of array, tensor or None
        In the same order, of the same shapes and dtypes on every rank. One that is None has to be None on all
        ranks, and stays it.
    bucket_nbytes, compress, timeout_s
        As for :class:`Averager`.

    Returns
    -------
    list
        The gradients.

    Raises
    ------
    ArgumentError
        The ranks differ in the number of gradients, a shape, a dtype or in which are None (on every rank; no gradient
        has been changed), or something is neither an array nor a tensor, or read-only, or an expanded view.
    UnsupportedError
        A gradient has a dtype without an average, an integer for example, or is sparse, nested or quantized.
    WaitTimeout
        It took longer than `timeout_s`.
    """
    given = tensors_of("average", gradients, written=True, none=True)
    wire = wire_of("average", given, compress)
    agree(comm, "average", given, bucket_nbytes=bucket_nbytes, compress=compress)
    items = [(index, x) for index, x in enumerate(given) if x is not None]
    buckets = arrange(items[::-1], bucket_nbytes, wire)
    for bucket in buckets:
        bucket.fill(given)
        bucket.start(comm)
    for bucket in buckets:
        bucket.work.wait(timeout_s)
    for bucket in buckets:
        bucket.empty_into(given)
    return given


class Averager:
    """Averages the gradients of a list of tensors over all ranks while the backward pass goes on.

    Every rank has to make it. Gradients are handed over by :meth:`put`, or with :meth:`attach` by torch's own
    backward pass; :meth:`finish` ends the step. Its traffic is its own: it meets no other collective of `comm`.

    A gradient that no rank has in a step (a layer that was not used) is left as it is. One that some ranks have and
    others not is an error on every rank, in :meth:`finish`.

    Parameters
    ----------
    comm : Comm
    tensors : iterable of array or tensor
        The parameters, or anything of the shapes and dtypes that their gradients will have; the same on every rank, in
        the order in which the forward pass uses them.
    bucket_nbytes : int
        Gradients that travel together, at most.
    compress : {None, "bfloat16", "float16"}
        torch only: the dtype in which gradients travel. They are rounded to it, added in float32, and rounded again.
    timeout_s : float
        How long :meth:`finish` waits for one bucket, in seconds.

    Attributes
    ----------
    times : Times or None
        Of the last step.

    Raises
    ------
    ArgumentError
        The ranks differ in the number of tensors, a shape or a dtype (on every rank), or something is neither an array
        nor a tensor.
    UnsupportedError
        A tensor has a dtype without an average: an integer, for example.
    """

    def __init__(
        self,
        comm: Comm,
        tensors: Iterable[Any],
        *,
        bucket_nbytes: int = BUCKET_NBYTES,
        compress: str | None = None,
        timeout_s: float = _TIMEOUT_S,
    ):
        self._tensors = tensors_of("Averager", tensors, written=False)
        wire = wire_of("Averager", self._tensors, compress)
        agree(comm, "Averager", self._tensors, bucket_nbytes=bucket_nbytes, compress=compress)
        self._buckets = arrange(list(enumerate(self._tensors))[::-1], bucket_nbytes, wire)
        self._bucket_of = {index: bucket for bucket in self._buckets for index in bucket.pieces}
        self._comm = comm.dup()
        self._timeout_s = timeout_s
        self._handles: list[Any] = []
        self._synchronising = True
        self._lock = threading.Lock()  # torch runs the backward pass of each device on a thread of its own
        self.times: Times | None = None
        self._begin()

    def _begin(self) -> None:
        self._given: list[Any] = [None] * len(self._tensors)
        self._started = 0
        for bucket in self._buckets:
            bucket.missing = len(bucket.pieces)

    def put(self, index: int, gradient: Any) -> None:
        """Hand over the gradient of tensor number `index`, in any order; the first complete buckets start to travel.

        Parameters
        ----------
        index : int
        gradient : array or tensor, or None
            Of the shape and dtype of the tensor. It is copied at once, and :meth:`finish` writes the average into
            it. None is the same as no call.

        Raises
        ------
        ArgumentError
            There is no such tensor, its gradient is there already, or shape or dtype are others. Nothing was sent.
        """
        if gradient is None:
            return
        try:
            index = operator.index(index)
        except TypeError:
            index = -1
        if not 0 <= index < len(self._tensors):
            raise ArgumentError(f"put: `index` must be 0 to {len(self._tensors) - 1}, got {index!r}")
        check_like(gradient, self._tensors[index], index)
        with self._lock:
            if self._given[index] is not None:
                raise ArgumentError(
                    f"put: the gradient of tensor {index} is there already; call finish() after each step, and run "
                    "the backward passes that only add up in no_sync()"
                )
            bucket = self._bucket_of[index]
            copy_into(gradient, bucket.pieces[index])
            self._given[index] = gradient
            bucket.missing -= 1
            # In one order on all ranks, whatever the order in which the gradients came.
            while self._started < len(self._buckets) and not self._buckets[self._started].missing:
                self._buckets[self._started].start(self._comm)
                self._started += 1

    def finish(self) -> Times:
        """Wait until all gradients of the step are averages, and write them back; every rank has to call it.

        Returns
        -------
        Times

        Raises
        ------
        ArgumentError
            Some ranks lack a gradient that others have; on every rank, and no gradient has been changed.
        WaitTimeout
            A bucket took longer than `timeout_s`.
        """
        if self._handles:  # backward passes in no_sync() may have left what the last one did not touch
            for index, tensor in enumerate(self._tensors):
                if self._given[index] is None and tensor.grad is not None:
                    self.put(index, tensor.grad)
        entered = time.perf_counter()
        for bucket in self._buckets[self._started :]:
            for index, piece in bucket.pieces.items():
                if self._given[index] is None:
                    piece[...] = 0
            bucket.start(self._comm)
        self._started = len(self._buckets)
        ranks = np.array([x is not None for x in self._given], np.int32)
        self._comm.allreduce(ranks, out=ranks, blocking=False).wait(self._timeout_s)
        for bucket in self._buckets:
            bucket.work.wait(self._timeout_s)
        given, waited_s = self._given, time.perf_counter() - entered
        self._begin()
        if np.any((ranks != 0) & (ranks != self._comm.size)):
            raise self._lacking(given)
        for bucket in self._buckets:
            bucket.empty_into(given)
        self.times = Times(union_s((bucket.span for bucket in self._buckets), entered + waited_s), waited_s)
        return self.times

    def _lacking(self, given: Sequence[Any]) -> ArgumentError:
        lists = self._comm.allgather_object([index for index, x in enumerate(given) if x is None])
        common = set(lists[0]).intersection(*lists)
        index, rank = min((index, rank) for rank, lacks in enumerate(lists) for index in set(lacks) - common)
        having = next(rank for rank, lacks in enumerate(lists) if index not in lacks)
        return ArgumentError(
            f"finish: rank {rank} has no gradient of tensor {index}, {describe(self._tensors[index])}, and rank "
            f"{having} has one; on every rank the same tensors must get a gradient in a step (zeros do too). "
            "No gradient has been changed"
        )

    def attach(self) -> Averager:
        """Have torch's backward pass hand over each gradient when it is ready; returns the averager itself.

        Raises
        ------
        ArgumentError
            A tensor is a NumPy array, or one that gets no gradient.
        """
        for index, tensor in enumerate(self._tensors):
            if not is_tensor(tensor) or not (tensor.requires_grad and tensor.is_leaf):
                raise ArgumentError(
                    f"attach: tensor {index} is {describe(tensor)} and gets no gradient from torch; leave out what is "
                    "not trained, and hand the gradients of NumPy arrays over with put()"
                )
        self.detach()
        for index, tensor in enumerate(self._tensors):
            self._handles.append(tensor.register_post_accumulate_grad_hook(self._hook(index)))
        return self

    def _hook(self, index: int) -> Callable[[Any], None]:
        def hook(tensor: Any) -> None:
            if self._synchronising:
                self.put(index, tensor.grad)

        return hook

    def detach(self) -> None:
        """Take back what :meth:`attach` did."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in this context only add to the gradients of this rank; the next one outside sends the
        sums.
        """
        before, self._synchronising = self._synchronising, False
        try:
            yield
        finally:
            self._synchronising = before

    def close(self) -> None:
        """Detach, and give the communicator back; every rank has to call it. A second call does nothing."""
        self.detach()
        self._comm.free()

    def __enter__(self) -> Averager:
        return self

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        # With an exception under way the other ranks may never come to the collective call that frees.
        if exc_type is None:
            self.close()
