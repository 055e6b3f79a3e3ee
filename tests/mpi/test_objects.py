"""Collectives on Python objects, and the barrier."""

from __future__ import annotations

import time

import numpy as np
import pytest

import hpccoll

from .support import call

OBJECTS = [None, 7, "text", {"a": [1, 2]}, np.arange(5), b"x" * 3_000_000, ("t", frozenset({1}))]


def same(a, b):
    return np.array_equal(a, b) if isinstance(b, np.ndarray) else a == b


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "non-blocking"])
def test_every_object_and_root(comm, blocking):
    for obj in OBJECTS:
        for root in range(comm.size):
            got = call(blocking, comm.broadcast_object, obj if comm.rank == root else None, root=root)
            assert same(got, obj)
            got = call(blocking, comm.gather_object, (comm.rank, obj), root=root)
            if comm.rank == root:
                assert [rank for rank, _ in got] == list(range(comm.size))
                assert all(same(item, obj) for _, item in got)
            else:
                assert got is None
            objs = [(rank, obj) for rank in range(comm.size)] if comm.rank == root else None
            rank, item = call(blocking, comm.scatter_object, objs, root=root)
            assert rank == comm.rank and same(item, obj)
        got = call(blocking, comm.allgather_object, (comm.rank, obj))
        assert [rank for rank, _ in got] == list(range(comm.size))
        assert all(same(item, obj) for _, item in got)


def test_scatter_object_takes_any_iterable_of_the_right_length(comm):
    assert comm.scatter_object(range(comm.size)) == comm.rank
    assert comm.scatter_object(iter("abcd"[: comm.size])) == "abcd"[comm.rank]


@pytest.mark.parametrize("bad", [None, [], 5])
def test_scatter_object_of_the_wrong_length(comm, bad):
    # On the root alone there is something to check; the others are not made to wait here.
    if comm.rank == 0:
        with pytest.raises(
            hpccoll.ArgumentError, match=f"scatter_object: `objs` must be a list of {comm.size} objects"
        ):
            comm.scatter_object(bad)


def test_what_cannot_be_pickled_says_so(comm):
    with pytest.raises(hpccoll.UnsupportedError, match="allgather_object: the object cannot be pickled"):
        comm.allgather_object(lambda: 1)


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "non-blocking"])
def test_barrier(comm, blocking):
    for late in range(comm.size):
        comm.barrier()
        if comm.rank == late:
            time.sleep(0.1)
            arrived = time.time()
        call(blocking, comm.barrier)
        left = time.time()
        arrival = comm.broadcast_object(arrived if comm.rank == late else None, root=late)
        assert left >= arrival
