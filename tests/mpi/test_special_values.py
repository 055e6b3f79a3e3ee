"""NaN, infinities, integers that wrap, Python numbers and scalars."""

from __future__ import annotations

import math

import numpy as np
import pytest

import hpccoll

from .support import FLOAT, HALF, SIGNED, UNSIGNED, assert_same, libraries, library_of, numpy_dtype, place


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("dtype", [*HALF, *FLOAT])
def test_nan_wins_on_every_rank_wherever_it_is(comm, dtype, op):
    kind = numpy_dtype(dtype)
    for count in (comm.size + 3, 70000 * comm.size):  # both ways of the half types
        values = np.full(count, 5 if op == "min" else -5, kind)
        values[-1] = comm.rank
        values[comm.rank] = np.nan  # element r comes as NaN from rank r
        values[comm.size] = [np.inf, -np.inf][comm.rank % 2]
        expected = np.full(count, 5 if op == "min" else -5, kind)
        expected[-1] = 0 if op == "min" else comm.size - 1
        expected[: comm.size] = np.nan
        expected[comm.size] = (-np.inf if op == "min" else np.inf) if comm.size > 1 else np.inf
        for choice in libraries(dtype):
            x = place(values, dtype, library_of(choice, comm.rank)).x
            assert_same(comm.allreduce(x, op=op), expected, dtype, f"allreduce {choice}")
            for root in range(comm.size):
                result = comm.reduce(x, op=op, root=root)
                if comm.rank == root:
                    assert_same(result, expected, dtype, f"reduce {choice}")
            scanned = np.where(np.arange(count) <= comm.rank, expected, values)
            result = comm.scan(x, op=op)
            assert_same(result[: comm.size], scanned[: comm.size].astype(kind), dtype, f"scan {choice}")
            if count % comm.size == 0:
                block = comm.reduce_scatter(x.reshape(comm.size, -1), op=op)
                mine = expected.reshape(comm.size, -1)[comm.rank]
                assert_same(block, mine, dtype, f"reduce_scatter {choice}")


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
def test_extremes_of_integers(comm, dtype):
    info = np.iinfo(dtype)
    values = np.array([info.max, info.min, info.max if comm.rank == 0 else info.min], dtype)
    expected = np.array([info.max, info.min, info.max], dtype)
    lowest = np.array([info.max, info.min, info.min if comm.size > 1 else info.max], dtype)
    for choice in libraries(dtype):
        x = place(values, dtype, library_of(choice, comm.rank)).x
        assert_same(comm.allreduce(x, op="max"), expected, dtype, choice)
        assert_same(comm.allreduce(x, op="min"), lowest, dtype, choice)


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_unsigned_sums_wrap(comm, dtype):
    info = np.iinfo(dtype)
    values = np.full(3, info.max, dtype)
    expected = np.full(3, (info.max * comm.size) % (info.max + 1), dtype)
    for choice in libraries(dtype):
        assert_same(
            comm.allreduce(place(values, dtype, library_of(choice, comm.rank)).x), expected, dtype, choice
        )


def test_bool_is_as_in_numpy_and_torch(comm):
    for choice in libraries("bool"):
        values = np.array([comm.rank == 0, True, False, comm.rank % 2 == 0])
        x = place(values, "bool", library_of(choice, comm.rank)).x
        some = np.array([True, True, False, True])
        every = np.array([comm.size == 1, True, False, comm.size == 1])
        odd = np.array([True, comm.size % 2 == 1, False, (comm.size + 1) // 2 % 2 == 1])
        for op, expected in (
            ("sum", some), ("max", some), ("bor", some), ("lor", some),
            ("prod", every), ("min", every), ("band", every), ("land", every),
            ("bxor", odd), ("lxor", odd),
        ):  # fmt: skip
            assert_same(comm.allreduce(x, op=op), expected, "bool", f"{op} {choice}")


def test_bool_bytes_other_than_zero_and_one(comm):
    """NumPy takes every non-zero byte as true; such arrays come from files and views."""
    values = np.array([2, 4, 0, 1], np.uint8).view(bool) if comm.rank == 0 else np.array([True] * 4)
    every = np.array([True, True, False, True])
    some = every if comm.size == 1 else np.ones(4, bool)
    for op, expected in (("land", every), ("prod", every), ("min", every), ("lor", some)):
        got = comm.allreduce(values, op=op)
        assert got.astype(int).tolist() == expected.astype(int).tolist() or comm.size == 1, op
        assert (got == expected).all(), op


def test_logical_operations_give_truth_values_also_of_one_value(comm):
    assert comm.scan(5, op="land") is True
    assert comm.scan(comm.rank, op="lor") is (comm.rank > 0)
    two = np.array([2, 255, 0], np.uint8).view(bool)
    for found in (comm.scan(two, op="lor"), comm.allreduce(two, op="max"), comm.scan(two, op="sum")):
        assert found.view(np.uint8).tolist() == [1, 1, 0]


def test_python_numbers(comm):
    size, rank = comm.size, comm.rank
    ranks = range(size)
    assert comm.allreduce(rank + 1) == sum(ranks) + size
    assert comm.allreduce(2**70 + rank) == size * 2**70 + sum(ranks)  # integers never overflow
    assert comm.allreduce(rank + 0.5, op="avg") == sum(ranks) / size + 0.5
    assert comm.allreduce(rank, op="avg") == sum(ranks) / size
    assert comm.allreduce(1j * rank + 1) == complex(size, sum(ranks))
    assert comm.allreduce(rank == 0, op="land") is (size == 1)
    assert comm.allreduce(rank == 0, op="lor") is True
    assert comm.allreduce(rank, op="max") == size - 1
    assert comm.allreduce(1 << rank, op="bor") == (1 << size) - 1
    assert math.isnan(comm.allreduce(math.nan if rank == size - 1 else 1.0, op="min"))
    assert comm.reduce(rank, root=size - 1) == (sum(ranks) if rank == size - 1 else None)
    assert comm.scan(rank + 1) == sum(range(rank + 2))
    assert comm.exscan(rank + 1) == sum(range(rank + 1))
    assert comm.exscan(rank + 2, op="prod") == math.prod(range(2, rank + 2))
    assert comm.allreduce(rank, blocking=False).wait(30) == sum(ranks)
    with pytest.raises(hpccoll.UnsupportedError, match="allreduce: min of complex"):
        comm.allreduce(1j, op="min")
    with pytest.raises(hpccoll.ArgumentError, match="`out` has no use"):
        comm.allreduce(1, out=np.zeros(1))


def test_numpy_scalars(comm):
    for kind in (np.int32, np.float64, np.float16, np.complex64, np.bool_):
        result = comm.allreduce(kind(1))
        assert type(result) is kind
        assert result == kind(comm.size if kind is not np.bool_ else 1)
    assert comm.allgather(np.int16(comm.rank)).tolist() == list(range(comm.size))
    assert type(comm.scan(np.float32(2))) is np.float32
