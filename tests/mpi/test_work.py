"""Work: what blocking=False returns."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import numpy as np
import pytest

import hpccoll

from .support import torch

PAUSE_S = 0.3


def late(comm, rank=None):
    """Let one rank come late, so that the others' operations are certainly pending."""
    comm.barrier()
    if comm.rank == (comm.size - 1 if rank is None else rank):
        time.sleep(PAUSE_S)


def test_wait_result_test_exception(comm):
    x = np.full(5, comm.rank + 1.0)
    work = comm.allreduce(x, blocking=False)
    assert isinstance(work, hpccoll.Work)
    assert work.method == "allreduce"
    result = work.wait()
    assert (result == sum(range(comm.size + 1))).all()
    assert work.wait(timeout_s=0) is result
    assert work.result is result
    assert work.test() is True
    assert work.exception() is None
    assert "complete" in repr(work)


def test_the_result_is_what_the_blocking_call_returns(comm):
    x, out = np.ones(3), np.empty(3)
    assert comm.allreduce(x, out=out, blocking=False).wait(30) is out
    assert comm.broadcast(x, blocking=False).wait(30) is x
    assert comm.barrier(blocking=False).wait(30) is None
    at_root = comm.reduce(x, root=comm.size - 1, blocking=False).wait(30)
    assert (at_root is None) == (comm.rank != comm.size - 1)
    assert comm.allreduce(2, blocking=False).wait(30) == 2 * comm.size
    t = torch.ones(3)
    assert torch.is_tensor(comm.allreduce(t, blocking=False).wait(30))


@pytest.mark.mpi(min_size=2)
def test_a_timeout_leaves_the_operation_under_way(comm):
    late(comm)
    x = np.ones(4)
    work = comm.allreduce(x, blocking=False)
    if comm.rank != comm.size - 1:
        assert not work.test()
        assert "pending" in repr(work)
        start = time.monotonic()
        with pytest.raises(hpccoll.WaitTimeout, match=r"allreduce: not complete after 0.05 s") as caught:
            work.wait(timeout_s=0.05)
        assert 0.04 < time.monotonic() - start < PAUSE_S
        assert isinstance(caught.value, TimeoutError)
        with pytest.raises(hpccoll.WaitTimeout):
            work.wait(timeout_s=0)
    assert (work.wait(30) == comm.size).all()


def test_several_in_flight_keep_their_order(comm):
    late(comm)
    works = [comm.allreduce(np.full(100, i + comm.rank), blocking=False) for i in range(50)]
    assert comm.size == 1 or comm.rank == comm.size - 1 or comm.pending
    for i in reversed(range(50)):
        assert (works[i].wait(30) == comm.size * i + sum(range(comm.size))).all()
    # The last one's callbacks may still run; a blocking operation is behind them.
    comm.barrier()
    assert not comm.pending


def test_a_blocking_operation_queues_behind_the_pending_ones(comm):
    late(comm)
    x = np.zeros(1, int)
    first = comm.allreduce(np.array([1]), out=x, blocking=False)
    total = comm.allreduce(np.array([10]))
    assert first.test()
    assert x[0] == comm.size
    assert total[0] == 10 * comm.size


def test_every_collective_mixed_with_blocking_ones(comm):
    size, rank = comm.size, comm.rank
    works = []
    for turn in range(3):
        blocks = np.arange(size * 2).reshape(size, 2) + 100 * rank
        works.append(
            (
                comm.alltoall(blocks, blocking=False),
                np.stack([[2 * rank, 2 * rank + 1]] * size) + 100 * np.arange(size)[:, None],
            )
        )
        assert comm.allreduce(turn) == turn * size
        works.append((comm.allgather(np.array([rank]), blocking=False), np.arange(size)[:, None]))
        works.append((comm.scan(np.array([1]), blocking=False), np.array([rank + 1])))
        comm.barrier()
        works.append(
            (comm.broadcast(np.array([rank]), root=turn % size, blocking=False), np.array([turn % size]))
        )
        works.append((comm.reduce_scatter(np.ones((size, 3)), blocking=False), np.full(3, size)))
        works.append(
            (comm.allgather(np.full(rank, 7), counts="auto", blocking=False), np.full(sum(range(size)), 7))
        )
        works.append(
            (comm.alltoall(np.full(size, rank), send_counts=[1] * size, blocking=False), np.arange(size))
        )
    for work, expected in works:
        assert np.array_equal(work.wait(30), expected), work


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_buffers_live_until_the_operation_is_complete(comm, library):
    """The caller drops everything at once; what MPI reads and writes has to stay."""
    late(comm)
    count = 300_000
    works = []
    for i in range(4):
        x = (
            np.full(count, i + comm.rank, np.float32)
            if library == "numpy"
            else torch.full((count,), i + comm.rank, dtype=torch.float32)
        )
        works.append(comm.allreduce(x, blocking=False))
        del x
        gc.collect()
        junk = [np.full(count, -1, np.float32) for _ in range(3)]  # would take the freed memory
        del junk
    for i, work in enumerate(works):
        assert (work.wait(30) == comm.size * i + sum(range(comm.size))).all()


def test_dropped_works_complete(comm):
    late(comm)
    out = [np.zeros(1000) for _ in range(5)]
    for x in out:
        comm.allreduce(np.ones(1000), out=x, blocking=False)
    gc.collect()
    comm.barrier()
    assert all((x == comm.size).all() for x in out)


def test_complete_works_keep_nothing_alive(comm):
    x, out = np.ones(10), np.zeros(10)
    refs = [weakref.ref(x), weakref.ref(out)]
    work = comm.allreduce(x, out=out, blocking=False)
    work.wait(30)
    comm.barrier(blocking=False).wait(30)  # the worker has let go of the one before
    del x, out, work
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


def test_callbacks(comm):
    late(comm)
    seen: list[object] = []
    work = comm.allreduce(np.array([1]), blocking=False)
    work.add_done_callback(lambda w: seen.append((w.result[0], threading.current_thread())))
    work.add_done_callback(seen.append)
    work.wait(30)
    comm.barrier()  # behind the callbacks
    assert seen[0][0] == comm.size
    assert seen[1] is work
    if comm.size > 1 and comm.rank != comm.size - 1:
        assert seen[0][1] is not threading.current_thread()
    here: list[object] = []
    work.add_done_callback(lambda w: here.append(threading.current_thread()))
    assert here == [threading.current_thread()]


def test_a_callback_that_raises_is_reported_and_goes_no_further(comm, monkeypatch):
    import sys

    told: list[type] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, *_: told.append(kind))
    work = comm.allreduce(np.array([1]), blocking=False)
    work.wait(30)
    seen: list[object] = []
    work.add_done_callback(lambda _: 1 / 0)
    work.add_done_callback(seen.append)
    assert told == [ZeroDivisionError]
    assert seen == [work]
    assert comm.allreduce(np.array([1]))[0] == comm.size


def test_collectives_in_a_callback(comm):
    """They run there at once, before the next operation in the queue."""
    late(comm)
    order: list[str] = []

    def more(work):
        assert comm.allreduce(int(work.result[0])) == comm.size**2
        assert comm.allreduce(np.array([5]), blocking=False).wait(30)[0] == 5 * comm.size
        order.append("callback")

    first = comm.allreduce(np.array([1]), blocking=False)
    first.add_done_callback(more) if not first.test() else None
    second = comm.allreduce(np.array([2]), blocking=False)
    second.add_done_callback(lambda _: order.append("second"))
    assert second.wait(30)[0] == 2 * comm.size
    comm.barrier()


def test_an_error_of_the_operation_is_raised_by_wait_on_every_rank(comm):
    """The counts are known to be wrong only after the ranks have asked one another."""
    x = np.zeros((2, 3) if comm.rank == 0 else (2, 4))
    work = comm.allgather(x, counts="auto", blocking=False)
    if comm.size == 1:
        work.wait(30)
        return
    for _ in range(2):
        with pytest.raises(hpccoll.ArgumentError, match="allgather: the blocks must be alike"):
            work.wait(30)
    assert isinstance(work.exception(), hpccoll.ArgumentError)
    with pytest.raises(hpccoll.ArgumentError):
        work.result  # noqa: B018
    assert comm.allreduce(1) == comm.size


def test_bad_arguments_raise_at_once(comm):
    with pytest.raises(hpccoll.ArgumentError):
        comm.allreduce(np.zeros(3), op="median", blocking=False)
    assert comm.allreduce(1) == comm.size


def test_wait_from_several_threads(comm):
    late(comm)
    work = comm.allreduce(np.array([1]), blocking=False)
    got: list[int] = []
    threads = [threading.Thread(target=lambda: got.append(int(work.wait(30)[0]))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert got == [comm.size] * 4


def test_two_communicators_at_the_same_time(comm):
    """Each has a thread of its own: the order between them does not matter."""
    with comm.dup() as other:
        works = []
        for i in range(20):
            pair = [(comm, i), (other, 1000 + i)]
            for c, value in pair if comm.rank % 2 else pair[::-1]:
                works.append((value, c.allreduce(np.array([value]), blocking=False)))
        for value, work in works:
            assert work.wait(30)[0] == value * comm.size


def test_many(comm):
    works = [comm.allreduce(np.array([i]), blocking=False) for i in range(2000)]
    assert [int(work.wait(60)[0]) for work in works] == [comm.size * i for i in range(2000)]


def test_python_goes_on_while_an_operation_waits(comm):
    late(comm, 0)
    work = comm.barrier(blocking=False)
    count = 0
    while not work.test():
        count += 1
        time.sleep(0.001)
    if comm.size > 1 and comm.rank:
        assert count > 10


def test_waiting_in_a_callback_for_a_later_operation_raises(comm):
    found = []

    def callback(_):
        later = comm.barrier(blocking=False)
        assert later.test()  # inside of a callback operations run at once

    def wait_for(later):
        def wait(_):
            try:
                later[0].wait()
            except hpccoll.CommunicatorError as error:
                found.append(error)

        return wait

    later = []
    late(comm, 0)
    first = comm.barrier(blocking=False)
    first.add_done_callback(wait_for(later))
    first.add_done_callback(callback)
    later.append(comm.allreduce(np.ones(2), blocking=False))
    assert later[0].wait().tolist() == [comm.size] * 2
    if comm.rank != 0 or found:  # on rank 0 the first may have been complete before the callback was there
        assert "a callback of the same communicator waits for it" in str(found[0])


@pytest.mark.parametrize("limit", [float("inf"), 1e10, np.float64(5)])
def test_limits_however_long(comm, limit):
    assert comm.allreduce(np.ones(1), blocking=False).wait(limit) == comm.size


@pytest.mark.parametrize("limit", [float("nan"), "a", [1]])
def test_limits_that_are_none(comm, limit):
    work = comm.barrier(blocking=False)
    late(comm)
    pending = comm.barrier(blocking=False)
    if not pending.test():
        with pytest.raises(hpccoll.ArgumentError, match="`timeout_s` must be seconds or None"):
            pending.wait(limit)
    pending.wait()
    work.wait()


def test_communicator_that_somebody_has_freed(comm):
    mpi = comm.mpi.Dup()
    other = hpccoll.Comm(mpi)
    mpi.Free()
    with pytest.raises(hpccoll.CommunicatorError):
        other.barrier(blocking=False)
