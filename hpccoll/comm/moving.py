"""The collectives that move data: broadcast, allgather, gather, scatter, alltoall; barrier; Python objects."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from hpccoll import transport
from hpccoll.buffers import Buffer, DType, copy_of, destination, direct, same_memory, source, target
from hpccoll.comm.arguments import block_of, forbid_overlap, joined, lengths_of, need_axis, own_block, rank_of
from hpccoll.comm.issuing import Issuing
from hpccoll.errors import ArgumentError, UnsupportedError
from hpccoll.recorder.seam import collective


class Moving(Issuing):
    """The data movement of a communicator."""

    @collective
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
        root = rank_of(self, root, "broadcast", "root")
        if blocking and self._free_to_go and (plain := direct(x, x)) is not None:
            nbytes = plain[2] * plain[3].itemsize
            if nbytes <= transport.MAX_COUNT:
                self._directly("broadcast", self.mpi.Bcast, (plain[1], nbytes, MPI.BYTE), root)
                return x
        at_root = self.rank == root
        buffer = source(x, "broadcast") if at_root else destination(x, "broadcast")

        def run() -> Any:
            transport.broadcast(self.mpi, buffer, root)
            return x if at_root else buffer.finish()

        return self._run("broadcast", run, blocking)

    @collective
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
            Of shape ``(size, *x.shape)``: the blocks stacked in the order of the ranks. With `counts` of
            shape ``(sum(counts), *x.shape[1:])``: the blocks joined along the first axis.
        """
        if out is not None and counts is None and blocking and self._free_to_go:
            plain = direct(x, out, self.size)
            if plain is not None and self._exchange_directly("allgather", self.mpi.Allgather, plain):
                return out
        send = source(x, "allgather")
        if isinstance(counts, str):
            return self._allgather_auto(send, counts, out, blocking)
        shape, lengths = joined(self, "allgather", send, counts)
        recv = target(out, send, shape, "allgather")
        in_place = own_block(self, "allgather", send, recv, lengths)

        def run() -> Any:
            transport.allgather(self.mpi, None if in_place else send, recv, lengths)
            return recv.finish()

        return self._run("allgather", run, blocking)

    def _exchange_directly(self, method: str, call: Any, plain: tuple[Any, Any, int, DType]) -> bool:
        """Exchange one block with every rank, if it is in the range of one call."""
        send_memory, memory, count, dtype = plain
        nbytes = count * dtype.itemsize
        if nbytes * self.size > transport.MAX_COUNT:
            return False
        self._directly(method, call, (send_memory, nbytes, MPI.BYTE), (memory, nbytes, MPI.BYTE))
        return True

    def _allgather_auto(self, send: Buffer, counts: str, out: Any, blocking: bool) -> Any:
        if counts != "auto":
            raise ArgumentError(
                f'allgather: `counts` must be "auto" or one length for each rank, got {counts!r}'
            )
        if out is not None:
            raise ArgumentError(
                'allgather: `out` needs `counts` as lengths, not "auto": its shape must be known'
            )
        need_axis("allgather", send)

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
            shape, lengths = joined(self, "allgather", send, [shape[0] for shape, _ in shapes])
            recv = target(None, send, shape, "allgather")
            transport.allgather(self.mpi, send, recv, lengths)
            return recv.finish()

        return self._run("allgather", run, blocking)

    @collective
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
        root = rank_of(self, root, "gather", "root")
        send = source(x, "gather")
        shape, lengths = joined(self, "gather", send, counts)
        recv, in_place = None, False
        if self.rank == root:
            recv = target(out, send, shape, "gather")
            in_place = own_block(self, "gather", send, recv, lengths)
        total = math.prod(shape) * send.dtype.itemsize

        def run() -> Any:
            transport.gather(self.mpi, None if in_place else send, recv, lengths, root, total)
            return recv.finish() if recv is not None else None

        return self._run("gather", run, blocking)

    @collective
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
            On the root: of shape ``(size, *block)``, with `counts` of shape ``(sum(counts), *rest)``.
            Elsewhere: None if `out` is given, or else an object of the shape and dtype of the block to come
            (it is not touched).
        root : int
        counts : sequence of int, optional
            The lengths of the blocks along the first axis; has to be given on every rank or on none.
        out : array or tensor, optional
            Where this rank's block goes. On the root ``x[root]`` works: the block stays where it is.

        Returns
        -------
        The block of this rank
        """
        root = rank_of(self, root, "scatter", "root")
        if self.rank == root:
            send: Buffer | None = source(x, "scatter")
            shape, elements = block_of(self, "scatter", send, counts)  # type: ignore[arg-type]
            recv: Buffer | None = target(out, send, shape, "scatter")  # type: ignore[arg-type]
            in_place = own_block(self, "scatter", recv, send, elements if counts is not None else None)  # type: ignore[arg-type]
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
            elements = joined(self, "scatter", recv, counts)[1] or [recv.count] * self.size
        total = sum(elements) * recv.dtype.itemsize  # type: ignore[union-attr]
        even = counts is None

        def run() -> Any:
            transport.scatter(
                self.mpi, send, None if in_place else recv, None if even else elements, root, total
            )
            return recv.finish()  # type: ignore[union-attr]

        return self._run("scatter", run, blocking)

    @collective
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
            The lengths of the blocks along the first axis that go to, and come from, each rank. `send_counts`
            has to be given on every rank or on none; so has `recv_counts`, without which the ranks are asked
            first.
        out : array or tensor, optional
            Where the result goes; `x` itself works (through a copy), but no overlap in part.

        Returns
        -------
        Array or tensor
            Of x's shape, or ``(sum(recv_counts), *rest)``: the blocks in the order of the ranks they came
            from.
        """
        if out is not None and send_counts is None and recv_counts is None and blocking and self._free_to_go:
            plain = direct(x, out)
            if plain is not None and plain[0] is not None and x.ndim and x.shape[0] == self.size:
                send_memory, memory, count, dtype = plain
                blocks = (send_memory, memory, count // self.size, dtype)
                if self._exchange_directly("alltoall", self.mpi.Alltoall, blocks):
                    return out
        send = source(x, "alltoall")
        if send_counts is not None:
            return self._alltoall_uneven(send, send_counts, recv_counts, out, blocking)
        if recv_counts is not None:
            raise ArgumentError("alltoall: `recv_counts` needs `send_counts`")
        block_of(self, "alltoall", send, None)
        recv = target(out, send, send.shape, "alltoall")
        if same_memory(send, recv, "alltoall"):
            send = source(copy_of(x), "alltoall")

        def run() -> Any:
            transport.alltoall(self.mpi, send, recv)
            return recv.finish()

        return self._run("alltoall", run, blocking)

    def _alltoall_uneven(
        self,
        send: Buffer,
        send_counts: Sequence[int],
        recv_counts: Sequence[int] | None,
        out: Any,
        blocking: bool,
    ) -> Any:
        need_axis("alltoall", send)
        rest = tuple(send.shape[1:])
        width = math.prod(rest)
        outgoing = lengths_of(self, "alltoall", "send_counts", send_counts)
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

            return self._run("alltoall", run, blocking)

        incoming = lengths_of(self, "alltoall", "recv_counts", recv_counts)
        if incoming[self.rank] != outgoing[self.rank]:
            raise ArgumentError(
                f"alltoall: rank {self.rank} sends itself {outgoing[self.rank]} (send_counts) but expects "
                f"{incoming[self.rank]} (recv_counts)"
            )
        recv = target(out, send, (sum(incoming), *rest), "alltoall")
        forbid_overlap("alltoall", send, recv)

        def run_known() -> Any:
            transport.alltoallv(
                self.mpi, send, recv, [n * width for n in outgoing], [n * width for n in incoming]
            )
            return recv.finish()

        return self._run("alltoall", run_known, blocking)

    @collective
    def barrier(self, *, blocking: bool = True) -> Any:
        """Return when every rank has called it."""
        return self._run("barrier", self.mpi.Barrier, blocking)

    # ---- Python objects

    @collective
    def broadcast_object(self, obj: Any = None, *, root: int = 0, blocking: bool = True) -> Any:
        """Copy any picklable object from the root to all ranks; every rank gets it as the return value.

        `obj` counts on the root only.
        """
        root = rank_of(self, root, "broadcast_object", "root")
        return self._pickled("broadcast_object", lambda: self.mpi.bcast(obj, root), blocking)

    @collective
    def allgather_object(self, obj: Any, *, blocking: bool = True) -> Any:
        """Collect one picklable object from each rank; every rank gets the list, in the order of the
        ranks."""
        return self._pickled("allgather_object", lambda: self.mpi.allgather(obj), blocking)

    @collective
    def gather_object(self, obj: Any, *, root: int = 0, blocking: bool = True) -> Any:
        """Collect one picklable object from each rank; the root gets the list, the others None."""
        root = rank_of(self, root, "gather_object", "root")
        return self._pickled("gather_object", lambda: self.mpi.gather(obj, root), blocking)

    @collective
    def scatter_object(
        self, objs: Sequence[Any] | None = None, *, root: int = 0, blocking: bool = True
    ) -> Any:
        """Hand out the root's list of picklable objects, one to each rank; `objs` counts on the root only."""
        root = rank_of(self, root, "scatter_object", "root")
        if self.rank == root:
            try:
                objs = list(objs)  # type: ignore[arg-type]
            except TypeError:
                objs = []
            if len(objs) != self.size:
                raise ArgumentError(
                    f"scatter_object: `objs` must be a list of {self.size} objects, one for each rank; got {len(objs)}"
                )
        return self._pickled("scatter_object", lambda: self.mpi.scatter(objs, root), blocking)

    def _pickled(self, method: str, call: Callable[[], Any], blocking: bool) -> Any:
        """Run a call of mpi4py that pickles its argument before it sends anything."""

        def run() -> Any:
            try:
                return call()
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise UnsupportedError(
                    f"{method}: the object cannot be pickled, or not unpickled here: {error}"
                ) from error

        return self._run(method, run, blocking)
