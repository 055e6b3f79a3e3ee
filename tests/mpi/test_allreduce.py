"""Comm.allreduce."""

from __future__ import annotations

import pytest

from .support import (
    FEW_SHAPES,
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
)


@pytest.mark.parametrize("dtype", REDUCIBLE)
def test_every_op(comm, dtype):
    for op in ops_of(dtype):
        for shape in SHAPES:
            models = terms(dtype, shape, op, comm.size)
            expected = reduced(models, op, dtype)
            for choice in libraries(dtype):
                library = library_of(choice, comm.rank)
                label = f"{op} {shape} {choice}"
                given = place(models[comm.rank], dtype, library)
                assert_same(comm.allreduce(given.x, op=op), expected, dtype, label)
                given.assert_unchanged(label)

                out = blank(shape, dtype, library)
                assert comm.allreduce(given.x, op=op, out=out.x) is out.x
                assert_same(out.x, expected, dtype, f"{label} out=")
                out.assert_surroundings(label)
                given.assert_unchanged(label)

                inout = place(models[comm.rank], dtype, library)
                assert comm.allreduce(inout.x, op=op, out=inout.x) is inout.x
                assert_same(inout.x, expected, dtype, f"{label} in place")
                inout.assert_surroundings(label)


@every_way(REDUCIBLE)
def test_every_layout(comm, way):
    dtype, blocking = way.dtype, way.blocking
    op = "max" if dtype == "bool" else "sum"
    for shape in (*FEW_SHAPES, (50, 6)):
        models = terms(dtype, shape, op, comm.size)
        expected = reduced(models, op, dtype)
        for library, kind in layouts(comm, dtype):
            label = f"{shape} {library} {kind}"
            given = place(models[comm.rank], dtype, library, kind)
            assert_same(call(blocking, comm.allreduce, given.x, op=op), expected, dtype, label)
            given.assert_unchanged(label)
            if kind == "read-only":
                continue
            out = blank(shape, dtype, library, kind)
            assert call(blocking, comm.allreduce, given.x, op=op, out=out.x) is out.x
            assert_same(out.x, expected, dtype, f"{label} out=")
            out.assert_surroundings(label)
            inout = place(models[comm.rank], dtype, library, kind)
            call(blocking, comm.allreduce, inout.x, op=op, out=inout.x)
            assert_same(inout.x, expected, dtype, f"{label} in place")
            inout.assert_surroundings(label)
