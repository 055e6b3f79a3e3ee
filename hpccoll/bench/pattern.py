"""Input values that differ by rank, position and iteration, and what a correct collective makes of them.

A position has a *key* of nine bits, a hash of the position and of the row's salt. A rank has a table of 512
values, one per key. So the input of a rank is its table looked up by the keys, and the result of a reduction
is the *reduced table* looked up by the same keys: closed form, for every op, from 512 numbers a rank.
Neighbouring positions have unrelated keys, so data from a wrong place is found; tables of different ranks
differ, so data from a wrong rank is.

Values are small integers chosen by dtype and op so that the result is exact in any order of the operations
(`contributions`). float16 and bfloat16 sums are exact in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from hpccoll.bench.dtypes import DType, encode

__all__ = ["KEYS", "contributions", "fill", "keys", "rank_table", "reduced_table"]

KEYS = 512
# Arithmetic on arrays is Any in NumPy's own annotations; the name says what is meant.
Array: TypeAlias = Any

_CHUNK = 1 << 16  # elements filled at a time: temporaries stay in the cache
_RANK_CHUNK = 256
_OF_BOOL = {
    **dict.fromkeys(("sum", "max", "bor"), "lor"),
    **dict.fromkeys(("prod", "min", "band"), "land"),
    "bxor": "lxor",
}


def _mix(x: Array) -> Array:
    """Hash of 64-bit integers (the finaliser of splitmix64); numpy wraps arrays around without a warning."""
    x = (x + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def keys(start: int, stop: int, salt: int) -> Array:
    """Keys of the positions `start` to `stop` in the row with the number `salt`."""
    position = np.arange(start, stop, dtype=np.uint64)
    position += np.uint64(salt << 44)  # rows far apart: no two rows share a stretch of keys
    return (_mix(position) % np.uint64(KEYS)).astype(np.intp)


def fill(target: Array, table: Array, start: int, salt: int) -> None:
    """Write the values at the positions from `start` on into `target` (the dtype of `table`)."""
    for begin in range(0, target.size, _CHUNK):
        part = target[begin : begin + _CHUNK]
        np.take(table, keys(start + begin, start + begin + part.size, salt), out=part, mode="clip")


def rank_table(dtype: DType, op: str | None, size: int, rank: int) -> Array:
    """What `rank` puts in for each key, as elements of `dtype`."""
    return encode(contributions(dtype, op, size, np.array([rank]))[0], dtype)


def reduced_table(dtype: DType, op: str, size: int) -> Array:
    """What `op` over the tables of all ranks gives for each key, as elements of `dtype`."""
    total: Array | None = None
    reduce = _reducer(dtype, op)
    for begin in range(0, size, _RANK_CHUNK):
        part = contributions(dtype, op, size, np.arange(begin, min(size, begin + _RANK_CHUNK)))
        if op in ("land", "lor", "lxor"):
            part = (part != 0).astype(np.int64)
        part = reduce(part)
        total = part if total is None else reduce(np.stack((total, part)))
    assert total is not None
    if op == "avg":
        # By construction the sum is a multiple of the size, so this is exact. (Dividing complex numbers would
        # not be: NumPy multiplies them by the reciprocal, which is rounded.)
        total = total.real // size + (1j * (total.imag // size) if dtype.kind == "complex" else 0)
    return encode(total, dtype)


def _reducer(dtype: DType, op: str) -> Callable[[Array], Array]:
    ufunc = {
        "sum": np.add,
        "avg": np.add,
        "prod": np.multiply,
        "min": np.minimum,
        "max": np.maximum,
        "band": np.bitwise_and,
        "bor": np.bitwise_or,
        "bxor": np.bitwise_xor,
        "land": np.minimum,
        "lor": np.maximum,
        "lxor": np.bitwise_xor,
    }[op]
    return lambda values: ufunc.reduce(values, axis=0)


def contributions(dtype: DType, op: str | None, size: int, ranks: Array) -> Array:
    """Value that each of `ranks` has for each key: shape (len(ranks), KEYS), integers or complex integers.

    =================  ==================================================================================
    op                 values
    =================  ==================================================================================
    None, min, max     any integer that the dtype holds, up to 2**20
    sum                so small that the sum over all ranks is exact (float16 and bfloat16: in float32)
    avg                v(key) plus offsets that cancel: the mean is v(key), exact for any number of ranks
    prod               2 on at most four ranks, else 1; times -1 (signed) or i (complex) at random
    band, land         on one rank per key anything, ones (true) elsewhere
    bor, lor           on one rank per key anything, zero elsewhere
    bxor, lxor         anything
    =================  ==================================================================================

    For bool, sum, max and bor mean lor; prod, min and band mean land; bxor means lxor.
    """
    rank = ranks.astype(np.int64)[:, None]
    key = np.arange(KEYS, dtype=np.int64)[None, :]
    noise = _mix((rank * KEYS + key).astype(np.uint64))
    shift = (_mix(key.astype(np.uint64)) >> np.uint64(8)).astype(np.int64) & 0xFFFFFF
    turn = (rank + shift) % size  # 0 on exactly one rank for every key
    if dtype.kind == "bool" and op is not None:
        op = _OF_BOOL.get(op, op)
    if op in ("land", "lor", "lxor"):
        true = 1 + _below(noise >> np.uint64(8), 1 if dtype.kind == "bool" else 7)
        coin = (noise & np.uint64(1)).astype(np.int64)
        if op == "lxor":
            return true * coin
        return np.where(turn == 0, true * coin, true if op == "land" else 0)
    if op in ("band", "bor", "bxor"):
        bits = noise.astype(np.int64)
        return bits if op == "bxor" else np.where(turn == 0, bits, -1 if op == "band" else 0)
    if op == "avg":
        # Pairs of 1 and -1; of an odd number of ranks the last three have 1, 1 and -2. No rank has 0.
        last_three = (size % 2 == 1) & (rank >= size - 3) & (size > 1)
        offset = np.where(last_three, np.where(rank == size - 1, -2, 1), 1 - 2 * (rank % 2)) * (size > 1)
        real = 3 + (shift >> 8) % 5 + offset * (1 - 2 * (shift & 1))
        return real * (1 + 1j) if dtype.kind == "complex" else real
    if op == "prod":
        return np.where(turn < 4, 2, 1) * _unit(dtype, noise)
    bound = _bound(dtype, op, size)
    real = _below(noise >> np.uint64(24), bound)
    if dtype.kind in ("int", "float", "complex"):
        real = real - bound // 2
    return real + 1j * _below(noise, bound) if dtype.kind == "complex" else real


def _below(noise: Array, bound: int) -> Array:
    return (noise & np.uint64(0xFFFFFF)).astype(np.int64) % bound


def _bound(dtype: DType, op: str | None, size: int) -> int:
    """Number of different values, so that each (and for a sum the total) is exact."""
    bound = min(dtype.limit + 1, 2**20)
    if op == "sum":
        half = dtype.kind == "float" and dtype.itemsize == 2
        total = 60000 if half else min(dtype.limit, 2**40)  # float16 ends at 65504
        bound = min(bound, max(2, total // size + 1))
    return bound


def _unit(dtype: DType, noise: Array) -> Array:
    power = (noise >> np.uint64(16)).astype(np.int64) & 3
    if dtype.kind == "uint":
        return np.ones_like(power)
    if dtype.kind == "complex":
        return np.array([1, 1j, -1, -1j])[power]
    return 1 - 2 * (power & 1)
