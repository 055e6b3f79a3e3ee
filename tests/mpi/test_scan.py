"""Comm.scan and Comm.exscan."""

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
    identity,
    layouts,
    libraries,
    library_of,
    ops_of,
    place,
    reduced,
    terms,
)


def expect(method, models, op, dtype, rank):
    if method == "scan":
        return reduced(models[: rank + 1], op, dtype)
    return reduced(models[:rank], op, dtype) if rank else identity(op, dtype, models[0].shape)


@pytest.mark.parametrize("method", ["scan", "exscan"])
@pytest.mark.parametrize("dtype", REDUCIBLE)
def test_every_op(comm, dtype, method):
    scan = getattr(comm, method)
    for op in ops_of(dtype):
        for shape in SHAPES:
            models = terms(dtype, shape, op, comm.size)
            if op in ("land", "lor", "lxor"):
                # One term alone comes back as it is, in MPI; 0 and 1 are what every library agrees on.
                models = [(model != 0).astype(model.dtype) for model in models]
            expected = expect(method, models, op, dtype, comm.rank)
            for choice in libraries(dtype):
                library = library_of(choice, comm.rank)
                label = f"{op} {shape} {choice}"
                given = place(models[comm.rank], dtype, library)
                assert_same(scan(given.x, op=op), expected, dtype, label)
                given.assert_unchanged(label)
                out = blank(shape, dtype, library)
                assert scan(given.x, op=op, out=out.x) is out.x
                assert_same(out.x, expected, dtype, f"{label} out=")
                out.assert_surroundings(label)
                inout = place(models[comm.rank], dtype, library)
                assert scan(inout.x, op=op, out=inout.x) is inout.x
                assert_same(inout.x, expected, dtype, f"{label} in place")
                inout.assert_surroundings(label)


@pytest.mark.parametrize("method", ["scan", "exscan"])
@every_way(REDUCIBLE)
def test_every_layout(comm, way, method):
    dtype, blocking = way.dtype, way.blocking
    scan = getattr(comm, method)
    op = "max" if dtype == "bool" else "sum"
    for shape in (*FEW_SHAPES, (50, 6)):
        models = terms(dtype, shape, op, comm.size)
        expected = expect(method, models, op, dtype, comm.rank)
        for library, kind in layouts(comm, dtype):
            label = f"{shape} {library} {kind}"
            given = place(models[comm.rank], dtype, library, kind)
            out = blank(shape, dtype, library, kind if kind != "read-only" else "plain")
            assert call(blocking, scan, given.x, op=op, out=out.x) is out.x
            assert_same(out.x, expected, dtype, label)
            given.assert_unchanged(label)
            out.assert_surroundings(label)
