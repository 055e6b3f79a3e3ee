"""Checks of a collective's arguments, and the shapes that follow from them.

They run on the caller before anything is sent. `comm` is anything that has a `rank` and a `size`.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

from mpi4py import MPI

from hpccoll.buffers import Buffer, same_memory
from hpccoll.errors import ArgumentError, CommunicatorError


def is_index(value: Any) -> bool:
    """Tell whether a value can stand for an integer, as Python's and NumPy's integers do."""
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def rank_of(comm: Any, rank: Any, method: str, name: str) -> int:
    """Return a rank of the communicator, or raise ArgumentError."""
    if rank.__class__ is int and 0 <= rank < comm.size:
        return int(rank)
    if not is_index(rank) or not 0 <= operator.index(rank) < comm.size:
        raise ArgumentError(f"{method}: `{name}` must be a rank from 0 to {comm.size - 1}, got {rank!r}")
    return operator.index(rank)


def tag_of(tag: Any, method: str, name: str) -> int:
    """Return a message tag, or raise ArgumentError."""
    if MPI.Is_finalized():  # MPI ends a process that asks for its largest tag then
        raise CommunicatorError(f"{method}: MPI has been finalised")
    if not is_index(tag) or not 0 <= operator.index(tag) <= _largest_tag():
        raise ArgumentError(f"{method}: `{name}` must be an int from 0 to {_largest_tag()}, got {tag!r}")
    return operator.index(tag)


@functools.cache
def _largest_tag() -> int:
    return int(MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767)  # what the standard promises at least


def lengths_of(comm: Any, method: str, name: str, counts: Any) -> list[int]:
    """Return one length for each rank, or raise ArgumentError."""
    try:
        lengths = [operator.index(count) for count in counts]
    except TypeError:
        lengths = []
    if len(lengths) != comm.size or min(lengths) < 0:
        raise ArgumentError(
            f"{method}: `{name}` must hold one length, 0 or more, for each of the {comm.size} ranks; got {counts!r}"
        )
    return lengths


def need_axis(method: str, buffer: Buffer) -> None:
    """Raise ArgumentError if there is no first axis to divide."""
    if not buffer.shape:
        raise ArgumentError(f"{method}: `x` has no axis that could be divided (shape ()): reshape it")


def block_of(comm: Any, method: str, whole: Buffer, counts: Any) -> tuple[tuple[int, ...], list[int]]:
    """Return the shape of this rank's block of `whole`, and the elements of everyone's.

    Raises
    ------
    ArgumentError
        `counts` does not fit the first axis; without it, that axis does not have one block for each rank.
    """
    need_axis(method, whole)
    length, *rest = whole.shape
    if counts is None:
        if length != comm.size:
            hint = f"; reshape it to ({comm.size}, …) or pass counts" if length % comm.size == 0 else ""
            raise ArgumentError(
                f"{method}: the first axis of `x` must have one block for each of the {comm.size} ranks, "
                f"got shape {tuple(whole.shape)}{hint}"
            )
        return tuple(rest), [whole.count // comm.size] * comm.size
    lengths = lengths_of(comm, method, "counts", counts)
    if sum(lengths) != length:
        raise ArgumentError(
            f"{method}: `counts` add up to {sum(lengths)}, but `x` has {length} along its first axis"
        )
    width = math.prod(rest)
    return (lengths[comm.rank], *rest), [n * width for n in lengths]


def joined(comm: Any, method: str, block: Buffer, counts: Any) -> tuple[tuple[int, ...], list[int] | None]:
    """Return the shape of all blocks together, and the elements of each if they may differ.

    Raises
    ------
    ArgumentError
        `counts` does not fit this rank's block.
    """
    if counts is None:
        return (comm.size, *block.shape), None
    need_axis(method, block)
    lengths = lengths_of(comm, method, "counts", counts)
    length, *rest = block.shape
    if lengths[comm.rank] != length:
        raise ArgumentError(
            f"{method}: `counts` says {lengths[comm.rank]} for rank {comm.rank}, "
            f"but its block has {length} along the first axis"
        )
    width = math.prod(rest)
    return (sum(lengths), *rest), [n * width for n in lengths]


def own_block(comm: Any, method: str, block: Buffer, whole: Buffer, elements: list[int] | None) -> bool:
    """Tell whether `block` is this rank's place in `whole`; raise ArgumentError if they overlap otherwise."""
    if block.staged or whole.staged or not block.count or not whole.count:
        return False
    first, second = block.user, whole.user
    if not block.is_torch and first is not second and first.base is None and second.base is None:
        return False  # both own their memory
    start = block.count * comm.rank if elements is None else sum(elements[: comm.rank])
    if block.address == whole.address + start * block.dtype.itemsize:
        return True
    forbid_overlap(method, block, whole)
    return False


def forbid_overlap(method: str, send: Buffer, recv: Buffer) -> None:
    """Raise ArgumentError if input and output share memory."""
    if same_memory(send, recv, method):
        raise ArgumentError(
            f"{method}: `out` overlaps `x`, which MPI does not allow here: pass separate memory"
        )
