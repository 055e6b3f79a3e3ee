"""What the ranks of a collective have to pass alike, and how a call reads in a message.

A signature is a tuple of (word, value) pairs. It holds what MPI and docs/collectives.md ask to be the same everywhere,
and nothing that may differ: `out`, the block that only the root passes, counts that each rank has of its own.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from hpccoll.buffers import dtype_of
from hpccoll.comm.arguments import is_index

__all__ = ["Signature", "describe", "pairs", "sent", "signature"]

Signature = tuple[tuple[str, Any], ...]

_NUMBERS = frozenset((bool, int, float, complex))
_REDUCTIONS = frozenset(("allreduce", "reduce", "reduce_scatter", "scan", "exscan"))


def signature(method: str, rank: int, size: int, args: tuple[Any, ...], options: dict[str, Any]) -> Signature:
    """Return what this rank says about a call.

    Parameters
    ----------
    method
        The name of Comm's method.
    rank, size
        Of the communicator.
    args, options
        What it was called with, defaults included.
    """
    found: list[tuple[str, Any]] = [("method", method)]
    if "op" in options:
        found.append(("op", _plain(options["op"])))
    if "root" in options:
        found.append(("root", _plain(options["root"])))
    if method.endswith("_object") or method in ("barrier", "split", "node", "dup"):
        return tuple(found)
    x = args[0] if args else None
    if x.__class__ in _NUMBERS:
        return (
            *found,
            ("dtype", "a Python number"),
        )  # of different types, if need be: they travel as objects
    block = options.get("out") if x is None and method == "scatter" else x
    dtype, shape = getattr(block, "dtype", None), getattr(block, "shape", None)
    if dtype is None or shape is None:
        return (*found, ("dtype", f"a {type(block).__name__}"))
    found.append(("dtype", _name(dtype)))
    return (*found, *_lengths(method, rank, size, tuple(shape), options))


def _lengths(method: str, rank: int, size: int, shape: tuple[int, ...], options: dict[str, Any]) -> Signature:
    width = math.prod(shape[1:])
    if method == "alltoall" and options["send_counts"] is not None:
        return (("width", width), ("recv_counts", "given" if options["recv_counts"] is not None else None))
    counts = options.get("counts")
    if counts is None:
        count = math.prod(shape)
        if method == "scatter" and _is_root(rank, options):
            return (("block", count // size if shape and shape[0] == size else repr(shape)),)
        return (("block" if method == "scatter" else "count", count),)
    return (("counts", _plain(counts)), ("width", width))


def _is_root(rank: int, options: dict[str, Any]) -> bool:
    return is_index(options["root"]) and operator.index(options["root"]) == rank


def _plain(value: Any) -> Any:
    """Something that can be hashed and sent: integers, also NumPy's, as such, strings, tuples of these, or a repr."""
    if isinstance(value, str) or value.__class__ is int:
        return value
    if is_index(value):
        return operator.index(value)
    if isinstance(value, Sequence) or hasattr(value, "tolist"):
        return tuple(map(_plain, value))
    return repr(value)


def _name(dtype: Any) -> str:
    if getattr(dtype, "hasobject", False):  # which the table must not learn to know
        return str(dtype)
    try:
        return dtype_of(dtype).name
    except (AttributeError, TypeError):
        return str(dtype)


def pairs(method: str, options: dict[str, Any]) -> tuple[list[int], list[int]] | None:
    """Return the lengths that go to each rank and come from it, where the ranks have both to compare."""
    if method != "alltoall" or options["send_counts"] is None or options["recv_counts"] is None:
        return None
    try:
        return [list(map(operator.index, options[name])) for name in ("send_counts", "recv_counts")]  # type: ignore[return-value]
    except TypeError:
        return None  # the method itself will say so


def sent(method: str, rank: int, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return what this rank puts into the collective; None where it only receives."""
    if method in _REDUCTIONS or method in ("allgather", "gather", "alltoall"):
        return args[0] if args else None
    if method in ("broadcast", "scatter") and _is_root(rank, options):
        return args[0] if args else None
    return None


def describe(method: str, args: tuple[Any, ...], options: dict[str, Any], word: str | None = None) -> str:
    """Return the call as a line: ``allreduce(float32[4], op=sum)``."""
    parts = []
    if args and not method.endswith("_object") and method != "split":
        parts.append(_shaped(args[0]))
    if options.get("out") is not None and args and args[0] is None:
        parts.append(f"out={_shaped(options['out'])}")
    for name in ("op", "root", "counts", "send_counts", "recv_counts"):
        if options.get(name) is not None:
            parts.append(f"{name}={_short(options[name])}")
    return f"{word or method}({', '.join(parts)})"


def _shaped(x: Any) -> str:
    if x is None or x.__class__ in _NUMBERS:
        return repr(x)
    try:
        return f"{_name(x.dtype)}[{', '.join(map(str, x.shape))}]"
    except (AttributeError, TypeError):
        return type(x).__name__


def _short(value: Any) -> str:
    text = (
        value if isinstance(value, str) else repr(list(value)) if hasattr(value, "__iter__") else repr(value)
    )
    return text if len(text) <= 60 else text[:56] + " ...]"
