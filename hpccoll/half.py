"""Reductions of float16 and bfloat16: accumulated in float32, rounded once, the same bits on every rank.

MPI libraries have no such operation. Two ways lead there:

- *wide*: convert to float32, let MPI reduce, round. Twice the bytes on the wire, few messages: for small
  ones.
- *exchange*: every rank owns one block of the elements, gets all ranks' versions of it as they are (2 bytes
  each),
  adds them up in float32 in the order of the ranks, rounds, and hands the result on. The traffic is that of a
  float32 reduction of the same number of bytes: 2 (n-1)/n times the message for an allreduce.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from hpccoll import transport
from hpccoll.buffers import Buffer, scratch

EXCHANGE_BLOCK_BYTES = 16 * 1024
"""Size of one rank's block from which on the exchange is taken (docs/performance.md has the measurement)."""

# Beyond the range is infinity, and infinity less infinity NaN, here as in MPI: values, not reasons for a warning.
_quietly = np.errstate(over="ignore", invalid="ignore")

_TILE = 32 * 1024  # elements: a tile in float32 and its sources stay in the second-level cache


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
    _combine(_collect_rows(mpi, send, counts), block, op)
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
    _combine(_collect_rows(mpi, send, counts), block.line, op)
    transport.gather(mpi, block, recv, counts, root, send.nbytes)


def reduce_scatter(
    mpi: Any, send: Buffer, recv: Buffer, counts: Sequence[int], op: str, wide_op: Any
) -> None:
    if not _exchanges(mpi, send):
        wide, block = _widen(send), scratch(send, "float32", recv.count)
        transport.reduce_scatter(mpi, wide, block, counts, wide_op)
        _narrow(block, recv, op, mpi.size)
    else:
        _combine(_collect_rows(mpi, send, counts), recv.line, op)


def scan(mpi: Any, send: Buffer, recv: Buffer, op: str, wide_op: Any, exclusive: bool) -> None:
    """What rank 0 gets from an exclusive scan is left to the caller."""
    if not _exchanges(mpi, send):
        wide = _widen(send)
        transport.scan(mpi, None, wide, wide_op, exclusive)
        _narrow(wide, recv, op, max(1, mpi.rank + (not exclusive)))
        return
    counts = _split(send.count, mpi.size)
    own = [counts[mpi.rank]] * mpi.size
    rows = scratch(send, send.dtype.name, sum(own))
    bound = _bound(send, counts)
    transport.exchange_blocks(mpi, send, rows, counts, own, bound, skip_own=False)
    _accumulate(rows.line.reshape(mpi.size, -1), op, exclusive)
    transport.exchange_blocks(mpi, rows, recv, own, counts, bound, skip_own=False)


def _split(count: int, size: int) -> list[int]:
    """Cut `count` elements into one block per rank, in multiples of a cache line where there are enough."""
    block = -(-count // size)
    block = -(-block // 32) * 32
    return [max(0, min(block, count - rank * block)) for rank in range(size)]


def _bound(whole: Buffer, counts: Sequence[int]) -> int:
    """Return the most bytes that a rank sends or collects when every rank owns one block."""
    return max(whole.nbytes, len(counts) * max(counts) * whole.dtype.itemsize)


def _collect_rows(mpi: Any, send: Buffer, counts: Sequence[int]) -> list[Any]:
    """Get every rank's version of this rank's block, in the order of the ranks; the own one where it lies."""
    own = counts[mpi.rank]
    lengths = [0 if rank == mpi.rank else own for rank in range(mpi.size)]
    inbox = scratch(send, send.dtype.name, sum(lengths))
    transport.exchange_blocks(mpi, send, inbox, counts, lengths, _bound(send, counts), skip_own=True)
    offsets = list(accumulate(lengths, initial=0))
    rows = [inbox.line[offset : offset + own] for offset in offsets[:-1]]
    start = sum(counts[: mpi.rank])
    rows[mpi.rank] = send.line[start : start + own]
    return rows


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
