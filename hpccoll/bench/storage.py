"""Guarded and poisoned buffers, and the comparison of what arrived with what should have.

A rank's input is one long stretch of its pattern. Iteration i sends a *window* of it that starts
``i % WINDOWS`` cache lines further on, so inputs differ from iteration to iteration without being rewritten;
the expected values lie in memory the same way. This makes a full check of every single iteration affordable:
poison the receive buffer, call, compare bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpccoll.bench.case import ALL, Case, Place
from hpccoll.bench.dtypes import DType, decode, numpy_dtype, torch_dtype
from hpccoll.bench.pattern import fill, rank_table, reduced_table

__all__ = ["WINDOWS", "Slab", "Tables", "Wrong", "RowData", "rank_nbytes"]

WINDOWS = 13  # a prime: out of step with the powers of two of an MPI library's internal buffers
_STEP_NBYTES = 64
_GUARD_NBYTES = 64
_CANARY = 0xA5
_POISON = (0x5A, 0xB7)  # alternating, so that no value equals the poison every time
_PAGE = 4096


def _step(dtype: DType) -> int:
    return _STEP_NBYTES // dtype.itemsize


def _pad(dtype: DType) -> int:
    return (WINDOWS - 1) * _step(dtype)


def rank_nbytes(case: Case, dtype: DType, count: int, place: Place) -> int:
    """Bytes that a row needs on this rank: input, expected, received, and as much again for the library."""
    sends, recvs = case.sends(place), len(case.expects(place))
    blocks = sends + 2 * recvs
    return (blocks + max(sends, recvs)) * (count + _pad(dtype)) * dtype.itemsize


class Slab:
    """A buffer between two canaries, in one larger allocation."""

    def __init__(self, nbytes: int) -> None:
        whole = np.empty(nbytes + 2 * _GUARD_NBYTES + _PAGE, np.uint8)
        # The data starts on a page, as MPI libraries and the vector units like it.
        start = -(whole.ctypes.data + _GUARD_NBYTES) % _PAGE + _GUARD_NBYTES
        self.data = whole[start : start + nbytes]
        self._guards = (
            whole[start - _GUARD_NBYTES : start],
            whole[start + nbytes : start + nbytes + _GUARD_NBYTES],
        )
        for guard in self._guards:
            guard.fill(_CANARY)

    def broken_guard(self) -> str | None:
        """Which canary was overwritten, where and with what; None if both are whole."""
        for guard, side in zip(self._guards, ("before", "behind"), strict=True):
            wrong = np.flatnonzero(guard != _CANARY)
            if wrong.size:
                where = _GUARD_NBYTES - int(wrong[-1]) if side == "before" else int(wrong[0]) + 1
                found = int(guard[wrong[-1] if side == "before" else wrong[0]])
                return f"byte {where} {side} the buffer: expected {_CANARY:#x}, found {found:#x}"
        return None


class Tables:
    """Tables of one dtype and op over `size` ranks, made once."""

    def __init__(self, dtype: DType, op: str | None, size: int) -> None:
        self.dtype, self.op, self.size = dtype, op, size
        self._known: dict[int, np.ndarray] = {}

    def __getitem__(self, rank: int) -> np.ndarray:
        if rank not in self._known:
            if len(self._known) > 4096:  # 16 MiB of them
                self._known.clear()
            self._known[rank] = (
                reduced_table(self.dtype, self.op or "", self.size)
                if rank == ALL
                else rank_table(self.dtype, self.op, self.size, rank)
            )
        return self._known[rank]


@dataclass(frozen=True)
class Wrong:
    """Wrong elements of one check on one rank, and a text that describes the first."""

    count: int
    text: str


class RowData:
    """Buffers, inputs and expected values of one row on one rank.

    Parameters
    ----------
    case, tables, count, place
        What is called, with which dtype and op, how many elements a block, and where.
    salt
        Number of the row; rows with different numbers have unrelated inputs.
    in_place
        Whether the call works in place, on the ranks that have both input and output.
    """

    def __init__(
        self, case: Case, tables: Tables, count: int, place: Place, *, salt: int, in_place: bool
    ) -> None:
        self.dtype = dtype = tables.dtype
        self.count = count
        self._tables, self._salt, self._place = tables, salt, place
        sends, sources = case.sends(place), case.expects(place)
        self._sends = sends
        self._stack = (case.stacked_send, case.stacked_recv)
        self.in_place = bool((in_place or case.always_in_place) and sends and sources)
        self._own = slice(None)  # the blocks of the output that are input as well
        if case.in_place == "block":
            self._own = slice(place.rank, place.rank + 1)
        length = sends * count + _pad(dtype) if sends else 0
        self._input = Slab(length * dtype.itemsize) if sends else None
        if self._input is not None:
            self._fill(self._input.data, place.rank, 0)
        self._recv = Slab(len(sources) * count * dtype.itemsize) if sources else None
        row = (count + _pad(dtype)) * dtype.itemsize
        self._expected = np.empty((len(sources), row), np.uint8)
        for target, source in zip(self._expected, sources, strict=True):
            self._fill(target, source.rank, source.block * count)
        # The output as bytes: (blocks, bytes of a block).
        self._blocks = np.empty((0, 0), np.uint8)
        if self._recv is not None:
            self._blocks = self._recv.data.reshape(len(sources), count * dtype.itemsize)
        self._word = np.dtype({1: np.uint8, 2: np.uint16, 4: np.uint32}.get(dtype.itemsize, np.uint64))
        self._pairs = self._make_pairs()

    def _fill(self, target: np.ndarray, rank: int, start: int) -> None:
        table = self._tables[rank]
        fill(target.view(table.dtype), table, start, self._salt)

    def _make_pairs(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(received, expected) for every window, as whole words and ready to compare."""
        if self._recv is None:
            return []
        item, step = self.dtype.itemsize, _step(self.dtype)
        received = self._blocks.view(self._word)
        return [
            (received, self._expected[:, begin : begin + self.count * item].view(self._word))
            for begin in range(0, WINDOWS * step * item, step * item)
        ]

    def windows(self, kind: str) -> list[tuple[Any, Any]]:
        """(send, recv) for each window, of `kind` ``numpy`` or ``torch``; None for what this rank lacks."""
        recv: Any = (
            None
            if self._recv is None
            else self._view(self._recv.data, len(self._blocks), self._stack[1], kind)
        )
        if self.in_place:
            send = recv[self._place.rank] if self._own != slice(None) else recv
            return [(send, recv)] * WINDOWS
        if self._input is None:
            return [(None, recv)] * WINDOWS
        return [
            (self._view(self._window(i), self._sends, self._stack[0], kind), recv) for i in range(WINDOWS)
        ]

    def _window(self, index: int) -> np.ndarray:
        assert self._input is not None
        begin = index * _step(self.dtype) * self.dtype.itemsize
        return self._input.data[begin : begin + self._sends * self.count * self.dtype.itemsize]

    def _view(self, raw: np.ndarray, blocks: int, stacked: bool, kind: str) -> Any:
        if kind == "torch":
            import torch

            flat: Any = torch.from_numpy(raw).view(torch_dtype(self.dtype))
        else:
            flat = raw.view(numpy_dtype(self.dtype))
        return flat.reshape(blocks, self.count) if stacked else flat

    def prepare(self, iteration: int) -> None:
        """Poison the receive buffer, or load the input into it if the call works in place."""
        if self._recv is None:
            return
        if not self.in_place or self._own != slice(None):
            self._recv.data.fill(_POISON[iteration & 1])
        if self.in_place:
            self._blocks[self._own].reshape(-1)[...] = self._window(iteration % WINDOWS)

    def check(self, iteration: int) -> Wrong | None:
        """Compare all that was received with all that should have been."""
        if self._recv is None:
            return None
        received, expected = self._pairs[iteration % WINDOWS]
        if (received == expected).all():
            return None
        return self._explain(received, expected, iteration)

    def _explain(self, received: np.ndarray, expected: np.ndarray, iteration: int) -> Wrong | None:
        found, wanted = decode(received, self.dtype), decode(np.ascontiguousarray(expected), self.dtype)
        wrong = np.flatnonzero((found != wanted).reshape(-1))
        if not wrong.size:
            return None  # the bits differ and the values do not: -0.0
        index = int(wrong[0])
        text = (
            f"index {index}: expected {wanted.reshape(-1)[index]}, found {found.reshape(-1)[index]}"
            f" ({wrong.size} of {found.size} elements wrong, call {iteration})"
        )
        return Wrong(int(wrong.size), text)

    def check_rest(self) -> list[Wrong]:
        """After the last call: the input is what it was, and the canaries are whole."""
        problems = []
        if self._input is not None:
            # Made anew rather than kept from the start: a copy could be overwritten as well.
            pristine = np.empty_like(self._input.data)
            self._fill(pristine, self._place.rank, 0)
            if not np.array_equal(pristine, self._input.data):
                found, wanted = decode(self._input.data, self.dtype), decode(pristine, self.dtype)
                wrong = np.flatnonzero(found != wanted)
                if wrong.size:
                    index = int(wrong[0])
                    values = f"expected {wanted[index]}, found {found[index]}"
                    text = f"the input was changed at index {index}: {values}"
                    problems.append(Wrong(int(wrong.size), text))
        for slab, name in ((self._input, "input"), (self._recv, "output")):
            broken = slab.broken_guard() if slab is not None else None
            if broken:
                problems.append(Wrong(1, f"the canary of the {name} was overwritten, {broken}"))
        return problems
