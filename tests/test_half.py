"""The kernels of the half-precision reductions, on as many ranks' worth of data as one likes."""

import numpy as np
import pytest
from mpi_plugin import need

half = need("hpccoll.half")
torch = need("torch")
ml_dtypes = need("ml_dtypes")

KINDS = {
    "numpy float16": lambda values: values.astype(np.float16),
    "numpy bfloat16": lambda values: values.astype(ml_dtypes.bfloat16),
    "torch float16": lambda values: torch.from_numpy(values).to(torch.float16),
    "torch bfloat16": lambda values: torch.from_numpy(values).to(torch.bfloat16),
}
REDUCE = {
    "sum": lambda rows: np.add.reduce(rows, 0, dtype=np.float32),
    "avg": lambda rows: np.add.reduce(rows, 0, dtype=np.float32) / np.float32(len(rows)),
    "prod": lambda rows: np.multiply.reduce(rows, 0, dtype=np.float32),
    "min": lambda rows: rows.min(0),
    "max": lambda rows: rows.max(0),
}


def as_float32(rows):
    return rows.float().numpy() if isinstance(rows, torch.Tensor) else rows.astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_ranks_of_ones_add_up(kind):
    # Adding in the half type itself would stop at 256 (bfloat16) or, from 2048 on, lose ones (float16).
    rows = KINDS[kind](np.ones((1000, 3), np.float32))
    half._combine(list(rows), rows[0], "sum")
    assert (as_float32(rows[0]) == as_float32(KINDS[kind](np.full((1, 3), 1000, np.float32)))[0]).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", REDUCE)
@pytest.mark.parametrize("count", [0, 1, 7, half._TILE + 3])
def test_combine_is_float32_rounded_once(kind, op, count):
    generator = np.random.default_rng(count)
    rows = KINDS[kind](generator.integers(-3, 4, (5, count)).astype(np.float32) / 2 + 2)
    expected = KINDS[kind](REDUCE[op](as_float32(rows)))
    out = rows[0] * 0
    half._combine(list(rows), out, op)
    assert np.array_equal(as_float32(out), as_float32(expected))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", REDUCE)
@pytest.mark.parametrize("exclusive", [False, True])
def test_accumulate_gives_every_prefix(kind, op, exclusive):
    generator = np.random.default_rng(1)
    rows = KINDS[kind](generator.integers(-3, 4, (4, half._TILE + 3)).astype(np.float32) / 2 + 2)
    wide = as_float32(rows).copy()
    half._accumulate(rows, op, exclusive)
    for rank in range(exclusive, 4):
        expected = KINDS[kind](REDUCE[op](wide[: rank + (not exclusive)]))
        assert np.array_equal(as_float32(rows[rank]), as_float32(expected)), rank


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", ["min", "max"])
def test_nan_wins_wherever_it_is(kind, op):
    for place in range(3):
        values = np.ones((3, 2), np.float32)
        values[place, 1] = np.nan
        rows = KINDS[kind](values)
        half._combine(list(rows), rows[0], op)
        assert np.isnan(as_float32(rows[0])).tolist() == [False, True]


def test_overflow_of_float16_is_infinity_without_a_warning(recwarn):
    rows = np.full((2, 3), 60000, np.float16)
    half._combine(list(rows), rows[0], "sum")
    assert np.isinf(rows[0]).all() and not len(recwarn)


@pytest.mark.parametrize(("count", "size"), [(0, 3), (1, 4), (31, 2), (100, 3), (1 << 20, 7)])
def test_split_covers_everything_once(count, size):
    counts = half._split(count, size)
    assert len(counts) == size and sum(counts) == count and min(counts) >= 0
