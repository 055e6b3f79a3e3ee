"""Comm.reduce."""

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
def test_every_op_and_root(comm, dtype):
    for op in ops_of(dtype):
        for shape in SHAPES:
            models = terms(dtype, shape, op, comm.size)
            expected = reduced(models, op, dtype)
            for root in range(comm.size):
                for choice in libraries(dtype):
                    library = library_of(choice, comm.rank)
                    label = f"{op} {shape} root {root} {choice}"
                    given = place(models[comm.rank], dtype, library)
                    result = comm.reduce(given.x, op=op, root=root)
                    given.assert_unchanged(label)
                    if comm.rank == root:
                        assert_same(result, expected, dtype, label)
                    else:
                        assert result is None, label


@every_way(REDUCIBLE)
def test_every_layout(comm, way):
    dtype, blocking = way.dtype, way.blocking
    op = "min" if dtype == "bool" else "sum"
    for turn, shape in enumerate((*FEW_SHAPES, (50, 6))):
        models = terms(dtype, shape, op, comm.size)
        expected = reduced(models, op, dtype)
        root = turn % comm.size
        for library, kind in layouts(comm, dtype):
            label = f"{shape} root {root} {library} {kind}"
            given = place(models[comm.rank], dtype, library, kind)
            out = blank(shape, dtype, library, kind if kind != "read-only" else "plain")
            at_root = comm.rank == root
            result = call(blocking, comm.reduce, given.x, op=op, root=root, out=out.x if at_root else None)
            given.assert_unchanged(label)
            if at_root:
                assert result is out.x
                assert_same(result, expected, dtype, label)
                out.assert_surroundings(label)
            else:
                assert result is None
            if kind == "read-only":
                kind = "plain"
            inout = place(models[comm.rank], dtype, library, kind)
            result = call(blocking, comm.reduce, inout.x, op=op, root=root, out=inout.x if at_root else None)
            if at_root:
                assert result is inout.x
                assert_same(result, expected, dtype, f"{label} in place")
                inout.assert_surroundings(label)
            else:
                inout.assert_unchanged(label)
