"""MPI calls on buffers of any size.

MPI libraries without the large-count calls of MPI 4 take counts up to 2**31 - 1, and some count bytes of the
whole message in an int inside. Here every collective has a plain form for messages below that and a form in
parts above: reductions go piece by piece, movements as derived datatypes of which one element is the whole
message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.buffers import Buffer, dtype_of

MAX_COUNT = 2**31 - 1
"""The largest count, in elements or bytes, that is handed to MPI in one number (tests lower it)."""

_BLOCK = 2**20


def _pieces(count: int) -> Iterator[tuple[int, int]]:
    step = MAX_COUNT if MAX_COUNT < _BLOCK else MAX_COUNT // _BLOCK * _BLOCK  # whole cache lines and pages
    for start in range(0, count, step):
        yield start, min(start + step, count)


def _call(function: Callable[..., Any], buffer: Buffer, *args: Any) -> Any:
    """Call MPI with a message however long: as bytes, or as one element of a datatype as long as it."""
    nbytes = buffer.nbytes
    if nbytes <= MAX_COUNT:
        return function([buffer.memory, nbytes, MPI.BYTE], *args)
    datatype = _span(0, nbytes)
    try:
        return function([buffer.memory, 1, datatype], *args)
    finally:
        datatype.Free()  # MPI keeps it until a pending request is complete


def _span(offset: int, nbytes: int) -> Any:
    """Make a datatype that covers the bytes from `offset` on."""
    blocks, rest = divmod(nbytes, _BLOCK)
    block = MPI.BYTE.Create_contiguous(_BLOCK)
    span = MPI.Datatype.Create_struct([blocks, rest], [offset, offset + blocks * _BLOCK], [block, MPI.BYTE])
    block.Free()
    return span.Commit()


# ---- Reductions. `send` None means in place.


def _pairs(send: Buffer | None, recv: Buffer | None) -> Iterator[tuple[Any, Any]]:
    """Give the specifications of both sides, piece by piece where the count is too large for one call."""
    count = (recv or send).count  # type: ignore[union-attr]
    if count <= MAX_COUNT:
        yield MPI.IN_PLACE if send is None else send.typed(), None if recv is None else recv.typed()
        return
    for part in _pieces(count):
        yield (
            MPI.IN_PLACE if send is None else send.typed_part(*part),
            None if recv is None else recv.typed_part(*part),
        )


def allreduce(mpi: Any, send: Buffer | None, recv: Buffer, op: Any) -> None:
    if recv.count <= MAX_COUNT:
        mpi.Allreduce(MPI.IN_PLACE if send is None else send.typed(), recv.typed(), op)
        return
    for outgoing, incoming in _pairs(send, recv):
        mpi.Allreduce(outgoing, incoming, op)


def reduce(mpi: Any, send: Buffer | None, recv: Buffer | None, op: Any, root: int) -> None:
    """On the root `send` None means in place; elsewhere `recv` is None."""
    for outgoing, incoming in _pairs(send, recv):
        mpi.Reduce(outgoing, incoming, op, root)


def reduce_scatter(mpi: Any, send: Buffer, recv: Buffer, counts: Sequence[int], op: Any) -> None:
    """`counts` are the elements of each rank's block."""
    if send.count > MAX_COUNT:
        _reduce_blocks(mpi, send, recv, counts, op)
    elif len(set(counts)) == 1:
        mpi.Reduce_scatter_block(
            [send.memory, recv.count, send.dtype.mpi], recv.typed(), op
        )  # both of one block
    else:
        mpi.Reduce_scatter(send.typed(), recv.typed(), list(counts), op)


def _reduce_blocks(mpi: Any, send: Buffer, recv: Buffer, counts: Sequence[int], op: Any) -> None:
    start = 0
    for root, count in enumerate(counts):
        for first, last in _pieces(count):
            mpi.Reduce(
                send.typed_part(start + first, start + last),
                recv.typed_part(first, last) if root == mpi.rank else None,
                op,
                root,
            )
        start += count


def scan(mpi: Any, send: Buffer | None, recv: Buffer, op: Any, exclusive: bool) -> None:
    call = mpi.Exscan if exclusive else mpi.Scan
    for outgoing, incoming in _pairs(send, recv):
        call(outgoing, incoming, op)


# ---- Movements. Offsets and lengths are in elements of the buffers.


def broadcast(mpi: Any, buffer: Buffer, root: int) -> None:
    _call(mpi.Bcast, buffer, root)


def allgather(mpi: Any, send: Buffer | None, recv: Buffer, counts: Sequence[int] | None) -> None:
    """`send` None means in place; `counts` None means equal blocks."""
    if recv.nbytes <= MAX_COUNT:
        outgoing = MPI.IN_PLACE if send is None else send.raw()
        if counts is None:
            mpi.Allgather(outgoing, [recv.memory, recv.nbytes // mpi.size, MPI.BYTE])
        else:
            mpi.Allgatherv(outgoing, _vector(recv, counts))
        return
    parts = _parts(counts or _even(recv, mpi.size))
    if send is None:
        # The same call as without, since other ranks may not work in place; no part is both read and written.
        outgoing = [parts[mpi.rank]] * mpi.size
        outgoing[mpi.rank] = parts[mpi.rank] = (0, 0)
        _exchange(mpi, recv, outgoing, recv, parts)
    else:
        _exchange(mpi, send, [(0, send.count)] * mpi.size, recv, parts)


def gather(
    mpi: Any, send: Buffer | None, recv: Buffer | None, counts: Sequence[int] | None, root: int, total: int
) -> None:
    """`total`, the bytes that the root receives, decides the form, the same on all ranks.

    On the root `send` None means in place; elsewhere `recv` is None.
    """
    if total > MAX_COUNT:
        outgoing, incoming = _nothing(mpi.size), _nothing(mpi.size)
        if recv is not None:
            incoming = _parts(counts or _even(recv, mpi.size))
        if send is not None:
            outgoing[root] = (0, send.count)
        else:
            incoming[root] = (0, 0)
        _exchange(mpi, send, outgoing, recv, incoming)
    else:
        call = mpi.Gather if counts is None else mpi.Gatherv
        call(MPI.IN_PLACE if send is None else send.raw(), _blocks(recv, counts, mpi.size), root)


def scatter(
    mpi: Any, send: Buffer | None, recv: Buffer | None, counts: Sequence[int] | None, root: int, total: int
) -> None:
    """As :func:`gather`, the other way; on the root `recv` None means that its block stays where it is."""
    if total > MAX_COUNT:
        outgoing, incoming = _nothing(mpi.size), _nothing(mpi.size)
        if send is not None:
            outgoing = _parts(counts or _even(send, mpi.size))
        if recv is not None:
            incoming[root] = (0, recv.count)
        else:
            outgoing[root] = (0, 0)
        _exchange(mpi, send, outgoing, recv, incoming)
    else:
        call = mpi.Scatter if counts is None else mpi.Scatterv
        call(_blocks(send, counts, mpi.size), MPI.IN_PLACE if recv is None else recv.raw(), root)


def alltoall(mpi: Any, send: Buffer, recv: Buffer) -> None:
    """Exchange equal blocks."""
    if send.nbytes > MAX_COUNT:
        alltoallv(mpi, send, recv, _even(send, mpi.size), _even(recv, mpi.size))
    else:
        size = send.nbytes // mpi.size
        mpi.Alltoall([send.memory, size, MPI.BYTE], [recv.memory, size, MPI.BYTE])


def alltoallv(
    mpi: Any, send: Buffer, recv: Buffer, send_counts: Sequence[int], recv_counts: Sequence[int]
) -> None:
    """Exchange blocks of any sizes; no rank knows whether another one's message is large."""
    _exchange(mpi, send, _parts(send_counts), recv, _parts(recv_counts))


def exchange_parts(
    mpi: Any,
    send: Buffer,
    outgoing: Sequence[tuple[int, int]],
    recv: Buffer,
    incoming: Sequence[tuple[int, int]],
    bound: int,
) -> None:
    """Exchange parts, given as (offset, count), whose sizes follow from what all ranks know.

    `bound`, the same on every rank and no smaller than any rank's bytes on either side, decides the form.
    """
    if bound > MAX_COUNT:
        _exchange(mpi, send, outgoing, recv, incoming)
    else:
        mpi.Alltoallv(_vector_of_parts(send, outgoing), _vector_of_parts(recv, incoming))


def _even(buffer: Buffer, size: int) -> list[int]:
    return [buffer.count // size] * size


def _parts(counts: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(accumulate(counts, initial=0), counts, strict=False))


def _nothing(size: int) -> list[tuple[int, int]]:
    return [(0, 0)] * size


def _blocks(buffer: Buffer | None, counts: Sequence[int] | None, size: int) -> list[Any] | None:
    if buffer is None:
        return None
    return _vector(buffer, counts) if counts is not None else [buffer.memory, buffer.nbytes // size, MPI.BYTE]


def _vector(buffer: Buffer, counts: Sequence[int]) -> list[Any]:
    size = buffer.dtype.itemsize
    lengths = [count * size for count in counts]
    return [buffer.memory, lengths, list(accumulate(lengths[:-1], initial=0)), MPI.BYTE]


def _vector_of_parts(buffer: Buffer, parts: Sequence[tuple[int, int]]) -> list[Any]:
    size = buffer.dtype.itemsize
    return [
        buffer.memory,
        [count * size for _, count in parts],
        [offset * size for offset, _ in parts],
        MPI.BYTE,
    ]


def _exchange(
    mpi: Any,
    send: Buffer | None,
    outgoing: Sequence[tuple[int, int]],
    recv: Buffer | None,
    incoming: Sequence[tuple[int, int]],
) -> None:
    """Move any part, given as (offset, count), to any rank by one Alltoallw.

    Its counts and displacements are ints, so a part beyond their range becomes one element of a datatype that
    holds offset and length. The two forms meet freely: what has to agree is the bytes.
    """
    made: list[Any] = []

    def message(buffer: Buffer | None, parts: Sequence[tuple[int, int]]) -> list[Any]:
        if buffer is None:
            return [None, [0] * len(parts), [0] * len(parts), [MPI.BYTE] * len(parts)]
        counts, offsets, types = [], [], []
        for offset, count in parts:
            offset, count, datatype = offset * buffer.dtype.itemsize, count * buffer.dtype.itemsize, MPI.BYTE
            if offset + count > MAX_COUNT:
                datatype = _span(offset, count)
                offset, count = 0, 1
                made.append(datatype)
            counts.append(count)
            offsets.append(offset)
            types.append(datatype)
        return [buffer.memory, counts, offsets, types]

    try:
        mpi.Alltoallw(message(send, outgoing), message(recv, incoming))
    finally:
        for datatype in made:
            datatype.Free()


# ---- Point to point


def send(mpi: Any, buffer: Buffer, dest: int, tag: int) -> None:
    _call(mpi.Send, buffer, dest, tag)


def recv(mpi: Any, buffer: Buffer, source: int, tag: int, status: Any) -> int:
    """Receive, and return the bytes that the message has; of one that does not fit nothing is kept.

    Its length is looked at before: a receive that is too short makes Open MPI 5.0 write beyond the buffer.
    """
    message = mpi.Mprobe(source, tag, status)
    nbytes: int = status.Get_elements(MPI.BYTE)
    if nbytes <= buffer.nbytes:
        _call(message.Recv, buffer)
    else:
        waste = np.empty(nbytes, np.uint8)
        _call(message.Recv, Buffer(waste, waste, dtype_of(waste.dtype), waste.shape, nbytes))
    return nbytes


def isend(mpi: Any, buffer: Buffer, dest: int, tag: int) -> Any:
    return _call(mpi.Isend, buffer, dest, tag)


def irecv(mpi: Any, buffer: Buffer, source: int, tag: int) -> Any:
    return _call(mpi.Irecv, buffer, source, tag)


def sendrecv(
    mpi: Any, outgoing: Buffer, dest: int, incoming: Buffer, source: int, tag: int, status: Any
) -> int:
    """Send and receive; return the bytes that have come."""
    request = isend(mpi, outgoing, dest, tag)
    nbytes = recv(mpi, incoming, source, tag, status)
    request.Wait()
    return nbytes
