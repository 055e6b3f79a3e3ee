"""Comm.alltoall."""

from __future__ import annotations

import numpy as np

from .support import MOVABLE, SHAPES, assert_same, blank, call, every_way, exact_move, layouts, moved, place


@every_way(MOVABLE)
def test_equal_blocks(comm, way):
    dtype, blocking = way.dtype, way.blocking
    exact = exact_move(dtype)
    for shape in (*SHAPES, (50, 6)):
        models = [moved(dtype, (comm.size, *shape), rank) for rank in range(comm.size)]
        expected = np.stack([model[comm.rank, ...] for model in models])
        for library, kind in layouts(comm, dtype):
            label = f"{shape} {library} {kind}"
            given = place(models[comm.rank], dtype, library, kind)
            assert_same(call(blocking, comm.alltoall, given.x), expected, dtype, label, exact)
            given.assert_unchanged(label)
            if kind == "read-only":
                continue
            out = blank(expected.shape, dtype, library, kind)
            assert call(blocking, comm.alltoall, given.x, out=out.x) is out.x
            assert_same(out.x, expected, dtype, f"{label} out=", exact)
            given.assert_unchanged(label)
            out.assert_surroundings(label)
            inout = place(models[comm.rank], dtype, library, kind)
            assert call(blocking, comm.alltoall, inout.x, out=inout.x) is inout.x
            assert_same(inout.x, expected, dtype, f"{label} in place", exact)
            inout.assert_surroundings(label)


def _tables(size):
    """What rank i sends to rank j."""
    yield [[(i + 2 * j) % 3 for j in range(size)] for i in range(size)]
    yield [[3 if i == j else 0 for j in range(size)] for i in range(size)]
    yield [[5 if j == 0 else 0 for j in range(size)] for i in range(size)]
    yield [[0] * size for _ in range(size)]


@every_way(MOVABLE)
def test_uneven_blocks(comm, way):
    dtype, blocking = way.dtype, way.blocking
    exact = exact_move(dtype)
    me = comm.rank
    for table in _tables(comm.size):
        for rest in ((), (2, 0), (4, 25)):
            models = [moved(dtype, (sum(row), *rest), rank) for rank, row in enumerate(table)]
            parts = []
            for model, row in zip(models, table, strict=True):
                start = sum(row[:me])
                parts.append(model[start : start + row[me]])
            expected = np.concatenate(parts)
            outgoing, incoming = table[me], [row[me] for row in table]
            for library, kind in layouts(comm, dtype):
                label = f"{table} {rest} {library} {kind}"
                given = place(models[me], dtype, library, kind)
                out = blank(expected.shape, dtype, library, kind if kind != "read-only" else "plain")
                options = {"send_counts": outgoing, "recv_counts": incoming, "out": out.x}
                assert call(blocking, comm.alltoall, given.x, **options) is out.x
                assert_same(out.x, expected, dtype, label, exact)
                given.assert_unchanged(label)
                out.assert_surroundings(label)
            got = call(blocking, comm.alltoall, given.x, send_counts=outgoing)
            assert_same(got, expected, dtype, f"{label} asked", exact)
            got = call(blocking, comm.alltoall, given.x, send_counts=outgoing, recv_counts=incoming)
            assert_same(got, expected, dtype, f"{label} new", exact)
