"""Reductions of float16 and bfloat16: accumulated in float32, rounded once, the same bits on every rank.

MPI libraries have no such operation. Three ways lead there:

- *pair*: between two ranks a sum or a product is one operation, which MPI is given.
- *wide*: convert to float32, let MPI reduce, round. Twice the bytes on the wire, few messages: for small ones.
- *exchange*: every rank owns one block of the elements, gets all ranks' versions of it as they are (2 bytes each),
  adds them up in float32 in the order of the ranks, rounds, and hands the result on. The traffic is that of a float32
  reduction of the same number of bytes: 2 (n-1)/n times the message for an allreduce.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll import transport
from hpccoll.buffers import Buffer, scratch

EXCHANGE_BLOCK_BYTES = 128 * 1024
"""Size of one rank's block from which on the exchange is taken (docs/performance.md has the measurement)."""

_INBOX_BYTES = 4 * 1024 * 1024
_LEAST_PIECE_BYTES = 64 * 1024

# Beyond the range is infinity, and infinity less infinity NaN, here as in MPI: values, not reasons for a warning.
_quietly = np.errstate(over="ignore", invalid="ignore")

_TILE = 32 * 1024  # elements: a tile in float32 and its sources stay in the second-level cache


_PAIRWISE = {"sum": "add", "prod": "multiply"}


@cache
def pair_operation(dtype: str, op: str) -> Any:
    """Make the MPI operation that is a whole reduction between two ranks; None for those that need float32 outside.

    Of two values the sum and the product are computed in float32 and rounded once by torch and by NumPy themselves.
    """
    if op not in _PAIRWISE:
        return None

    @_quietly
    def combine(incoming: Any, accumulated: Any, _: Any) -> None:
        if not len(accumulated):
            return
        library: Any = sys.modules.get("torch", np)  # torch does it five times as fast
        kind = np.dtype(dtype) if library is np else getattr(library, dtype)
        total = library.frombuffer(accumulated, dtype=kind)
        getattr(library, _PAIRWISE[op])(library.frombuffer(incoming, dtype=kind), total, out=total)

    return MPI.Op.Create(combine, commute=True)


def _exchanges(mpi: Any, whole: Buffer) -> bool:
    return bool(mpi.size > 1 and whole.nbytes // mpi.size >= EXCHANGE_BLOCK_BYTES)


def allreduce(mpi: Any, send: Buffer, recv: Buffer, op: str, wide_op: Any) -> None:
    """`send` may be `recv`, or lie in the same memory."""
    if not _exchanges(mpi, send):
        wide = _widen(send)
        transport.allreduce(mpi, None, wide, wide_op)
        _narrow(wide, recv, op, mpi.size)
        return
    counts = _split(send.count, mpi.size)
    start = sum(counts[: mpi.rank])
    block = recv.line[start : start + counts[mpi.rank]]
    _reduce_own_block(mpi, send, counts, block, op)
    transport.allgather(mpi, None, recv, counts)


def reduce(mpi: Any, send: Buffer, recv: Buffer | None, op: str, wide_op: Any, root: int) -> None:
    """`recv` is None except on the root."""
    if not _exchanges(mpi, send):
        wide = _widen(send)
        transport.reduce(
            mpi, None if recv is not None else wide, wide if recv is not None else None, wide_op, root
        )
        if recv is not None:
            _narrow(wide, recv, op, mpi.size)
        return
    counts = _split(send.count, mpi.size)
    block = scratch(send, send.dtype.name, counts[mpi.rank])
    _reduce_own_block(mpi, send, counts, block.line, op)
    transport.gather(mpi, block, recv, counts, root, send.nbytes)


def reduce_scatter(
    mpi: Any, send: Buffer, recv: Buffer, counts: Sequence[int], op: str, wide_op: Any
) -> None:
    if not _exchanges(mpi, send):
        wide, block = _widen(send), scratch(send, "float32", recv.count)
        transport.reduce_scatter(mpi, wide, block, counts, wide_op)
        _narrow(block, recv, op, mpi.size)
    else:
        _reduce_own_block(mpi, send, counts, recv.line, op)


def scan(mpi: Any, send: Buffer, recv: Buffer, op: str, wide_op: Any, exclusive: bool) -> None:
    """What rank 0 gets from an exclusive scan is left to the caller."""
    if not _exchanges(mpi, send):
        wide = _widen(send)
        transport.scan(mpi, None, wide, wide_op, exclusive)
        _narrow(wide, recv, op, max(1, mpi.rank + (not exclusive)))
        return
    counts = _split(send.count, mpi.size)
    own = counts[mpi.rank]
    rows = scratch(send, send.dtype.name, own * mpi.size)
    blocks = list(zip(accumulate(counts, initial=0), counts, strict=False))
    versions = [(rank * own, own) for rank in range(mpi.size)]
    bound = max(send.nbytes, mpi.size * max(counts) * send.dtype.itemsize)
    transport.exchange_parts(mpi, send, blocks, rows, versions, bound)
    _accumulate(rows.line.reshape(mpi.size, -1), op, exclusive)
    transport.exchange_parts(mpi, rows, versions, recv, blocks, bound)


def _split(count: int, size: int) -> list[int]:
    """Cut `count` elements into one block per rank, in multiples of a cache line where there are enough."""
    block = -(-count // size)
    block = -(-block // 32) * 32
    return [max(0, min(block, count - rank * block)) for rank in range(size)]


def _reduce_own_block(mpi: Any, send: Buffer, counts: Sequence[int], out: Any, op: str) -> None:
    """Get every rank's version of this rank's block and reduce them, in the order of the ranks, into `out`.

    This goes piece by piece, so that the memory that it takes does not grow with the message.
    """
    rank, size, own = mpi.rank, mpi.size, counts[mpi.rank]
    step = max(_LEAST_PIECE_BYTES, _INBOX_BYTES // (size - 1)) // send.dtype.itemsize
    starts = list(accumulate(counts, initial=0))
    inbox = scratch(send, send.dtype.name, min(step, own) * (size - 1))
    places = [other - (other > rank) for other in range(size)]  # there is none for this rank
    for first in range(0, max(counts), step):
        length = max(0, min(step, own - first))
        outgoing = [
            (start + first, max(0, min(step, count - first)))
            for start, count in zip(starts, counts, strict=False)
        ]
        incoming = [(place * length, length) for place in places]
        outgoing[rank] = incoming[rank] = (0, 0)
        transport.exchange_parts(mpi, send, outgoing, inbox, incoming, send.nbytes)
        rows = [inbox.line[place * length : (place + 1) * length] for place in places]
        rows[rank] = send.line[starts[rank] + first : starts[rank] + first + length]
        _combine(rows, out[first : first + length], op)


def _widen(buffer: Buffer) -> Buffer:
    wide = scratch(buffer, "float32", buffer.count)
    wide.line[...] = buffer.line
    return wide


@_quietly
def _narrow(wide: Buffer, recv: Buffer, op: str, terms: int) -> None:
    line = wide.line
    if op == "avg":
        line /= terms
    recv.line[...] = line


@_quietly
def _combine(rows: Sequence[Any], out: Any, op: str) -> None:
    """Reduce `rows` into `out`, which may be one of them, tile by tile."""
    add = _operator(rows[0], op)
    wide = _float32(rows[0], min(_TILE, len(out)))
    for start in range(0, len(out), _TILE):
        stop = min(start + _TILE, len(out))
        total = wide[: stop - start]
        total[...] = rows[0][start:stop]
        for row in rows[1:]:
            add(total, row[start:stop])
        if op == "avg":
            total /= len(rows)
        out[start:stop] = total


@_quietly
def _accumulate(rows: Any, op: str, exclusive: bool) -> None:
    """Replace every row by the reduction of those up to it (before it, if exclusive), tile by tile."""
    add = _operator(rows, op)
    length = rows.shape[1]
    buffers = [_float32(rows, min(_TILE, length)) for _ in range(3)]
    for start in range(0, length, _TILE):
        stop = min(start + _TILE, length)
        total, ahead, result = (buffer[: stop - start] for buffer in buffers)
        total[...] = rows[0, start:stop]
        for terms in range(1, len(rows)):
            tile = rows[terms, start:stop]
            ahead[...] = total
            add(total, tile)
            result[...] = ahead if exclusive else total
            if op == "avg":
                result /= terms + (not exclusive)
            tile[...] = result


def _float32(like: Any, count: int) -> Any:
    if isinstance(like, np.ndarray):
        return np.empty(count, np.float32)
    import torch

    return torch.empty(count, dtype=torch.float32)


def _operator(like: Any, op: str) -> Callable[[Any, Any], Any]:
    """Return what combines a row into a float32 total in place."""
    if isinstance(like, np.ndarray):
        ufunc = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op]
        return lambda total, row: ufunc(total, row.astype(np.float32), out=total)
    import torch

    if op in ("sum", "avg"):
        return lambda total, row: total.add_(row)
    if op == "prod":
        return lambda total, row: total.mul_(row)
    choose = torch.minimum if op == "min" else torch.maximum
    return lambda total, row: choose(total, row.float(), out=total)
