"""What is particular to one collective; all the rest is shared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["ALL", "Buffers", "Case", "Place", "Source", "one_block", "ring_factor"]

ALL = -1  # the rank of a Source that is reduced over every rank


class Place(NamedTuple):
    """Where a call happens: this rank, how many there are, and the root."""

    rank: int
    size: int
    root: int


class Source(NamedTuple):
    """Where a received block comes from: block `block` of what `rank` sends (`ALL`: reduced over all)."""

    rank: int
    block: int


@dataclass(frozen=True)
class Buffers:
    """Buffers and arguments of one call, as the user of `hpccoll.Comm` would pass them.

    Attributes
    ----------
    send, recv
        NumPy arrays or torch tensors; None where this rank sends or receives nothing.
    op : str
        Empty where the collective has none.
    place : Place
    in_place : bool
        `send` is `recv`, or this rank's block of it.
    """

    send: Any
    recv: Any
    op: str
    place: Place
    in_place: bool


def one_block(place: Place) -> int:
    """Every rank sends one block."""
    return 1


def ring_factor(size: int) -> float:
    """(n-1)/n: the part of S that has to cross a link of each rank."""
    return (size - 1) / size


@dataclass(frozen=True)
class Case:
    """One collective.

    A *block* is `count` elements. The input of a rank is `sends(place)` blocks one behind the other.

    Attributes
    ----------
    name : str
        The program's name, and the engines' for the call.
    summary : str
        One line for ``--help``.
    sends : callable
        Place -> number of blocks that this rank sends; 0 for none.
    expects : callable
        Place -> the Source of each block that this rank receives; empty for none.
    busbw : callable
        Number of ranks -> busbw / algbw.
    stacked_send, stacked_recv : bool
        Whether the buffer has a first axis over blocks: shape (blocks, count), else (count,).
    scaled : bool
        Whether S counts a block for every rank (``size * count * itemsize``) or one (``count * itemsize``).
    takes_op, takes_root : bool
        Whether these options mean something here.
    in_place : str or None
        What ``--in-place`` means: ``whole``, input and output are one buffer; ``block``, the input is this
        rank's block of the output; None, nothing.
    always_in_place : bool
        The call has one buffer, which is input at the root and output elsewhere.
    sized : bool
        False for the barrier: no buffers, one row.
    """

    name: str
    summary: str
    sends: Callable[[Place], int]
    expects: Callable[[Place], Sequence[Source]]
    busbw: Callable[[int], float] = ring_factor
    stacked_send: bool = False
    stacked_recv: bool = False
    scaled: bool = False
    takes_op: bool = False
    takes_root: bool = False
    in_place: str | None = None
    always_in_place: bool = False
    sized: bool = True

    def count(self, nbytes: int, itemsize: int, size: int) -> int:
        """Elements in a block for a row of `nbytes`: rounded down, but one at least unless `nbytes` is 0."""
        if nbytes == 0:
            return 0
        return max(1, nbytes // (itemsize * (size if self.scaled else 1)))

    def repeatable(self, in_place: bool) -> bool:
        """Whether the call gives the same result again when nothing is refilled in between."""
        return not (in_place and self.in_place == "whole")

    def nbytes(self, count: int, itemsize: int, size: int) -> int:
        """S, the size of a row: what `count` elements a block really come to."""
        return count * itemsize * (size if self.scaled else 1)
