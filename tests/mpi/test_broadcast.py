"""Comm.broadcast."""

from __future__ import annotations

from .support import MOVABLE, SHAPES, assert_same, blank, call, every_way, exact_move, layouts, moved, place


@every_way(MOVABLE)
def test_every_root_and_layout(comm, way):
    dtype, blocking = way.dtype, way.blocking
    for shape in (*SHAPES, (50, 6)):
        for root in range(comm.size):
            expected = moved(dtype, shape, root)
            for library, kind in layouts(comm, dtype):
                label = f"{shape} root {root} {library} {kind}"
                if comm.rank == root:
                    given = place(expected, dtype, library, kind)
                else:
                    given = blank(shape, dtype, library, kind if kind != "read-only" else "plain")
                assert call(blocking, comm.broadcast, given.x, root=root) is given.x
                assert_same(given.x, expected, dtype, label, exact_move(dtype))
                if comm.rank == root:
                    given.assert_unchanged(label)
                else:
                    given.assert_surroundings(label)
