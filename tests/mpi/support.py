"""Inputs, expected values and comparisons for the tests of the collectives.

Every input is known to every rank in closed form: `terms` gives the inputs of all ranks, NumPy's own reductions give
the expected result from them, without any communication.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from mpi_plugin import need

ml_dtypes = need("ml_dtypes")
torch = need("torch")
need("mpi4py.MPI")

CANARY = 0xA5

BOOL = ("bool",)
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
HALF = ("float16", "bfloat16")
FLOAT = ("float32", "float64", "longdouble")
COMPLEX = ("complex64", "complex128", "clongdouble")
REDUCIBLE = (*BOOL, *SIGNED, *UNSIGNED, *HALF, *FLOAT, *COMPLEX)
# Can be moved only; the last ones exist in NumPy alone.
OPAQUE = ("float8_e4m3fn", "float8_e5m2", "complex32", "datetime64[us]", "record", "S5", "U3", "V6")
MOVABLE = (*REDUCIBLE, *OPAQUE)

_RECORD = np.dtype([("a", "<i4"), ("b", "<f8"), ("c", "S3")])
_NUMPY = {
    "record": _RECORD,
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
_NO_TORCH = {"longdouble", "clongdouble", "datetime64[us]", "record", "S5", "U3", "V6"}
_NO_NUMPY = {"complex32"}

OPS = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor", "land", "lor", "lxor")


def ops_of(dtype: str) -> tuple[str, ...]:
    """The operations that have a meaning for the dtype."""
    if dtype in COMPLEX:
        return ("sum", "prod", "avg")
    if dtype in (*HALF, *FLOAT):
        return ("sum", "prod", "min", "max", "avg")
    return tuple(op for op in OPS if op != "avg")


def libraries(dtype: str) -> list[str]:
    """Who holds the buffers: one library on all ranks, or NumPy on even ranks and torch on odd ones."""
    if dtype in _NO_TORCH:
        return ["numpy"]
    if dtype in _NO_NUMPY:
        return ["torch"]
    return ["numpy", "torch", "mixed"]


def library_of(choice: str, rank: int) -> str:
    return choice if choice != "mixed" else ("numpy", "torch")[rank % 2]


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    # complex32 has no NumPy type: its model is two float16 in one void, the same bytes.
    return np.dtype("V4") if dtype == "complex32" else _NUMPY.get(dtype) or np.dtype(dtype)


def torch_dtype(dtype: str) -> Any:
    return getattr(torch, dtype)


# ---- Models: NumPy arrays with the values


def moved(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Data to be moved: any bytes that are values of the dtype, different for every seed."""
    kind = numpy_dtype(dtype)
    count = math.prod(shape)
    random = np.random.default_rng([seed, count])
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if dtype in ("longdouble", "clongdouble"):  # their padding would not be compared fairly
        return random.integers(-(2**40), 2**40, shape).astype(kind)
    if dtype == "U3":
        return random.integers(0, 1000, shape).astype(kind)
    data = random.integers(0, 256, count * kind.itemsize, dtype=np.uint8)
    return data.view(kind).reshape(shape) if count else np.empty(shape, kind)


def term(dtype: str, shape: tuple[int, ...], op: str, rank: int) -> np.ndarray:
    """The input of a rank for a reduction: the result of up to eight ranks is exact in the dtype."""
    # Not a scalar where the shape is (): ml_dtypes assigns those wrongly to arrays of the other byte order.
    return np.asarray(_term(dtype, shape, op, rank))


def _term(dtype: str, shape: tuple[int, ...], op: str, rank: int) -> np.ndarray:
    kind = numpy_dtype(dtype)
    i = np.arange(math.prod(shape)).reshape(shape)
    signed = dtype not in (*UNSIGNED, *BOOL)
    if op in ("land", "lor", "lxor") or dtype == "bool":
        # 2 and 4 have no bit in common: logical and bitwise operations differ.
        return (np.where((i * 3 + rank) % 4 < 2, 2 << (rank % 3), 0) * (i % 5 != 0)).astype(kind)
    if op in ("band", "bor", "bxor") or (op in ("min", "max") and dtype in (*SIGNED, *UNSIGNED)):
        return moved(dtype, shape, 1000 + rank)
    if op == "prod":
        values = (i + rank) % 3 + 1
        if signed:
            values = np.where((i + rank) % 2, values, -values)
    else:
        values = (i * 5 + rank * 7) % 13 - (6 if signed else 0)
    if dtype in COMPLEX:
        return (values + 1j * ((i + 2 * rank) % 3 - 1)).astype(kind)
    if dtype in (*HALF, *FLOAT) and op != "prod":
        values = values * 0.25
    return values.astype(kind)


def terms(dtype: str, shape: tuple[int, ...], op: str, size: int) -> list[np.ndarray]:
    return [term(dtype, shape, op, rank) for rank in range(size)]


_UFUNC: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
    "land": np.logical_and,
    "lor": np.logical_or,
    "lxor": np.logical_xor,
}


def reduced(arrays: Sequence[np.ndarray], op: str, dtype: str) -> np.ndarray:
    """The reduction in the order of the ranks, half types in float32 and rounded once."""
    kind = arrays[0].dtype
    if dtype in HALF:
        arrays = [array.astype(np.float32) for array in arrays]
    total = functools.reduce(_UFUNC[op], arrays)
    if op in ("land", "lor", "lxor"):
        total = total != 0  # also of one array alone
    if op == "avg":
        # Real and imaginary parts alone: a division by a complex number rounds more than once.
        total = np.ascontiguousarray(total).reshape(-1).view(total.real.dtype)
        total = (total / total.dtype.type(len(arrays))).view(arrays[0].dtype).reshape(arrays[0].shape)
    with np.errstate(over="ignore"):
        return np.asarray(total, kind)


def identity(op: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """What an exclusive scan gives to rank 0."""
    kind = numpy_dtype(dtype)
    if dtype in (*SIGNED, *UNSIGNED):
        info = np.iinfo(kind)
        value: Any = {"min": info.max, "max": info.min, "band": info.max if info.min == 0 else -1}.get(op)
    elif dtype == "bool":
        value = {"min": True, "max": False, "band": True}.get(op)
    else:
        value = {"min": np.inf, "max": -np.inf, "avg": np.nan}.get(op)
    if value is None:
        value = 1 if op in ("prod", "land") else 0
    return np.full(shape, value, kind)


# ---- Placing a model in memory


class Placed:
    """An array or a tensor with given values, in memory whose surroundings are watched.

    Attributes
    ----------
    x : ndarray or torch.Tensor
    """

    def __init__(self, x: Any, raw: np.ndarray, inside: np.ndarray):
        self.x = x
        self._raw = raw
        self._outside = inside == 0
        self._before = raw.tobytes()

    def assert_unchanged(self, label: str) -> None:
        assert self._raw.tobytes() == self._before, f"{label}: the input has changed"

    def assert_surroundings(self, label: str) -> None:
        assert (self._raw[self._outside] == CANARY).all(), f"{label}: memory around the output has changed"


NUMPY_KINDS = (
    "plain", "offset", "strided", "reversed", "fortran", "rolled axes", "padded rows",
    "unaligned", "big-endian", "read-only",
)  # fmt: skip
TORCH_KINDS = ("plain", "offset", "strided", "fortran", "rolled axes", "padded rows")


def kinds_of(library: str, writable: bool = False) -> tuple[str, ...]:
    kinds = NUMPY_KINDS if library != "torch" else TORCH_KINDS
    return tuple(kind for kind in kinds if not (writable and kind == "read-only"))


def _geometry(shape: tuple[int, ...], kind: str) -> tuple[int, list[int], int]:
    """Offset, strides and extent in elements."""
    order = list(range(len(shape)))[::-1]  # from the fastest axis
    if kind == "fortran":
        order.reverse()
    elif kind == "rolled axes":
        order = order[1:] + order[:1]
    strides = [0] * len(shape)
    reach = 2 if kind in ("strided", "reversed") else 1
    for position, axis in enumerate(order):
        strides[axis] = reach
        reach *= max(shape[axis], 1)
        if kind == "padded rows" and position == 0:
            reach += 3
    reach = max(reach, 1)
    if kind == "reversed":
        offset = sum(stride * (length - 1) for stride, length in zip(strides, shape, strict=True) if length)
        return offset + 3, [-stride for stride in strides], reach + 6
    return (0 if kind == "plain" else 3), strides, reach + 6


def place(model: np.ndarray, dtype: str, library: str = "numpy", kind: str = "plain") -> Placed:
    """Put the values of `model` into memory of the given kind."""
    if library == "numpy" and dtype in _NO_NUMPY:
        raise AssertionError(f"{dtype} is torch's alone")
    offset, strides, extent = _geometry(model.shape, kind)
    size = model.itemsize
    slack = 1 if kind == "unaligned" else 0
    number = model.dtype
    if kind == "big-endian":
        number = number.newbyteorder(">")
    if library == "numpy":
        raw = np.full(extent * size + slack, CANARY, np.uint8)
        address = (offset * size + slack, [stride * size for stride in strides])
        x: Any = np.ndarray(model.shape, number, raw, *address)
        x[...] = model
        if kind == "read-only":
            x.flags.writeable = False
    else:
        memory = torch.full((extent * size,), CANARY, dtype=torch.uint8)
        x = memory.view(torch_dtype(dtype)).as_strided(model.shape, strides, offset)
        raw = memory.numpy()
        address = (offset * size, [stride * size for stride in strides])
        np.ndarray(model.shape, number, raw, *address)[...] = model
    inside = np.zeros_like(raw)
    if model.size:
        np.ndarray((*model.shape, size), np.uint8, inside, address[0], [*address[1], 1])[...] = 1
    return Placed(x, raw, inside)


def blank(shape: tuple[int, ...], dtype: str, library: str = "numpy", kind: str = "plain") -> Placed:
    """An output whose present contents are the canary too."""
    number = numpy_dtype(dtype)
    model = np.full(math.prod(shape) * number.itemsize, CANARY, np.uint8)
    return place(
        model.view(number).reshape(shape) if model.size else np.empty(shape, number), dtype, library, kind
    )


def as_numpy(x: Any, dtype: str) -> np.ndarray:
    """The values of an array or tensor as a contiguous native NumPy array."""
    if isinstance(x, torch.Tensor):
        assert x.dtype == torch_dtype(dtype), f"dtype {x.dtype} instead of {dtype}"
        number = numpy_dtype(dtype)
        flat = torch.empty(x.numel(), dtype=x.dtype)
        flat.copy_(x.detach().reshape(-1))
        data = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
        return data.view(number).reshape(tuple(x.shape)) if data.size else np.empty(tuple(x.shape), number)
    assert isinstance(x, (np.ndarray, np.generic)), f"a {type(x).__name__} instead of an array"
    return np.asarray(x)


def assert_same(got: Any, expected: np.ndarray, dtype: str, label: str, exact: bool = False) -> None:
    """`got` has the shape and the values of `expected`; with `exact`, every byte of it."""
    array = as_numpy(got, dtype)
    assert array.shape == expected.shape, f"{label}: shape {array.shape} instead of {expected.shape}"
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    assert native.dtype == expected.dtype, f"{label}: dtype {native.dtype} instead of {expected.dtype}"
    if not expected.size:
        return
    if exact or (expected.dtype.kind in "VMm" and dtype not in HALF):
        a, b = _bytes(native), _bytes(expected)
        equal = (a == b).all(axis=1)
    else:
        a, b = native.reshape(-1), expected.reshape(-1)
        equal = a == b
        if expected.dtype.kind in "fc" or dtype in HALF:
            equal |= np.isnan(a) & np.isnan(b)
    if not equal.all():
        at = int(np.flatnonzero(~equal)[0])
        found, right = native.reshape(-1)[at], expected.reshape(-1)[at]
        wrong = f"{np.count_nonzero(~equal)} of {equal.size} are wrong"
        raise AssertionError(f"{label}: element {at} is {found!r} instead of {right!r} ({wrong})")


def _bytes(array: np.ndarray) -> np.ndarray:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).reshape(flat.size, -1)


def exact_move(dtype: str) -> bool:
    """Whether a moved value is compared byte by byte (long double has padding)."""
    return dtype not in ("longdouble", "clongdouble")


# ---- Cases


class Way(NamedTuple):
    """How a test calls: on which dtype, waiting or not, and with the largest count that MPI may be given."""

    dtype: str
    blocking: bool = True
    limit: int = 2**31 - 1


# One of each kind and size, for what does not depend on the dtype.
_SOME = ("bool", "int16", "bfloat16", "float32", "complex128", "record")
_SMALL_LIMIT = 100


def every_way(dtypes: Sequence[str], non_blocking: bool = True) -> pytest.MarkDecorator:
    """Parametrize the fixture `way`: all dtypes, and some of them in parts and without blocking."""
    some = [dtype for dtype in _SOME if dtype in dtypes]
    ways = [pytest.param(Way(dtype), id=dtype) for dtype in dtypes]
    ways += [pytest.param(Way(dtype, limit=_SMALL_LIMIT), id=f"{dtype} in parts") for dtype in some]
    if non_blocking:
        ways += [pytest.param(Way(dtype, blocking=False), id=f"{dtype} non-blocking") for dtype in some]
        ways += [pytest.param(Way(some[-1], False, _SMALL_LIMIT), id=f"{some[-1]} non-blocking in parts")]
    return pytest.mark.parametrize("way", ways, indirect=True)


SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (7,), (1024,), (3, 5), (2, 0, 3))
FEW_SHAPES: tuple[tuple[int, ...], ...] = ((), (7,), (2, 3, 4))


def call(blocking: bool, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a collective the one way or the other."""
    if blocking:
        return method(*args, **options)
    return method(*args, blocking=False, **options).wait(30)


def layouts(comm: Any, dtype: str, writable: bool = False) -> Iterator[tuple[str, str]]:
    """Library of this rank and kind of memory; ranks of mixed libraries take different kinds at the same time."""
    for choice in libraries(dtype):
        library = library_of(choice, comm.rank)
        kinds = kinds_of(library, writable)
        rounds = len(kinds_of(choice, writable)) if choice != "mixed" else 3
        for turn in range(rounds):
            yield library, kinds[(turn + comm.rank) % len(kinds)] if choice == "mixed" else kinds[turn]


def uneven(size: int) -> list[list[int]]:
    """Lengths of blocks, with zeros at either end and in the middle."""
    return [
        [rank + 1 for rank in range(size)],
        [(size - rank) * (rank % 2) for rank in range(size)],
        [5 if rank == size - 1 else 0 for rank in range(size)],
        [0] * size,
    ]
