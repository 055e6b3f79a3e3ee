"""Comm.split, node, leaders, dup, free, and Comm around a communicator of the user's."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll


def total(comm):
    return int(comm.allreduce(np.array([1]))[0])


def test_world_is_one_object_and_not_comm_world(comm):
    assert hpccoll.world() is comm
    assert (comm.rank, comm.size) == (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)
    assert MPI.Comm.Compare(comm.mpi, MPI.COMM_WORLD) == (MPI.CONGRUENT)
    assert isinstance(comm.mpi, MPI.Intracomm)


def test_split_by_parity(comm):
    with comm.split(comm.rank % 2) as half:
        assert half.size == len(range(comm.rank % 2, comm.size, 2))
        assert half.rank == comm.rank // 2
        members = half.allgather(np.array([comm.rank]))
        assert members.ravel().tolist() == list(range(comm.rank % 2, comm.size, 2))
        assert total(half) == half.size
    with pytest.raises(hpccoll.CommunicatorError, match="freed"):
        half.allreduce(np.zeros(1))


def test_split_with_key_turns_the_order_around(comm):
    with comm.split(0, key=-comm.rank) as turned:
        assert turned.rank == comm.size - 1 - comm.rank


def test_split_without_color_joins_none(comm):
    group = comm.split(None if comm.rank == 0 else 3)
    if comm.rank == 0:
        assert group is None
    else:
        assert group.size == comm.size - 1
        group.free()


@pytest.mark.parametrize("color", [-1, "red", 1.5, 2**31])
def test_split_bad_color(comm, color):
    with pytest.raises(hpccoll.ArgumentError, match="split: `color` must be"):
        comm.split(color)


@pytest.mark.parametrize("key", ["first", None, 2**40])
def test_split_bad_key(comm, key):
    with pytest.raises(hpccoll.ArgumentError, match="split: `key` must be"):
        comm.split(0, key)


def test_split_takes_numpy_integers(comm):
    with comm.split(np.int64(1), np.int32(comm.rank)) as group:
        assert group.size == comm.size


def test_node_and_leaders(comm):
    with comm.node() as node:
        assert 1 <= node.size <= comm.size
        names = node.allgather_object(MPI.Get_processor_name())
        assert len(set(names)) == 1
        first = node.rank == 0
    leaders = comm.leaders()
    assert (leaders is not None) == first
    if leaders is not None:
        assert leaders.rank == 0 or comm.rank > 0
        leaders.free()


def test_traffic_of_a_dup_is_its_own(comm):
    with comm.dup() as twin:
        assert (twin.rank, twin.size) == (comm.rank, comm.size)
        if comm.size > 1 and comm.rank == 0:
            comm.send(np.array([1]), dest=1)
            twin.send(np.array([2]), dest=1)
        elif comm.rank == 1:
            assert twin.recv(np.zeros(1, int), source=0)[0] == 2
            assert comm.recv(np.zeros(1, int), source=0)[0] == 1


def test_groups_of_groups(comm):
    with comm.dup() as a, a.split(0) as b, b.dup() as c:
        assert total(c) == comm.size


def test_free_twice_and_every_method_after(comm):
    twin = comm.dup()
    twin.free()
    twin.free()
    x = np.zeros((comm.size, 2))
    calls = [
        lambda: twin.allreduce(x), lambda: twin.allreduce(1), lambda: twin.allreduce(x, out=x),
        lambda: twin.reduce(x), lambda: twin.broadcast(x), lambda: twin.allgather(x), lambda: twin.gather(x),
        lambda: twin.scatter(x), lambda: twin.reduce_scatter(x), lambda: twin.alltoall(x), lambda: twin.scan(x),
        lambda: twin.exscan(x), lambda: twin.barrier(), lambda: twin.send(x, dest=0), lambda: twin.recv(x),
        lambda: twin.sendrecv(x, dest=0), lambda: twin.broadcast_object(1), lambda: twin.allgather_object(1),
        lambda: twin.gather_object(1), lambda: twin.scatter_object([1] * comm.size), lambda: twin.split(0),
        lambda: twin.node(), lambda: twin.leaders(), lambda: twin.dup(),
        lambda: twin.allreduce(x, blocking=False), lambda: twin.barrier(blocking=False),
        lambda: twin.recv(x, blocking=False), lambda: twin.send(x, dest=0, blocking=False),
    ]  # fmt: skip
    for number, method in enumerate(calls):
        with pytest.raises(hpccoll.CommunicatorError, match="freed"):
            print(number, method())
    assert "freed" in repr(twin)
    assert total(comm) == comm.size


def test_free_waits_for_what_is_pending(comm):
    twin = comm.dup()
    works = [twin.allreduce(np.full(1000, i), blocking=False) for i in range(5)]
    twin.free()
    for i, work in enumerate(works):
        assert work.test()
        assert (work.result == i * comm.size).all()


def test_an_exception_in_a_with_block_frees_nothing_and_comes_through(comm):
    with pytest.raises(ZeroDivisionError), comm.dup() as twin:
        raise ZeroDivisionError
    assert total(twin) == comm.size
    twin.free()


def test_a_users_communicator_stays_the_users(comm):
    mine = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank % 2)
    with hpccoll.Comm(mine) as wrapped:
        assert total(wrapped) == mine.size
    assert mine.allreduce(1) == mine.size
    del wrapped
    gc.collect()
    assert mine.allreduce(1) == mine.size
    mine.Free()


@pytest.mark.parametrize("bad", [None, 5, "world", MPI.COMM_NULL], ids=["None", "int", "str", "null"])
def test_comm_of_something_else(bad):
    with pytest.raises(hpccoll.ArgumentError, match="Comm: `mpi` must be an mpi4py intracommunicator"):
        hpccoll.Comm(bad)


def test_many_groups_do_not_run_out(comm):
    for _ in range(300):
        comm.dup().free()
    for _ in range(20):
        with comm.dup() as twin:
            twin.allreduce(np.zeros(3), blocking=False).wait(30)  # each with a worker of its own
