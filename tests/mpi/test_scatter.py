"""Comm.scatter."""

from __future__ import annotations

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
        whole = moved(dtype, (comm.size, *shape), 17)
        expected = whole[comm.rank, ...]
        for turn, (library, kind) in enumerate(layouts(comm, dtype)):
            for root in range(comm.size) if turn == 0 else [turn % comm.size]:
                label = f"{shape} root {root} {library} {kind}"
                at_root = comm.rank == root
                given = place(whole, dtype, library, kind) if at_root else blank(shape, dtype, library, kind)
                result = call(blocking, comm.scatter, given.x, root=root)
                assert_same(result, expected, dtype, label, exact)
                given.assert_unchanged(label)  # elsewhere it says what to expect, and is not touched

                out = blank(shape, dtype, library, kind if kind != "read-only" else "plain")
                result = call(blocking, comm.scatter, given.x if at_root else None, root=root, out=out.x)
                assert result is out.x
                assert_same(result, expected, dtype, f"{label} out=", exact)
                given.assert_unchanged(label)
                out.assert_surroundings(label)


@every_way(MOVABLE, non_blocking=False)
def test_in_place(comm, way):
    dtype = way.dtype
    for shape in ((7,), (1024,), ()):
        whole = moved(dtype, (comm.size, *shape), 17)
        for root in range(comm.size):
            for library, kind in layouts(comm, dtype, writable=True):
                label = f"{shape} root {root} {library} {kind}"
                if comm.rank == root:
                    given = place(whole, dtype, library, kind)
                    result = comm.scatter(given.x, root=root, out=given.x[root, ...])
                    given.assert_unchanged(label)
                else:
                    result = comm.scatter(None, root=root, out=blank(shape, dtype, library, kind).x)
                assert_same(result, whole[comm.rank, ...], dtype, label, exact_move(dtype))


@every_way(MOVABLE)
def test_uneven_blocks(comm, way):
    dtype, blocking = way.dtype, way.blocking
    for turn, counts in enumerate(uneven(comm.size)):
        for rest in ((), (2, 0), (4, 25)):
            whole = moved(dtype, (sum(counts), *rest), 18)
            start = sum(counts[: comm.rank])
            expected = whole[start : start + counts[comm.rank]]
            root = turn % comm.size
            for library, kind in layouts(comm, dtype):
                label = f"{counts} {rest} root {root} {library} {kind}"
                given = place(whole, dtype, library, kind)
                out = blank(expected.shape, dtype, library, kind if kind != "read-only" else "plain")
                x = given.x if comm.rank == root else None
                result = call(blocking, comm.scatter, x, root=root, counts=counts, out=out.x)
                assert_same(result, expected, dtype, label, exact_move(dtype))
                given.assert_unchanged(label)
                out.assert_surroundings(label)
            template = given.x if comm.rank == root else out.x
            result = call(blocking, comm.scatter, template, root=root, counts=counts)
            assert_same(result, expected, dtype, f"{label} new", exact_move(dtype))
