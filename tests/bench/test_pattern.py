"""Inputs are exact and different, and the closed form of a result is what the operations give one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi_plugin import need

from hpccoll.bench.case import ALL
from hpccoll.bench.dtypes import DTYPES, DType, decode, encode
from hpccoll.bench.options import OPS
from hpccoll.bench.pattern import KEYS, contributions, fill, keys, rank_table, reduced_table
from hpccoll.bench.storage import Tables

SIZES = (1, 2, 3, 4, 7, 64, 300)


def has_meaning(dtype: DType, op: str) -> bool:
    if dtype.kind == "opaque":
        return False
    if op == "avg":
        return dtype.kind in ("float", "complex")
    if op in ("min", "max"):
        return dtype.kind != "complex"
    return op in ("sum", "prod") or dtype.kind in ("bool", "int", "uint")


PAIRS = [(dtype, op) for dtype in DTYPES.values() for op in OPS if has_meaning(dtype, op)]


def one_by_one(dtype: DType, op: str, rows: np.ndarray) -> Any:
    """Reduce in the dtype itself (the half types in float32), one rank after the other."""
    wide = rows.astype(np.float32) if dtype.kind == "float" and dtype.itemsize == 2 else rows
    if dtype.kind == "bool":
        wide = rows != 0
    steps: dict[str, Any] = {
        "sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
        "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
        "land": np.logical_and, "lor": np.logical_or, "lxor": np.logical_xor,
    }  # fmt: skip
    total = wide[0] != 0 if op in ("land", "lor", "lxor") else wide[0]
    with np.errstate(over="ignore"):
        for row in wide[1:]:
            total = steps[op](total, row)
    if op != "avg":
        return total
    if dtype.kind == "complex":  # complex division multiplies by the reciprocal, which is rounded
        return total.real / len(rows) + 1j * (total.imag / len(rows))
    return total / wide.dtype.type(len(rows))


@pytest.mark.parametrize(("dtype", "op"), PAIRS, ids=lambda value: getattr(value, "name", value))
def test_closed_form_is_the_reduction(dtype: DType, op: str) -> None:
    for size in SIZES:
        rows = np.stack([decode(rank_table(dtype, op, size, rank), dtype) for rank in range(size)])
        expected = reduced_table(dtype, op, size)
        for order in (rows, rows[::-1]):
            assert np.array_equal(encode(one_by_one(dtype, op, order), dtype), expected), size
        assert np.isfinite(decode(expected, dtype).astype(complex)).all()


@pytest.mark.parametrize(("dtype", "op"), [*PAIRS, *((dtype, None) for dtype in DTYPES.values())], ids=str)
def test_inputs_are_exact(dtype: DType, op: str | None) -> None:
    for size in SIZES:
        values = contributions(dtype, op, size, np.arange(size))
        if dtype.kind in ("float", "complex"):
            stored = decode(encode(values, dtype), dtype)
            assert np.array_equal(stored.astype(values.dtype), values)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
def test_moved_inputs_differ_by_rank(dtype: DType) -> None:
    tables = [rank_table(dtype, None, 5, rank) for rank in range(5)]
    for i in range(5):
        for j in range(i):
            assert (tables[i] != tables[j]).mean() > 0.3


@pytest.mark.parametrize(("dtype", "op"), PAIRS, ids=lambda value: getattr(value, "name", value))
def test_every_rank_matters(dtype: DType, op: str) -> None:
    """Leaving a rank out, or counting it twice, changes the result somewhere."""
    for size in (2, 3, 4):
        rows = [decode(rank_table(dtype, op, size, rank), dtype) for rank in range(size)]
        expected = reduced_table(dtype, op, size)
        for rank in range(size):
            without = one_by_one(dtype, op, np.stack(rows[:rank] + rows[rank + 1 :]))
            assert not np.array_equal(encode(without, dtype), expected), (size, rank)
        if op in ("sum", "avg", "prod", "bxor", "lxor") and not (
            dtype.kind == "bool" and op in ("sum", "prod")
        ):
            twice = one_by_one(dtype, op, np.stack([*rows, rows[0]]))
            assert not np.array_equal(encode(twice, dtype), expected), size


def test_keys_of_shifted_positions_are_unrelated() -> None:
    here = keys(0, 10_000, salt=3)
    assert here.min() == 0
    assert here.max() == KEYS - 1
    for shift in (1, 2, 64, 512, 4096, 65536):
        assert (here == keys(shift, 10_000 + shift, salt=3)).mean() < 0.01
    assert (here == keys(0, 10_000, salt=4)).mean() < 0.01
    assert np.array_equal(here[100:200], keys(100, 200, salt=3))


def test_fill_does_not_depend_on_how_it_is_cut() -> None:
    table = rank_table(DTYPES["int32"], None, 2, 1)
    whole = np.empty(200_000, np.int32)
    fill(whole, table, 0, salt=9)
    part = np.empty(70_000, np.int32)
    fill(part, table, 100_001, salt=9)
    assert np.array_equal(part, whole[100_001:170_001])


def test_bfloat16_rounds_to_nearest_even() -> None:
    ml_dtypes = need("ml_dtypes")
    values = np.concatenate([np.arange(-5000, 5000), np.arange(30000) * 7])
    ours = encode(values, DTYPES["bfloat16"])
    assert np.array_equal(ours, values.astype(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16))
    assert np.array_equal(decode(ours, DTYPES["bfloat16"]), ours.view(ml_dtypes.bfloat16).astype(np.float32))


def test_tables_are_made_once() -> None:
    tables = Tables(DTYPES["float32"], "sum", 3)
    assert tables[ALL] is tables[ALL]
    assert np.array_equal(tables[ALL], reduced_table(DTYPES["float32"], "sum", 3))
