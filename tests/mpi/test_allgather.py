"""Comm.allgather."""

from __future__ import annotations

import numpy as np

from .support import (
    MOVABLE,
    SHAPES,
    assert_same,
    blank,
    call,
    every_way,
    exact_move,
    layouts,
    moved,
    place,
    uneven,
)


@every_way(MOVABLE)
def test_equal_blocks(comm, way):
    dtype, blocking = way.dtype, way.blocking
    for shape in (*SHAPES, (50, 6)):
        models = [moved(dtype, shape, rank) for rank in range(comm.size)]
        expected = np.stack(models)
        for library, kind in layouts(comm, dtype):
            label = f"{shape} {library} {kind}"
            given = place(models[comm.rank], dtype, library, kind)
            assert_same(call(blocking, comm.allgather, given.x), expected, dtype, label, exact_move(dtype))
            given.assert_unchanged(label)
            out = blank(
                expected.shape, dtype, library, kind if kind not in ("read-only", "big-endian") else "plain"
            )
            if kind == "big-endian":
                out = blank(expected.shape, dtype, library, kind)
            assert call(blocking, comm.allgather, given.x, out=out.x) is out.x
            assert_same(out.x, expected, dtype, f"{label} out=", exact_move(dtype))
            out.assert_surroundings(label)
            given.assert_unchanged(label)


@every_way(MOVABLE, non_blocking=False)
def test_in_place(comm, way):
    dtype = way.dtype
    """x is this rank's own block of `out`."""
    for shape in ((7,), (1024,), (2, 0), ()):
        models = [moved(dtype, shape, rank) for rank in range(comm.size)]
        expected = np.stack(models)
        for library, kind in layouts(comm, dtype, writable=True):
            label = f"{shape} {library} {kind}"
            out = blank(expected.shape, dtype, library, kind)
            own = place(models[comm.rank], dtype, library, "big-endian" if kind == "big-endian" else "plain")
            out.x[comm.rank] = own.x
            x = out.x[comm.rank, ...]  # a view, also where nothing but () is left of the shape
            comm.allgather(x, out=out.x)
            assert_same(out.x, expected, dtype, label, exact_move(dtype))
            out.assert_surroundings(label)


@every_way(MOVABLE)
def test_uneven_blocks(comm, way):
    dtype, blocking = way.dtype, way.blocking
    for counts in uneven(comm.size):
        for rest in ((), (3,), (2, 0), (4, 25)):
            models = [moved(dtype, (count, *rest), rank) for rank, count in enumerate(counts)]
            expected = np.concatenate(models)
            for library, kind in layouts(comm, dtype):
                label = f"{counts} {rest} {library} {kind}"
                given = place(models[comm.rank], dtype, library, kind)
                got = call(blocking, comm.allgather, given.x, counts=counts)
                assert_same(got, expected, dtype, label, exact_move(dtype))
                given.assert_unchanged(label)
            got = call(blocking, comm.allgather, given.x, counts="auto")
            assert_same(got, expected, dtype, f"{label} auto", exact_move(dtype))
            out = blank(expected.shape, dtype, library, "fortran")
            given = place(models[comm.rank], dtype, library)
            assert call(blocking, comm.allgather, given.x, counts=tuple(counts), out=out.x) is out.x
            assert_same(out.x, expected, dtype, f"{label} out=", exact_move(dtype))
            out.assert_surroundings(label)
