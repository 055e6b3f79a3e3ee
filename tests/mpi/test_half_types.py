"""float16 and bfloat16: both ways of reducing them, on every collective."""

from __future__ import annotations

import numpy as np
import pytest

from hpccoll import half

from .support import (
    HALF,
    as_numpy,
    assert_same,
    blank,
    identity,
    layouts,
    libraries,
    library_of,
    numpy_dtype,
    ops_of,
    place,
    reduced,
    terms,
    uneven,
)

# Elements: nothing, less than one a rank, not divisible, several cache lines and a rest.
COUNTS = (0, 1, 7, 1024, 70001)


@pytest.fixture(params=["wide", "exchange", "exchange in parts"])
def algorithm(request, monkeypatch):
    """The two ways, whatever the size of the message."""
    limit = 2**40 if request.param == "wide" else 0
    monkeypatch.setattr(half, "EXCHANGE_BLOCK_BYTES", limit)
    if request.param == "exchange in parts":
        from hpccoll import transport

        monkeypatch.setattr(transport, "MAX_COUNT", 100)
        monkeypatch.setattr(transport, "_BLOCK", 16)
        monkeypatch.setattr(half, "_INBOX_BYTES", 4096)
        monkeypatch.setattr(half, "_LEAST_PIECE_BYTES", 256)
    return request.param


@pytest.mark.parametrize("dtype", HALF)
def test_every_reduction(comm, algorithm, dtype):
    for op in ops_of(dtype):
        for count in COUNTS if op == "sum" else COUNTS[2:4]:
            models = terms(dtype, (comm.size * count,), op, comm.size)
            total = reduced(models, op, dtype)
            for choice in libraries(dtype):
                library = library_of(choice, comm.rank)
                label = f"{op} {count} {choice}"
                given = place(models[comm.rank], dtype, library)
                for blocking in (True, False) if count == 7 else (True,):
                    assert_same(
                        finish(comm.allreduce(given.x, op=op, blocking=blocking)), total, dtype, label
                    )
                inout = place(models[comm.rank], dtype, library)
                comm.allreduce(inout.x, op=op, out=inout.x)
                assert_same(inout.x, total, dtype, f"{label} in place")
                for root in range(comm.size):
                    result = comm.reduce(given.x, op=op, root=root)
                    if comm.rank == root:
                        assert_same(result, total, dtype, f"reduce {label} root {root}")
                    inout = place(models[comm.rank], dtype, library)
                    result = comm.reduce(
                        inout.x, op=op, root=root, out=inout.x if comm.rank == root else None
                    )
                    if comm.rank == root:
                        assert_same(inout.x, total, dtype, f"reduce {label} root {root} in place")
                    else:
                        inout.assert_unchanged(f"reduce {label} root {root}")
                blocks = given.x.reshape(comm.size, count)
                mine = total.reshape(comm.size, count)[comm.rank]
                assert_same(comm.reduce_scatter(blocks, op=op), mine, dtype, f"reduce_scatter {label}")
                upto = reduced(models[: comm.rank + 1], op, dtype)
                assert_same(comm.scan(given.x, op=op), upto, dtype, f"scan {label}")
                before = (
                    reduced(models[: comm.rank], op, dtype)
                    if comm.rank
                    else identity(op, dtype, models[0].shape)
                )
                assert_same(comm.exscan(given.x, op=op), before, dtype, f"exscan {label}")
                given.assert_unchanged(label)
                for scan, expected in ((comm.scan, upto), (comm.exscan, before)):
                    inout = place(models[comm.rank], dtype, library)
                    scan(inout.x, op=op, out=inout.x)
                    assert_same(inout.x, expected, dtype, f"{scan.__name__} {label} in place")


def finish(result):
    return result.wait(30) if hasattr(result, "wait") else result


@pytest.mark.parametrize("dtype", HALF)
def test_uneven_blocks(comm, algorithm, dtype):
    for counts in uneven(comm.size):
        for rest in ((), (37,)):
            models = terms(dtype, (sum(counts), *rest), "sum", comm.size)
            start = sum(counts[: comm.rank])
            expected = reduced(models, "sum", dtype)[start : start + counts[comm.rank]]
            given = place(models[comm.rank], dtype)
            assert_same(comm.reduce_scatter(given.x, counts=counts), expected, dtype, f"{counts} {rest}")


@pytest.mark.parametrize("dtype", HALF)
def test_every_layout(comm, algorithm, dtype):
    shape = (9, 5, 4)
    models = terms(dtype, shape, "sum", comm.size)
    expected = reduced(models, "sum", dtype)
    for library, kind in layouts(comm, dtype, writable=True):
        given = place(models[comm.rank], dtype, library, kind)
        out = blank(shape, dtype, library, kind)
        comm.allreduce(given.x, out=out.x)
        assert_same(out.x, expected, dtype, kind)
        given.assert_unchanged(kind)
        out.assert_surroundings(kind)
        inout = place(models[comm.rank], dtype, library, kind)
        comm.allreduce(inout.x, out=inout.x)
        assert_same(inout.x, expected, dtype, f"{kind} in place")
        inout.assert_surroundings(kind)


@pytest.mark.parametrize("dtype", HALF)
def test_rounded_once(comm, algorithm, dtype):
    """1 + n small ones: rounding after each step would lose every one of them, or count it double."""
    ulp = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    kind = numpy_dtype(dtype)
    # On every rank but the first, half a unit in the last place and a bit: alone it rounds up, two of them to one.
    value = 1.0 if comm.rank == 0 else ulp * 0.5
    values = np.full(100, value, kind)
    exact = np.float32(1.0) + np.float32(ulp * 0.5 * (comm.size - 1))
    for choice in libraries(dtype):
        given = place(values, dtype, library_of(choice, comm.rank))
        assert_same(comm.allreduce(given.x), np.full(100, exact).astype(kind), dtype, choice)


@pytest.mark.parametrize("dtype", HALF)
def test_the_same_bits_on_every_rank(comm, algorithm, dtype):
    """Also where float32 is not exact and the order of the additions matters."""
    random = np.random.default_rng(comm.rank)
    values = (random.standard_normal(5000) * 10.0 ** random.integers(-3, 4, 5000)).astype(np.float32)
    for op in ("sum", "prod", "avg", "min", "max"):
        for choice in libraries(dtype):
            given = place(values.astype(numpy_dtype(dtype)), dtype, library_of(choice, comm.rank))
            result = as_numpy(comm.allreduce(given.x, op=op), dtype)
            digests = comm.allgather_object(result.tobytes())
            assert len(set(digests)) == 1, f"{op} {choice}"


@pytest.mark.parametrize("dtype", HALF)
def test_overflow_and_special_values(comm, algorithm, dtype, recwarn):
    kind = numpy_dtype(dtype)
    largest = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}[dtype]
    values = np.array([largest, -largest, np.inf, np.nan if comm.rank == 0 else 1, 0.0], kind)
    last = comm.size > 1
    expected = np.array([np.inf if last else largest, -np.inf if last else -largest, np.inf, np.nan, 0], kind)
    for choice in libraries(dtype):
        given = place(values, dtype, library_of(choice, comm.rank))
        assert_same(comm.allreduce(given.x), expected, dtype, choice)
    assert not [warning for warning in recwarn if "overflow" in str(warning.message)]


def test_the_crossover_is_where_it_says(comm, monkeypatch):
    """Without touching the constant: sizes on both sides of it."""
    edge = half.EXCHANGE_BLOCK_BYTES * comm.size // 2
    for count in (edge - 1, edge, edge + 1, 3 * edge):
        models = terms("float16", (count,), "sum", comm.size)
        given = place(models[comm.rank], "float16")
        assert_same(comm.allreduce(given.x), reduced(models, "sum", "float16"), "float16", str(count))
