"""Collectives on NumPy arrays and torch tensors: :class:`Comm`.

Every method follows one pattern: the arguments are checked and the buffers opened on the caller's thread, before
anything is sent; then the operation runs, here or on the communicator's own thread (``blocking=False``).
"""

from __future__ import annotations

import contextlib
import math
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mpi4py import MPI

from hpccoll import cuda, gate, reductions, transport
from hpccoll.buffers import Buffer, destination, direct, same_memory, source, target
from hpccoll.errors import ArgumentError, CommunicatorError, TransferError
from hpccoll.work import RequestWork, ThreadWork, Work, Worker, finish_pending

_NUMBERS = frozenset((bool, int, float, complex))
_open = source  # `source` is also the name of an argument


class Comm:
    """A group of ranks and the collectives among them.

    Get one from :func:`world`, :meth:`split`, :meth:`node`, :meth:`leaders` or :meth:`dup`; those are freed by
    :meth:`free` or at the end of a ``with`` block. ``Comm(mpi)`` wraps a communicator of yours, which stays yours.

    Common to all methods
        The buffer `x` is a NumPy array or a torch tensor of any dtype, shape and strides; different ranks may use
        different libraries. Contiguous CPU memory is used where it lies, everything else is copied on the way (CUDA
        tensors through pinned host memory). Shape, dtype, `op`, `root` and `counts` must be the same on every rank
        unless it is said otherwise. The input never changes unless it is the output as well.
        ``blocking=False`` returns a :class:`Work` at once; its result is what the call would have returned. Until
        it is complete, `x` must not be written and `out` must not be touched.

    Raises
    ------
    ArgumentError, UnsupportedError
        An argument is wrong; nothing has been sent.
    CommunicatorError
        The communicator has been freed, or MPI finalised.
    TransferError
        MPI reported an error.

    Attributes
    ----------
    rank, size : int
    mpi : mpi4py.MPI.Intracomm
        The communicator beneath, for everything else that MPI can do.
    """

    def __init__(self, mpi: Any):
        if not isinstance(mpi, MPI.Intracomm) or mpi == MPI.COMM_NULL:
            raise ArgumentError(f"Comm: `mpi` must be an mpi4py intracommunicator, got {mpi!r}")
        self.mpi = mpi
        self.rank: int = mpi.rank
        self.size: int = mpi.size
        self._worker: Worker | None = None
        self._owned = False
        _live.add(self)

    # ---- Reductions

    def allreduce(self, x: Any, *, op: str = "sum", out: Any = None, blocking: bool = True) -> Any:
        """Reduce over all ranks; every rank gets the result.

        Parameters
        ----------
        x : array, tensor or Python number
            Same shape and dtype on every rank. Python numbers follow Python's arithmetic: integers never overflow.
        op : {"sum", "prod", "min", "max", "avg", "band", "bor", "bxor", "land", "lor", "lxor"}
            docs/collectives.md has the table of which takes which dtype.
        out : array or tensor, optional
            Where the result goes, of x's kind, shape and dtype; `x` itself works in place.

        Returns
        -------
        Like `x`
            `out` if given.
        """
        if x.__class__ in _NUMBERS:
            return self._reduce_numbers("allreduce", x, op, out, blocking, lambda numbers: numbers)
        worker = self._worker
        if out is not None and blocking and op.__class__ is str and (worker is None or worker.idle):
            plain = direct(x, out)
            if (
                plain is not None
                and plain[1][1] <= transport.MAX_COUNT
                and (mpi_op := reductions.DIRECT[plain[2].name].get(op)) is not None
            ):
                try:
                    self.mpi.Allreduce(plain[0], plain[1], mpi_op)
                except MPI.Exception as error:
                    raise self._transfer_error("allreduce", error) from error
                return out
        send = source(x, "allreduce")
        recv = target(out, send, send.shape, "allreduce")
        mpi_op = reductions.operation(op, send.dtype, "allreduce")
        in_place = same_memory(send, recv, "allreduce")

        def run() -> Any:
            reductions.allreduce(self.mpi, None if in_place else send, recv, op, mpi_op)
            return recv.finish()

        return self.run("allreduce", run, blocking)

    def reduce(
        self, x: Any, *, op: str = "sum", root: int = 0, out: Any = None, blocking: bool = True
    ) -> Any:
        """Reduce over all ranks; the root gets the result.

        Parameters
        ----------
        x, op
            As for :meth:`allreduce`.
        root : int
            The rank that gets the result.
        out : array or tensor, optional
            On the root: where the result goes; `x` itself works in place. Ignored elsewhere.

        Returns
        -------
        Like `x` on the root, None elsewhere
        """
        root = self._rank_of(root, "reduce", "root")
        if x.__class__ in _NUMBERS:
            at_root = self.rank == root
            return self._reduce_numbers(
                "reduce", x, op, out, blocking, lambda numbers: numbers if at_root else None
            )
        send = source(x, "reduce")
        mpi_op = reductions.operation(op, send.dtype, "reduce")
        recv = target(out, send, send.shape, "reduce") if self.rank == root else None
        in_place = recv is not None and same_memory(send, recv, "reduce")

        def run() -> Any:
            reductions.reduce(self.mpi, send, recv, in_place, op, mpi_op, root)
            return recv.finish() if recv is not None else None

        return self.run("reduce", run, blocking)

    def reduce_scatter(
        self,
        x: Any,
        *,
        op: str = "sum",
        counts: Sequence[int] | None = None,
        out: Any = None,
        blocking: bool = True,
    ) -> Any:
        """Reduce over all ranks; each rank gets its block of the result.

        Parameters
        ----------
        x : array or tensor
            Of shape ``(size, *block)``; with `counts` of shape ``(sum(counts), *rest)``.
        op
            As for :meth:`allreduce`.
        counts : sequence of int, optional
            The lengths of the blocks along the first axis, one for each rank.
        out : array or tensor, optional
            Of shape ``block``, or ``(counts[rank], *rest)``; must not overlap `x`.

        Returns
        -------
        The block of this rank
        """
        send = source(x, "reduce_scatter")
        mpi_op = reductions.operation(op, send.dtype, "reduce_scatter")
        shape, elements = self._block_of("reduce_scatter", send, counts)
        recv = target(out, send, shape, "reduce_scatter")
        self._forbid_overlap("reduce_scatter", send, recv)

        def run() -> Any:
            reductions.reduce_scatter(self.mpi, send, recv, elements, op, mpi_op)
            return recv.finish()

        return self.run("reduce_scatter", run, blocking)

    def scan(self, x: Any, *, op: str = "sum", out: Any = None, blocking: bool = True) -> Any:
        """Reduce over the ranks up to and including this one.

        Parameters and result are as for :meth:`allreduce`; rank r gets the reduction of the `x` of ranks 0 … r.
        """
        return self._scan("scan", x, op, out, blocking, exclusive=False)

    def exscan(self, x: Any, *, op: str = "sum", out: Any = None, blocking: bool = True) -> Any:
        """Reduce over the ranks before this one.

        Parameters and result are as for :meth:`allreduce`; rank r gets the reduction of the `x` of ranks 0 … r-1.
        Rank 0, which MPI leaves undefined, gets the value that changes nothing: 0 for a sum, 1 for a product, the
        largest number for a minimum, NaN for an average.
        """
        return self._scan("exscan", x, op, out, blocking, exclusive=True)

    def _scan(self, method: str, x: Any, op: str, out: Any, blocking: bool, exclusive: bool) -> Any:
        if x.__class__ in _NUMBERS:
            terms = self.rank + (not exclusive)
            return self._reduce_numbers(method, x, op, out, blocking, lambda numbers: numbers[:terms])
        send = source(x, method)
        recv = target(out, send, send.shape, method)
        mpi_op = reductions.operation(op, send.dtype, method)
        in_place = same_memory(send, recv, method)

        def run() -> Any:
            reductions.scan(self.mpi, None if in_place else send, recv, op, mpi_op, exclusive)
            return recv.finish()

        return self.run(method, run, blocking)

    def _reduce_numbers(
        self,
        method: str,
        number: Any,
        op: str,
        out: Any,
        blocking: bool,
        choose: Callable[[list[Any]], list[Any] | None],
    ) -> Any:
        reductions.check_number(op, number, method)
        if out is not None:
            raise ArgumentError(
                f"{method}: `out` has no use when `x` is a Python number; take the return value"
            )

        def run() -> Any:
            chosen = choose(self.mpi.allgather(number))
            return None if chosen is None else reductions.reduce_numbers(chosen, op, method)

        return self.run(method, run, blocking)

    # ---- Movements

    def broadcast(self, x: Any, *, root: int = 0, blocking: bool = True) -> Any:
        """Copy the root's `x` to all ranks, in place.

        Parameters
        ----------
        x : array or tensor
            On the root the data (may be read-only); elsewhere, of the same shape and dtype, where it goes.
        root : int

        Returns
        -------
        `x`
        """
        root = self._rank_of(root, "broadcast", "root")
        at_root = self.rank == root
        buffer = source(x, "broadcast") if at_root else destination(x, "broadcast")

        def run() -> Any:
            transport.broadcast(self.mpi, buffer, root)
            return x if at_root else buffer.finish()

        return self.run("broadcast", run, blocking)

    def allgather(
        self, x: Any, *, counts: Sequence[int] | str | None = None, out: Any = None, blocking: bool = True
    ) -> Any:
        """Collect every rank's `x` on every rank.

        Parameters
        ----------
        x : array or tensor
            Same shape on every rank; with `counts` the lengths of the first axis may differ.
        counts : sequence of int or "auto", optional
            The lengths of the first axis, one for each rank; "auto" asks the ranks first.
        out : array or tensor, optional
            Where the result goes. ``out[rank]`` may be `x` itself; else it must not overlap `x`.

        Returns
        -------
        Array or tensor
            Of shape ``(size, *x.shape)``: the blocks stacked in the order of the ranks. With `counts` of shape
            ``(sum(counts), *x.shape[1:])``: the blocks joined along the first axis.
        """
        send = source(x, "allgather")
        if isinstance(counts, str):
            return self._allgather_auto(send, counts, out, blocking)
        shape, lengths = self._joined("allgather", send, counts)
        recv = target(out, send, shape, "allgather")
        in_place = self._own_block("allgather", send, recv, lengths)

        def run() -> Any:
            transport.allgather(self.mpi, None if in_place else send, recv, lengths)
            return recv.finish()

        return self.run("allgather", run, blocking)

    def _allgather_auto(self, send: Buffer, counts: str, out: Any, blocking: bool) -> Any:
        if counts != "auto":
            raise ArgumentError(
                f'allgather: `counts` must be "auto" or one length for each rank, got {counts!r}'
            )
        if out is not None:
            raise ArgumentError(
                'allgather: `out` needs `counts` as lengths, not "auto": its shape must be known'
            )
        _need_axis("allgather", send)

        def run() -> Any:
            shapes = self.mpi.allgather((tuple(send.shape), send.dtype.name))
            odd = [
                rank
                for rank, (shape, dtype) in enumerate(shapes)
                if (shape[1:], dtype) != (shapes[0][0][1:], shapes[0][1])
            ]
            if odd:
                raise ArgumentError(
                    f"allgather: the blocks must be alike but for the first axis; rank 0 has shape {shapes[0][0]} of "
                    f"{shapes[0][1]}, rank {odd[0]} has {shapes[odd[0]][0]} of {shapes[odd[0]][1]}"
                )
            shape, lengths = self._joined("allgather", send, [shape[0] for shape, _ in shapes])
            recv = target(None, send, shape, "allgather")
            transport.allgather(self.mpi, send, recv, lengths)
            return recv.finish()

        return self.run("allgather", run, blocking)

    def gather(
        self,
        x: Any,
        *,
        root: int = 0,
        counts: Sequence[int] | None = None,
        out: Any = None,
        blocking: bool = True,
    ) -> Any:
        """Collect every rank's `x` on the root.

        Parameters
        ----------
        x, counts
            As for :meth:`allgather` (lengths only); `counts` has to be given on every rank or on none.
        root : int
            The rank that gets the result.
        out : array or tensor, optional
            On the root: where the result goes. ``out[root]`` may be `x` itself. Ignored elsewhere.

        Returns
        -------
        As :meth:`allgather` on the root, None elsewhere
        """
        root = self._rank_of(root, "gather", "root")
        send = source(x, "gather")
        shape, lengths = self._joined("gather", send, counts)
        recv, in_place = None, False
        if self.rank == root:
            recv = target(out, send, shape, "gather")
            in_place = self._own_block("gather", send, recv, lengths)
        total = math.prod(shape) * send.dtype.itemsize

        def run() -> Any:
            transport.gather(self.mpi, None if in_place else send, recv, lengths, root, total)
            return recv.finish() if recv is not None else None

        return self.run("gather", run, blocking)

    def scatter(
        self,
        x: Any,
        *,
        root: int = 0,
        counts: Sequence[int] | None = None,
        out: Any = None,
        blocking: bool = True,
    ) -> Any:
        """Hand out the blocks of the root's `x`, one to each rank.

        Parameters
        ----------
        x : array, tensor or None
            On the root: of shape ``(size, *block)``, with `counts` of shape ``(sum(counts), *rest)``. Elsewhere:
            None if `out` is given, or else an object of the shape and dtype of the block to come (it is not touched).
        root : int
        counts : sequence of int, optional
            The lengths of the blocks along the first axis; has to be given on every rank or on none.
        out : array or tensor, optional
            Where this rank's block goes. On the root ``x[root]`` works: the block stays where it is.

        Returns
        -------
        The block of this rank
        """
        root = self._rank_of(root, "scatter", "root")
        if self.rank == root:
            send: Buffer | None = source(x, "scatter")
            shape, elements = self._block_of("scatter", send, counts)  # type: ignore[arg-type]
            recv: Buffer | None = target(out, send, shape, "scatter")  # type: ignore[arg-type]
            in_place = self._own_block("scatter", recv, send, elements if counts is not None else None)  # type: ignore[arg-type]
        else:
            send, in_place = None, False
            if out is None and x is None:
                raise ArgumentError(
                    f"scatter: rank {self.rank} is not the root and has to say what it receives: pass `out`, "
                    "or as `x` an array of the shape and dtype of the block"
                )
            recv = (
                destination(out, "scatter", "out")
                if out is not None
                else target(None, source(x, "scatter"), x.shape, "")
            )
            elements = self._scattered_counts(recv, counts)
        total = sum(elements) * recv.dtype.itemsize  # type: ignore[union-attr]
        even = counts is None

        def run() -> Any:
            transport.scatter(
                self.mpi, send, None if in_place else recv, None if even else elements, root, total
            )
            return recv.finish()  # type: ignore[union-attr]

        return self.run("scatter", run, blocking)

    def alltoall(
        self,
        x: Any,
        *,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        out: Any = None,
        blocking: bool = True,
    ) -> Any:
        """Send block i of `x` to rank i, on every rank; get one block from each.

        Parameters
        ----------
        x : array or tensor
            Of shape ``(size, *block)``; with `send_counts` of shape ``(sum(send_counts), *rest)``.
        send_counts, recv_counts : sequence of int, optional
            The lengths of the blocks along the first axis that go to, and come from, each rank. `send_counts` has to
            be given on every rank or on none; so has `recv_counts`, without which the ranks are asked first.
        out : array or tensor, optional
            Where the result goes; `x` itself works (through a copy), but no overlap in part.

        Returns
        -------
        Array or tensor
            Of x's shape, or ``(sum(recv_counts), *rest)``: the blocks in the order of the ranks they came from.
        """
        send = source(x, "alltoall")
        if send_counts is not None:
            return self._alltoall_uneven(send, send_counts, recv_counts, out, blocking)
        if recv_counts is not None:
            raise ArgumentError("alltoall: `recv_counts` needs `send_counts`")
        self._block_of("alltoall", send, None)
        recv = target(out, send, send.shape, "alltoall")
        if same_memory(send, recv, "alltoall"):
            send = source(_copy(x), "alltoall")

        def run() -> Any:
            transport.alltoall(self.mpi, send, recv)
            return recv.finish()

        return self.run("alltoall", run, blocking)

    def _alltoall_uneven(
        self,
        send: Buffer,
        send_counts: Sequence[int],
        recv_counts: Sequence[int] | None,
        out: Any,
        blocking: bool,
    ) -> Any:
        _need_axis("alltoall", send)
        rest = tuple(send.shape[1:])
        width = math.prod(rest)
        outgoing = self._lengths("alltoall", "send_counts", send_counts)
        if sum(outgoing) != send.shape[0]:
            raise ArgumentError(
                f"alltoall: `send_counts` add up to {sum(outgoing)}, but `x` has {send.shape[0]} along its first axis"
            )
        if recv_counts is None:
            if out is not None:
                raise ArgumentError("alltoall: `out` needs `recv_counts`: its shape must be known before")

            def run() -> Any:
                incoming = self.mpi.alltoall(outgoing)
                recv = target(None, send, (sum(incoming), *rest), "alltoall")
                transport.alltoallv(
                    self.mpi, send, recv, [n * width for n in outgoing], [n * width for n in incoming]
                )
                return recv.finish()

            return self.run("alltoall", run, blocking)

        incoming = self._lengths("alltoall", "recv_counts", recv_counts)
        if incoming[self.rank] != outgoing[self.rank]:
            raise ArgumentError(
                f"alltoall: rank {self.rank} sends itself {outgoing[self.rank]} (send_counts) but expects "
                f"{incoming[self.rank]} (recv_counts)"
            )
        recv = target(out, send, (sum(incoming), *rest), "alltoall")
        self._forbid_overlap("alltoall", send, recv)

        def run_known() -> Any:
            transport.alltoallv(
                self.mpi, send, recv, [n * width for n in outgoing], [n * width for n in incoming]
            )
            return recv.finish()

        return self.run("alltoall", run_known, blocking)

    def barrier(self, *, blocking: bool = True) -> Any:
        """Return when every rank has called it."""
        return self.run("barrier", self.mpi.Barrier, blocking)

    # ---- Point to point

    def send(self, x: Any, *, dest: int, tag: int = 0, blocking: bool = True) -> Any:
        """Send `x` to one rank.

        Parameters
        ----------
        x : array or tensor
        dest : int
            The rank that receives.
        tag : int
            0 or more; receives can ask for it.

        Returns
        -------
        None, or with ``blocking=False`` a Work
            When it is complete `x` may be changed; the other rank need not have received it.
        """
        dest = self._rank_of(dest, "send", "dest")
        tag = self._tag(tag, "send", "tag")
        buffer = source(x, "send")
        with _mpi_errors("send"):
            if blocking:
                transport.send(self.mpi, buffer, dest, tag)
                return None
            request = transport.isend(self.mpi, buffer, dest, tag)
        return RequestWork("send", [request], lambda _: buffer and None)

    def recv(
        self, x: Any, *, source: int | None = None, tag: int | None = None, blocking: bool = True
    ) -> Any:
        """Receive into `x`.

        Parameters
        ----------
        x : array or tensor
            Where the message goes; it has to fill `x` exactly.
        source : int, optional
            The rank that sends; by default any.
        tag : int, optional
            By default any.

        Returns
        -------
        `x`, or with ``blocking=False`` a Work
            Its attributes `source`, `tag` and `nbytes` then say what came.

        Raises
        ------
        TransferError
            The message was longer or shorter than `x`.
        """
        peer = MPI.ANY_SOURCE if source is None else self._rank_of(source, "recv", "source")
        number = MPI.ANY_TAG if tag is None else self._tag(tag, "recv", "tag")
        buffer = destination(x, "recv")
        with _mpi_errors("recv", "the message was longer than `x` or"):
            if blocking:
                status = MPI.Status()
                transport.recv(self.mpi, buffer, peer, number, status)
                return _received(buffer, status, "recv")
            request = transport.irecv(self.mpi, buffer, peer, number)
        return RequestWork("recv", [request], lambda status: _received(buffer, status, "recv"))

    def sendrecv(
        self,
        x: Any,
        *,
        dest: int,
        source: int | None = None,
        tag: int = 0,
        out: Any = None,
        blocking: bool = True,
    ) -> Any:
        """Send `x` to one rank and receive an object of the same shape and dtype from another, without deadlock.

        Parameters
        ----------
        x : array or tensor
        dest : int
            The rank that receives `x`.
        source : int, optional
            The rank that sends; by default any.
        tag : int
            Of both messages.
        out : array or tensor, optional
            Where the message goes, of x's kind, shape and dtype; `x` itself works (through a copy).

        Returns
        -------
        What was received
        """
        dest = self._rank_of(dest, "sendrecv", "dest")
        peer = MPI.ANY_SOURCE if source is None else self._rank_of(source, "sendrecv", "source")
        tag = self._tag(tag, "sendrecv", "tag")
        outgoing = _open(x, "sendrecv")
        incoming = target(out, outgoing, outgoing.shape, "sendrecv")
        if same_memory(outgoing, incoming, "sendrecv"):
            outgoing = _open(_copy(x), "sendrecv")

        def run() -> Any:
            status = MPI.Status()
            transport.sendrecv(self.mpi, outgoing, dest, incoming, peer, tag, status)
            return _received(incoming, status, "sendrecv")

        if blocking:
            with _mpi_errors("sendrecv", "the message was longer than `x` or"):
                return run()
        with _mpi_errors("sendrecv"):
            requests = [
                transport.irecv(self.mpi, incoming, peer, tag),
                transport.isend(self.mpi, outgoing, dest, tag),
            ]
        return RequestWork(
            "sendrecv", requests, lambda status: outgoing and _received(incoming, status, "sendrecv")
        )

    # ---- Python objects

    def broadcast_object(self, obj: Any = None, *, root: int = 0, blocking: bool = True) -> Any:
        """Copy any picklable object from the root to all ranks; every rank gets it as the return value.

        `obj` counts on the root only.
        """
        root = self._rank_of(root, "broadcast_object", "root")
        return self.run("broadcast_object", lambda: self.mpi.bcast(obj, root), blocking)

    def allgather_object(self, obj: Any, *, blocking: bool = True) -> Any:
        """Collect one picklable object from each rank; every rank gets the list, in the order of the ranks."""
        return self.run("allgather_object", lambda: self.mpi.allgather(obj), blocking)

    def gather_object(self, obj: Any, *, root: int = 0, blocking: bool = True) -> Any:
        """Collect one picklable object from each rank; the root gets the list, the others None."""
        root = self._rank_of(root, "gather_object", "root")
        return self.run("gather_object", lambda: self.mpi.gather(obj, root), blocking)

    def scatter_object(
        self, objs: Sequence[Any] | None = None, *, root: int = 0, blocking: bool = True
    ) -> Any:
        """Hand out the root's list of picklable objects, one to each rank; `objs` counts on the root only."""
        root = self._rank_of(root, "scatter_object", "root")
        if self.rank == root:
            try:
                objs = list(objs)  # type: ignore[arg-type]
            except TypeError:
                objs = []
            if len(objs) != self.size:
                raise ArgumentError(
                    f"scatter_object: `objs` must be a list of one object for each of the {self.size} ranks, got {len(objs)}"
                )
        return self.run("scatter_object", lambda: self.mpi.scatter(objs, root), blocking)

    # ---- Groups

    def split(self, color: int | None, key: int = 0) -> Comm | None:
        """Divide the ranks into groups; every rank has to call it.

        Parameters
        ----------
        color : int or None
            Ranks that pass the same one, 0 or more, form a group; None joins none.
        key : int
            Orders the ranks of a group; equal keys keep the order.

        Returns
        -------
        Comm, or None where `color` is None
        """
        if color is not None and (not _is_index(color) or not 0 <= operator.index(color) < 2**31):
            raise ArgumentError(f"split: `color` must be None or an int from 0 on, got {color!r}")
        if not _is_index(key) or not -(2**31) <= operator.index(key) < 2**31:
            raise ArgumentError(f"split: `key` must be an int, got {key!r}")
        chosen = MPI.UNDEFINED if color is None else operator.index(color)
        return self._adopt(self.run("split", lambda: self.mpi.Split(chosen, key)))

    def node(self) -> Comm:
        """Return the ranks that share memory with this one, in the order of this communicator."""
        made = self.run("node", lambda: self.mpi.Split_type(MPI.COMM_TYPE_SHARED, self.rank))
        return self._adopt(made)  # type: ignore[return-value]

    def leaders(self) -> Comm | None:
        """Return the first rank of each node as a group; None on the others. Every rank has to call it."""
        with self.node() as node:
            first = node.rank == 0
        return self.split(0 if first else None, self.rank)

    def dup(self) -> Comm:
        """Return the same ranks with a traffic of their own. Every rank has to call it."""
        return self._adopt(self.run("dup", self.mpi.Dup))  # type: ignore[return-value]

    def free(self) -> None:
        """Give the communicator back to MPI, after what is pending; every rank has to call it.

        One that wraps a communicator of yours only lets go of it. A second call does nothing.
        """
        if isinstance(self.mpi, _Gone):
            return
        worker, mpi = self._worker, self.mpi
        if worker is not None and not worker.is_current:
            self.run("free", lambda: None)  # behind what is pending
            worker.stop()
            self._worker = None
        self._close("the communicator has been freed")
        if self._owned:
            mpi.Free()

    def __enter__(self) -> Comm:
        return self

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        # With an exception under way the other ranks may never come to the collective call that frees.
        if exc_type is None:
            self.free()

    def __repr__(self) -> str:
        if isinstance(self.mpi, _Gone):
            return f"<Comm, {self.mpi.reason}>"
        return f"<Comm {self.mpi.name or 'unnamed'}, rank {self.rank} of {self.size}>"

    def _adopt(self, mpi: Any) -> Comm | None:
        if mpi == MPI.COMM_NULL:
            return None
        comm = Comm(mpi)
        comm._owned = True
        return comm

    def _close(self, reason: str) -> None:
        self.mpi = _Gone(reason)

    # ---- Running

    def run(self, method: str, operation: Callable[[], Any], blocking: bool = True) -> Any:
        """Run something that communicates in its turn: after what is pending on this communicator.

        Parameters
        ----------
        method : str
            Its name, for messages.
        operation : callable
            Takes nothing, returns the result. Collectives of this communicator called in it run at once.
        blocking : bool
            Whether to wait. Without anything pending a blocking operation stays on the caller's thread.

        Returns
        -------
        What `operation` returns, or with ``blocking=False`` a Work
        """
        worker = self._worker
        try:
            if blocking and (worker is None or worker.idle or worker.is_current):
                return operation()
            if worker is None:
                self.mpi.Get_rank()  # raises where there is no communicator any more
                worker = self._worker = Worker(f"hpccoll worker of {self!r}")
        except MPI.Exception as error:
            raise self._transfer_error(method, error) from error
        work = ThreadWork(method, operation)
        if worker.is_current:
            work.execute()
        else:
            worker.submit(work)
        return work.wait() if blocking else work

    def _transfer_error(self, method: str, error: Exception) -> TransferError:
        return TransferError(f"{method} on rank {self.rank} of {self.size}: {error}")

    @property
    def pending(self) -> bool:
        """Whether collectives issued with ``blocking=False`` are still under way."""
        return self._worker is not None and not self._worker.idle

    # ---- Checks

    def _rank_of(self, rank: Any, method: str, name: str) -> int:
        if rank.__class__ is int and 0 <= rank < self.size:
            return rank
        if not _is_index(rank) or not 0 <= operator.index(rank) < self.size:
            raise ArgumentError(f"{method}: `{name}` must be a rank from 0 to {self.size - 1}, got {rank!r}")
        return operator.index(rank)

    def _tag(self, tag: Any, method: str, name: str) -> int:
        if not _is_index(tag) or not 0 <= operator.index(tag) <= _largest_tag():
            raise ArgumentError(f"{method}: `{name}` must be an int from 0 to {_largest_tag()}, got {tag!r}")
        return operator.index(tag)

    def _lengths(self, method: str, name: str, counts: Any) -> list[int]:
        try:
            lengths = [operator.index(count) for count in counts]
        except TypeError:
            lengths = [-1]
        if len(lengths) != self.size or min(lengths) < 0:
            raise ArgumentError(
                f"{method}: `{name}` must hold one length, 0 or more, for each of the {self.size} ranks; got {counts!r}"
            )
        return lengths

    def _block_of(self, method: str, whole: Buffer, counts: Any) -> tuple[tuple[int, ...], list[int]]:
        """Return the shape of this rank's block of `whole`, and the elements of everyone's."""
        _need_axis(method, whole)
        length, *rest = whole.shape
        if counts is None:
            if length != self.size:
                hint = f"; reshape it to ({self.size}, …)" if length % self.size == 0 else ""
                raise ArgumentError(
                    f"{method}: the first axis of `x` must have one block for each of the {self.size} ranks, "
                    f"got shape {tuple(whole.shape)}{hint}"
                )
            return tuple(rest), [whole.count // self.size] * self.size
        lengths = self._lengths(method, "counts", counts)
        if sum(lengths) != length:
            raise ArgumentError(
                f"{method}: `counts` add up to {sum(lengths)}, but `x` has {length} along its first axis"
            )
        width = math.prod(rest)
        return (lengths[self.rank], *rest), [n * width for n in lengths]

    def _joined(self, method: str, block: Buffer, counts: Any) -> tuple[tuple[int, ...], list[int] | None]:
        """Return the shape of all blocks together, and the elements of each if they may differ."""
        if counts is None:
            return (self.size, *block.shape), None
        _need_axis(method, block)
        lengths = self._lengths(method, "counts", counts)
        length, *rest = block.shape
        if lengths[self.rank] != length:
            raise ArgumentError(
                f"{method}: `counts` says {lengths[self.rank]} for rank {self.rank}, but its `x` has {length} along the "
                "first axis"
            )
        width = math.prod(rest)
        return (sum(lengths), *rest), [n * width for n in lengths]

    def _scattered_counts(self, block: Buffer, counts: Any) -> list[int]:
        if counts is None:
            return [block.count] * self.size
        shape, elements = self._joined("scatter", block, counts)
        return elements  # type: ignore[return-value]

    def _own_block(self, method: str, block: Buffer, whole: Buffer, elements: list[int] | None) -> bool:
        """Tell whether `block` is this rank's place in `whole`; raise if they overlap otherwise."""
        if block.staged or whole.staged or not block.count or not whole.count:
            return False
        if (
            not block.is_torch
            and block.user.base is None
            and whole.user.base is None
            and block.user is not whole.user
        ):
            return False
        start = block.count * self.rank if elements is None else sum(elements[: self.rank])
        if block.address == whole.address + start * block.dtype.itemsize:
            return True
        self._forbid_overlap(method, block, whole)
        return False

    def _forbid_overlap(self, method: str, send: Buffer, recv: Buffer) -> None:
        if same_memory(send, recv, method):
            raise ArgumentError(
                f"{method}: `out` overlaps `x`, which MPI does not allow here: pass separate memory"
            )


class _Gone:
    """Stands where the MPI communicator was, and says why it is not there."""

    def __init__(self, reason: str):
        self.reason = reason

    def __getattr__(self, name: str) -> Any:
        raise CommunicatorError(f"{self.reason}; get a new one from hpccoll.world(), split() or dup()")


def _is_index(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def _need_axis(method: str, buffer: Buffer) -> None:
    if not buffer.shape:
        raise ArgumentError(f"{method}: `x` has no axis that could be divided (shape ()): reshape it")


def _copy(x: Any) -> Any:
    return x.clone() if hasattr(x, "clone") else x.copy()


def _received(buffer: Buffer, status: Any, method: str) -> Any:
    nbytes = status.Get_elements(MPI.BYTE)
    if nbytes != buffer.nbytes:
        raise TransferError(
            f"{method}: the message from rank {status.Get_source()} with tag {status.Get_tag()} had {nbytes} bytes, "
            f"but `x` takes {buffer.nbytes} ({buffer.count} of {buffer.dtype.name}); the rest of `x` is unchanged"
        )
    return buffer.finish()


@contextlib.contextmanager
def _mpi_errors(method: str, hint: str = "") -> Iterator[None]:
    try:
        yield
    except MPI.Exception as error:
        raise TransferError(f"{method}: {hint} MPI says: {error}") from error


def _largest_tag() -> int:
    return MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767  # what the standard promises at least


# ---- The world, and its end

_live: weakref.WeakSet[Comm] = weakref.WeakSet()
_world: Comm | None = None


def world() -> Comm:
    """Return the communicator of all ranks: a duplicate of COMM_WORLD, so that user and library traffic never meet.

    The first call has to be made by every rank; all calls return the same object.

    Raises
    ------
    LaunchError
        The launcher has started several ranks, but each is alone in its MPI.
    """
    global _world
    if _world is None or isinstance(_world.mpi, _Gone):
        if MPI.Is_finalized():
            raise CommunicatorError("MPI has been finalised; hpccoll needs it until the end of the program")
        gate.check_world(MPI.COMM_WORLD)
        duplicate = MPI.COMM_WORLD.Dup()
        duplicate.Set_name("hpccoll world")
        _world = Comm(duplicate)
        _world._owned = True
        cuda.self_test(duplicate)
    return _world


def _at_finalize(*_: Any) -> None:
    finish_pending()
    for comm in list(_live):
        comm._close("MPI has been finalised")


# MPI_Finalize deletes the attributes of COMM_SELF before anything else.
MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=_at_finalize), True)
