"""Comm.reduce_scatter."""

from __future__ import annotations

import pytest

from .support import (
    REDUCIBLE,
    SHAPES,
    assert_same,
    blank,
    call,
    every_way,
    layouts,
    libraries,
    library_of,
    ops_of,
    place,
    reduced,
    terms,
    uneven,
)


@pytest.mark.parametrize("dtype", REDUCIBLE)
def test_every_op(comm, dtype):
    for op in ops_of(dtype):
        for block in SHAPES:
            models = terms(dtype, (comm.size, *block), op, comm.size)
            expected = reduced(models, op, dtype)[comm.rank, ...]
            for choice in libraries(dtype):
                library = library_of(choice, comm.rank)
                label = f"{op} {block} {choice}"
                given = place(models[comm.rank], dtype, library)
                assert_same(comm.reduce_scatter(given.x, op=op), expected, dtype, label)
                given.assert_unchanged(label)
                out = blank(block, dtype, library)
                assert comm.reduce_scatter(given.x, op=op, out=out.x) is out.x
                assert_same(out.x, expected, dtype, f"{label} out=")
                out.assert_surroundings(label)
                given.assert_unchanged(label)


@every_way(REDUCIBLE)
def test_every_layout_and_uneven_blocks(comm, way):
    dtype, blocking = way.dtype, way.blocking
    op = "max" if dtype == "bool" else "sum"
    for counts in (None, *uneven(comm.size)):
        for rest in ((), (3, 4), (2, 0), (60,)):
            length = comm.size if counts is None else sum(counts)
            models = terms(dtype, (length, *rest), op, comm.size)
            total = reduced(models, op, dtype)
            if counts is None:
                expected = total[comm.rank, ...]
            else:
                start = sum(counts[: comm.rank])
                expected = total[start : start + counts[comm.rank]]
            for library, kind in layouts(comm, dtype):
                label = f"{counts} {rest} {library} {kind}"
                given = place(models[comm.rank], dtype, library, kind)
                out = blank(expected.shape, dtype, library, kind if kind != "read-only" else "plain")
                result = call(blocking, comm.reduce_scatter, given.x, op=op, counts=counts, out=out.x)
                assert result is out.x
                assert_same(result, expected, dtype, label)
                given.assert_unchanged(label)
                out.assert_surroundings(label)
            assert_same(
                call(blocking, comm.reduce_scatter, given.x, op=op, counts=counts), expected, dtype, label
            )
