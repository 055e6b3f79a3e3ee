"""Comm.gather."""

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
def test_every_root_and_layout(comm, way):
    dtype, blocking = way.dtype, way.blocking
    exact = exact_move(dtype)
    for shape in (*SHAPES, (50, 6)):
        models = [moved(dtype, shape, rank) for rank in range(comm.size)]
        expected = np.stack(models)
        for turn, (library, kind) in enumerate(layouts(comm, dtype)):
            for root in range(comm.size) if turn == 0 else [turn % comm.size]:
                label = f"{shape} root {root} {library} {kind}"
                given = place(models[comm.rank], dtype, library, kind)
                result = call(blocking, comm.gather, given.x, root=root)
                given.assert_unchanged(label)
                out = blank(expected.shape, dtype, library, kind if kind != "read-only" else "plain")
                at_root = comm.rank == root
                into = call(blocking, comm.gather, given.x, root=root, out=out.x if at_root else None)
                given.assert_unchanged(label)
                if at_root:
                    assert_same(result, expected, dtype, label, exact)
                    assert into is out.x
                    assert_same(out.x, expected, dtype, f"{label} out=", exact)
                    out.assert_surroundings(label)
                else:
                    assert result is None and into is None


@every_way(MOVABLE, non_blocking=False)
def test_in_place(comm, way):
    dtype = way.dtype
    for shape in ((7,), (1024,), ()):
        models = [moved(dtype, shape, rank) for rank in range(comm.size)]
        expected = np.stack(models)
        for root in range(comm.size):
            for library, kind in layouts(comm, dtype, writable=True):
                label = f"{shape} root {root} {library} {kind}"
                own = place(
                    models[comm.rank], dtype, library, "big-endian" if kind == "big-endian" else "plain"
                )
                if comm.rank == root:
                    out = blank(expected.shape, dtype, library, kind)
                    out.x[root] = own.x
                    comm.gather(out.x[root, ...], root=root, out=out.x)
                    assert_same(out.x, expected, dtype, label, exact_move(dtype))
                    out.assert_surroundings(label)
                else:
                    comm.gather(own.x, root=root)


@every_way(MOVABLE)
def test_uneven_blocks(comm, way):
    dtype, blocking = way.dtype, way.blocking
    exact = exact_move(dtype)
    for turn, counts in enumerate(uneven(comm.size)):
        for rest in ((), (2, 0), (4, 25)):
            models = [moved(dtype, (count, *rest), rank) for rank, count in enumerate(counts)]
            expected = np.concatenate(models)
            root = turn % comm.size
            for library, kind in layouts(comm, dtype):
                label = f"{counts} {rest} root {root} {library} {kind}"
                given = place(models[comm.rank], dtype, library, kind)
                out = blank(expected.shape, dtype, library, kind if kind != "read-only" else "plain")
                into = out.x if comm.rank == root else None
                result = call(blocking, comm.gather, given.x, counts=counts, root=root, out=into)
                given.assert_unchanged(label)
                if comm.rank == root:
                    assert_same(result, expected, dtype, label, exact)
                    out.assert_surroundings(label)
