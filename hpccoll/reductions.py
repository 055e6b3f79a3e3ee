"""The reductions: which operation has a meaning for which dtype, and how each is carried out.

Most go to MPI as they are. Not so: booleans (bytes of 0 and 1, whose sum is "any" as in NumPy and torch),
minimum and maximum of floats (MPI lets a NaN win or lose by the order of the ranks; here it always wins),
averages (a sum, divided on arrival), the half types (:mod:`hpccoll.half`) and Python numbers (Python's own
arithmetic).
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll import half, transport
from hpccoll.buffers import Buffer, DType, dtype_of
from hpccoll.errors import ArgumentError, CommunicatorError, UnsupportedError

OPS = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor", "land", "lor", "lxor")
"""The names of the operations, in the order of the documentation."""


def _propagating(ufunc: Callable[..., Any], dtype: str) -> Any:
    def combine(incoming: Any, accumulated: Any, _: Any) -> None:
        if len(accumulated):
            total = np.frombuffer(accumulated, dtype)
            ufunc(np.frombuffer(incoming, dtype), total, out=total)

    return MPI.Op.Create(combine, commute=True)


_INTEGER = {
    "sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX,
    "band": MPI.BAND, "bor": MPI.BOR, "bxor": MPI.BXOR, "land": MPI.LAND, "lor": MPI.LOR, "lxor": MPI.LXOR,
}  # fmt: skip
_BOOL = {  # not the bit operations: a byte that is neither 0 nor 1 is true as well
    "sum": MPI.LOR, "prod": MPI.LAND, "min": MPI.LAND, "max": MPI.LOR,
    "band": MPI.LAND, "bor": MPI.LOR, "bxor": MPI.LXOR, "land": MPI.LAND, "lor": MPI.LOR, "lxor": MPI.LXOR,
}  # fmt: skip
_LOGICAL = frozenset(("land", "lor", "lxor"))
_COMPLEX = {"sum": MPI.SUM, "prod": MPI.PROD, "avg": MPI.SUM}


def _make_table(dtype: DType) -> dict[str, Any]:
    if MPI.Is_finalized():  # MPI ends a process that makes an operation then
        raise CommunicatorError("MPI has been finalised")
    if dtype.kind == "half":  # accumulated in float32
        return _tables.get("float32") or _tables.setdefault(
            "float32", _make_table(dtype_of(np.dtype("float32")))
        )
    if dtype.kind == "float":
        extremes = {"min": _propagating(np.minimum, dtype.name), "max": _propagating(np.maximum, dtype.name)}
        return _COMPLEX | extremes
    return {"int": _INTEGER, "bool": _BOOL, "complex": _COMPLEX}.get(dtype.kind, {})


_tables: dict[str, dict[str, Any]] = {}


def operation(op: str, dtype: DType, method: str) -> Any:
    """Return the MPI operation that carries out `op` (on float32, for the half types).

    Raises
    ------
    ArgumentError
        There is no such operation.
    UnsupportedError
        It has no meaning for the dtype.
    """
    table = _tables.get(dtype.name)
    if table is None:
        table = _tables[dtype.name] = _make_table(dtype)
    try:
        return table[op]
    except (KeyError, TypeError):
        raise _refusal(op, dtype, method) from None


_ARITHMETIC = {"sum": MPI.SUM, "prod": MPI.PROD}
_DIRECT_INTEGER = {op: mpi_op for op, mpi_op in _INTEGER.items() if op not in _LOGICAL}
_ALONE: dict[str, dict[str, Any]] = {
    name: _DIRECT_INTEGER if "int" in name else _ARITHMETIC
    for name in (
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float32", "float64", "longdouble", "complex64", "complex128", "clongdouble"),
    )
}


def alone(op: Any, dtype: str) -> Any:
    """Return the MPI operation if it does all of `op` alone for the dtype of this name, else None."""
    return _ALONE[dtype].get(op) if op.__class__ is str and dtype in _ALONE else None


def _refusal(op: Any, dtype: DType, method: str) -> ArgumentError:
    if not isinstance(op, str) or op not in OPS:
        return ArgumentError(f"{method}: `op` must be one of {', '.join(OPS)}; got {op!r}")
    if dtype.kind in ("opaque", "quantized"):
        return UnsupportedError(
            f"{method}: {dtype.name} can be moved but not reduced; convert it first, e.g. to float32"
        )
    if op == "avg":
        return UnsupportedError(
            f"{method}: an average of {dtype.name} would have to be rounded to {dtype.name}; "
            'convert to a floating-point dtype, or use op="sum" and divide'
        )
    if dtype.kind == "complex":
        return UnsupportedError(
            f"{method}: {op} has no meaning for {dtype.name}: complex numbers have no order and no bits"
        )
    return UnsupportedError(f"{method}: {op} has no meaning for {dtype.name}; it takes bool and integers")


# ---- On buffers. `send` None means in place.


def _done_by_mpi(mpi: Any, dtype: DType, op: str, mpi_op: Any) -> Any:
    """Return the operation that MPI reduces the dtype with; None if :mod:`hpccoll.half` has to."""
    if dtype.kind != "half":
        return mpi_op
    return half.pair_operation(dtype.name, op) if mpi.size == 2 else None


def allreduce(mpi: Any, send: Buffer | None, recv: Buffer, op: str, wide_op: Any) -> None:
    mpi_op = _done_by_mpi(mpi, recv.dtype, op, wide_op)
    if mpi_op is None:
        half.allreduce(mpi, send or recv, recv, op, wide_op)
    else:
        transport.allreduce(mpi, send, recv, mpi_op)
        _complete(recv, op, mpi.size)


def reduce(
    mpi: Any, send: Buffer, recv: Buffer | None, in_place: bool, op: str, wide_op: Any, root: int
) -> None:
    """`recv` is None except on the root."""
    mpi_op = _done_by_mpi(mpi, send.dtype, op, wide_op)
    if mpi_op is None:
        half.reduce(mpi, send, recv, op, wide_op, root)
        return
    transport.reduce(mpi, None if in_place else send, recv, mpi_op, root)
    if recv is not None:
        _complete(recv, op, mpi.size)


def reduce_scatter(
    mpi: Any, send: Buffer, recv: Buffer, counts: Sequence[int], op: str, wide_op: Any
) -> None:
    mpi_op = _done_by_mpi(mpi, send.dtype, op, wide_op)
    if mpi_op is None:
        half.reduce_scatter(mpi, send, recv, counts, op, wide_op)
    else:
        transport.reduce_scatter(mpi, send, recv, counts, mpi_op)
        _complete(recv, op, mpi.size)


def scan(mpi: Any, send: Buffer | None, recv: Buffer, op: str, wide_op: Any, exclusive: bool) -> None:
    mpi_op = _done_by_mpi(mpi, recv.dtype, op, wide_op)
    if mpi_op is None:
        half.scan(mpi, send or recv, recv, op, wide_op, exclusive)
    else:
        transport.scan(mpi, send, recv, mpi_op, exclusive)
        _complete(recv, op, max(1, mpi.rank + (not exclusive)))
    if exclusive and mpi.rank == 0:
        _fill(recv, identity(op, recv))


def _complete(buffer: Buffer, op: str, terms: int) -> None:
    """Do what is left to do after MPI has reduced `terms` values."""
    if op == "avg":
        line = buffer.line
        if buffer.dtype.kind == "complex":
            # Dividing complex numbers multiplies by a rounded reciprocal; their parts divide exactly rounded.
            line = line.view(line.real.dtype)
        line /= terms
    elif terms == 1 and (buffer.dtype.kind == "bool" or (op in _LOGICAL and buffer.dtype.kind == "int")):
        _make_zeros_and_ones(buffer)  # of one value alone MPI makes none


def _make_zeros_and_ones(buffer: Buffer) -> None:
    as_bytes = buffer.dtype.kind == "bool" and buffer.count > 0
    line = np.frombuffer(buffer.memory, np.uint8) if as_bytes else buffer.line
    line[...] = line != 0


def _fill(buffer: Buffer, value: Any) -> None:
    if buffer.is_torch and buffer.dtype.kind == "int":
        import torch

        value = torch.from_numpy(
            np.array(value, buffer.dtype.name)
        )  # torch itself takes no number over 2**63
    buffer.line[...] = value


def identity(op: str, buffer: Buffer) -> Any:
    """Return the value that changes nothing: what an exclusive scan gives to rank 0."""
    kind, itemsize = buffer.dtype.kind, buffer.dtype.itemsize
    if op == "avg":
        return math.nan
    if op in ("sum", "bor", "bxor", "lor", "lxor"):
        return 0
    if op in ("prod", "land") or kind == "bool":
        return int(op != "max")
    if kind == "int":
        signed = not buffer.dtype.name.startswith("u")
        low, high = (
            (-(1 << (8 * itemsize - 1)), (1 << (8 * itemsize - 1)) - 1)
            if signed
            else (0, (1 << 8 * itemsize) - 1)
        )
        if op == "band":
            return -1 if signed else high
        return high if op == "min" else low
    return math.inf if op == "min" else -math.inf


# ---- Python numbers


def _extreme(choose: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def combine(a: Any, b: Any) -> Any:
        return a if a != a else b if b != b else choose(a, b)

    return combine


_PYTHON = {
    "sum": operator.add, "avg": operator.add, "prod": operator.mul, "min": _extreme(min), "max": _extreme(max),
    "band": operator.and_, "bor": operator.or_, "bxor": operator.xor,
    "land": lambda a, b: bool(a) and bool(b), "lor": lambda a, b: bool(a) or bool(b),
    "lxor": lambda a, b: bool(a) != bool(b),
}  # fmt: skip


_PYTHON_IDENTITY = {
    "sum": 0, "avg": math.nan, "prod": 1, "min": math.inf, "max": -math.inf,
    "band": -1, "bor": 0, "bxor": 0, "land": True, "lor": False, "lxor": False,
}  # fmt: skip


def check_number(op: Any, number: Any, method: str) -> None:
    """Raise if there is no such operation, or none on this number."""
    if not isinstance(op, str) or op not in OPS:
        raise ArgumentError(f"{method}: `op` must be one of {', '.join(OPS)}; got {op!r}")
    reduce_numbers([number, number], op, method)


def reduce_numbers(numbers: Sequence[Any], op: str, method: str) -> Any:
    """Reduce Python numbers in the order of the ranks, in Python's arithmetic (integers never overflow).

    Raises
    ------
    UnsupportedError
        The operation has no meaning for one of them.
    """
    try:
        if not numbers:
            return _PYTHON_IDENTITY[op]
        total = functools.reduce(_PYTHON[op], numbers)
        if op in _LOGICAL:
            total = bool(total)  # also of one alone
        return total / len(numbers) if op == "avg" else total
    except (TypeError, OverflowError) as error:
        raise UnsupportedError(
            f"{method}: {op} of {', '.join(sorted({type(n).__name__ for n in numbers}))}: {error}"
        ) from None
