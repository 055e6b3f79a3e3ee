"""The comparison finds each kind of damage, and nothing where there is none."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from mpi_plugin import need

from hpccoll.bench.case import ALL, Case, Place, Source
from hpccoll.bench.dtypes import DTYPES
from hpccoll.bench.storage import WINDOWS, RowData, Slab, Tables, rank_nbytes

RANK, SIZE = 1, 3


def case(**changes: Any) -> Case:
    fields: dict[str, Any] = {
        "name": "allreduce",
        "summary": "",
        "sends": lambda place: 1,
        "expects": lambda place: [Source(ALL, 0)],
        "in_place": "whole",
    }
    return Case(**{**fields, **changes})


ALLGATHER = case(
    expects=lambda place: [Source(rank, 0) for rank in range(place.size)],
    stacked_recv=True,
    scaled=True,
    in_place="block",
)


def row(
    of: Case, count: int, *, dtype: str = "float32", op: str | None = "sum", in_place: bool = False
) -> RowData:
    return RowData(
        of, Tables(DTYPES[dtype], op, SIZE), count, Place(RANK, SIZE, 0), salt=2, in_place=in_place
    )


def correct(
    of: Case, count: int, iteration: int, dtype: str = "float32", op: str | None = "sum"
) -> list[np.ndarray]:
    """Inputs of all ranks for a call, taken from the ranks' own row data."""
    tables = Tables(DTYPES[dtype], op, SIZE)
    rows = [RowData(of, tables, count, Place(rank, SIZE, 0), salt=2, in_place=False) for rank in range(SIZE)]
    return [data.windows("numpy")[iteration % WINDOWS][0].copy() for data in rows]


@pytest.mark.parametrize("count", [0, 1, 7, 1000])
@pytest.mark.parametrize("in_place", [False, True])
def test_allreduce_as_numpy_does_it_is_right(count: int, in_place: bool) -> None:
    data = row(case(), count, in_place=in_place)
    for iteration in range(2 * WINDOWS):
        send, recv = data.windows("numpy")[iteration % WINDOWS]
        data.prepare(iteration)
        inputs = correct(case(), count, iteration)
        assert np.array_equal(send, inputs[RANK])
        recv[...] = sum(inputs)
        assert data.check(iteration) is None
    assert data.check_rest() == []


@pytest.mark.parametrize("in_place", [False, True])
def test_allgather_as_numpy_does_it_is_right(in_place: bool) -> None:
    data = row(ALLGATHER, 5, op=None, in_place=in_place)
    for iteration in range(WINDOWS):
        send, recv = data.windows("numpy")[iteration]
        data.prepare(iteration)
        inputs = correct(ALLGATHER, 5, iteration, op=None)
        assert np.array_equal(send, inputs[RANK])
        recv[...] = np.stack(inputs)
        assert data.check(iteration) is None
    assert data.check_rest() == []


@pytest.mark.parametrize("index", [0, 1, 499, 999])
def test_single_wrong_element(index: int) -> None:
    data = row(case(), 1000)
    _, recv = data.windows("numpy")[4]
    recv[...] = sum(correct(case(), 1000, 4))
    right = float(recv[index])
    recv[index] += 1
    wrong = data.check(4)
    assert wrong is not None
    assert wrong.count == 1
    assert (
        wrong.text == f"index {index}: expected {right}, found {right + 1} (1 of 1000 elements wrong, call 4)"
    )


def test_results_of_another_call_are_wrong() -> None:
    data = row(case(), 1000)
    _, recv = data.windows("numpy")[0]
    recv[...] = sum(correct(case(), 1000, 0))
    assert data.check(0) is None
    for iteration in range(1, WINDOWS):
        wrong = data.check(iteration)
        assert wrong is not None
        assert wrong.count > 900


@pytest.mark.parametrize("dtype", DTYPES)
def test_poison_is_wrong(dtype: str) -> None:
    of = case(expects=lambda place: [Source(0, 0)])
    data = row(of, 1000, dtype=dtype, op=None)
    inputs = correct(of, 1000, 0, dtype=dtype, op=None)[0].view(np.uint8)
    _, recv = data.windows("numpy")[0]
    found = recv.view(np.uint8)
    patterns = set()
    for iteration in (0, WINDOWS):  # the same window, so the same expected values
        found[...] = inputs
        assert data.check(iteration) is None
        data.prepare(iteration)
        patterns.add(bytes(found[:8]))
        wrong = data.check(iteration)
        assert wrong is not None
        assert wrong.count > 900
    assert len(patterns) == 2


def test_negative_zero_is_zero() -> None:
    data = row(case(), 1000, dtype="float16")
    _, recv = data.windows("numpy")[0]
    recv[...] = sum(correct(case(), 1000, 0, dtype="float16"))
    zeros = recv == 0
    assert zeros.any()
    recv[zeros] = -0.0
    assert data.check(0) is None


def test_changed_input() -> None:
    data = row(case(), 1000)
    data.windows("numpy")[0][0][17] += 1
    [wrong] = data.check_rest()
    assert wrong.count == 1
    assert wrong.text.startswith("the input was changed at index 17: expected ")


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    ("offset", "place"), [(-1, "byte 1 before"), (-64, "byte 64 before"), (4000, "byte 1 behind")]
)
def test_canaries(which: int, offset: int, place: str) -> None:
    data = row(case(), 1000)
    array = data.windows("numpy")[WINDOWS - 1 if offset > 0 else 0][which]
    ctypes.memset(array.ctypes.data + offset, 7, 1)
    [wrong] = data.check_rest()
    name = ("input", "output")[which]
    assert (
        wrong.text
        == f"the canary of the {name} was overwritten, {place} the buffer: expected 0xa5, found 0x7"
    )


def test_slab_starts_on_a_page() -> None:
    for nbytes in (0, 1, 4096, 100_000):
        slab = Slab(nbytes)
        assert slab.data.nbytes == nbytes
        assert slab.broken_guard() is None
        assert nbytes == 0 or slab.data.ctypes.data % 4096 == 0


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_views_share_the_memory(kind: str, dtype: str) -> None:
    need("torch" if kind == "torch" else "ml_dtypes")
    data = row(ALLGATHER, 6, dtype=dtype, op=None)
    send, recv = data.windows(kind)[0]
    assert dtype in str(send.dtype)
    assert tuple(send.shape) == (6,)
    assert tuple(recv.shape) == (SIZE, 6)
    data.prepare(0)
    before = data.check(0)
    assert before is not None
    recv.view(__import__(kind).uint8)[...] = 0
    after = data.check(0)
    assert after is not None
    assert after.text != before.text


def test_needed_memory() -> None:
    """Of 1 MiB allreduce: input, output, expected values, and one message for the library."""
    need = rank_nbytes(case(), DTYPES["float32"], 2**18, Place(0, 2, 0))
    assert 4 * 2**20 <= need < 4 * 2**20 + 4096 * 4
    gather = rank_nbytes(ALLGATHER, DTYPES["float32"], 2**18, Place(0, 8, 0))
    assert gather == pytest.approx((1 + 8 + 8 + 8) * 2**20, rel=0.01)
