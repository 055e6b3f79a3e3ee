"""Operations that take too long, and arguments that are wrong."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist


@pytest.fixture
def limited(comm):
    if comm.size == 1:
        pytest.skip("needs another rank")
    group = dist.new_group(timeout=timedelta(seconds=0.5))
    yield group
    dist.barrier()
    dist.destroy_process_group(group)


def test_synchronous_call_over_its_limit(comm, limited):
    dist.all_reduce(torch.ones(1), group=limited)
    if comm.rank != 0:
        started = time.monotonic()
        with pytest.raises(dist.DistBackendError) as caught:
            dist.all_reduce(torch.ones(1), group=limited)
        assert 0.4 < time.monotonic() - started < 5
        message = str(caught.value)
        for part in (
            "all_reduce",
            "sequence number 2",
            f"rank {comm.rank}",
            f"ranks 0-{comm.size - 1}",
            "0.5 s",
        ):
            assert part in message, message
        with pytest.raises(dist.DistBackendError, match="cannot be used any more"):
            dist.barrier(group=limited)
    dist.barrier()


CALLS = {
    "broadcast": lambda x, size, group: dist.broadcast(x, 0, group=group),
    "all_reduce": lambda x, size, group: dist.all_reduce(x, group=group),
    "all_gather": lambda x, size, group: dist.all_gather([x.clone() for _ in range(size)], x, group=group),
    "all_gather_into_tensor": lambda x, size, group: dist.all_gather_into_tensor(
        x.repeat(size), x, group=group
    ),
    "reduce_scatter_tensor": lambda x, size, group: dist.reduce_scatter_tensor(
        x, x.repeat(size), group=group
    ),
    "all_to_all_single": lambda x, size, group: dist.all_to_all_single(
        x.repeat(size), x.repeat(size), group=group
    ),
    "all_gather_object": lambda x, size, group: dist.all_gather_object([None] * size, 1, group=group),
    "barrier": lambda x, size, group: dist.barrier(group=group),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_synchronous_call_is_limited_not_only_the_first(comm, limited, name):
    x = torch.ones(4)
    CALLS[name](x, comm.size, limited)
    if comm.rank != 0:
        with pytest.raises(dist.DistBackendError, match=r"Timed out after 0.5 s"):
            CALLS[name](x, comm.size, limited)
    dist.barrier()


def test_monitored_barrier_lets_nobody_through_for_what_an_earlier_one_left(comm):
    if comm.size == 1:
        pytest.skip("needs another rank")
    for late in (1, 0):
        if comm.rank != late:  # fails, and leaves its messages
            with pytest.raises(RuntimeError, match="monitoredBarrier"):
                dist.monitored_barrier(timeout=timedelta(seconds=0.2))
        dist.barrier()
        began = time.monotonic()
        if comm.rank == 1:
            time.sleep(0.5)
        dist.monitored_barrier(timeout=timedelta(seconds=20))
        assert time.monotonic() - began > 0.4
        dist.barrier()


def test_monitored_barrier_ignores_a_release_that_came_too_late(comm):
    from mpi4py import MPI

    from hpccoll.torch_backend import monitored

    if comm.size == 1:
        pytest.skip("needs another rank")
    mpi = comm.mpi.Dup()

    class Few:
        rank, size = mpi.rank, mpi.size

    Few.mpi = mpi
    if mpi.rank == 0:
        monitored._tell(mpi, 1, monitored._GO, 1 << 40)
    mpi.Barrier()
    began = MPI.Wtime()
    if mpi.rank == 0:
        time.sleep(0.5)
    monitored.monitored_barrier(Few, 20, False)
    assert MPI.Wtime() - began > 0.4
    mpi.Free()


def test_asynchronous_call_over_its_limit(comm, limited):
    if comm.rank != 0:
        work = dist.all_reduce(torch.ones(1), group=limited, async_op=True)
        with pytest.raises(RuntimeError, match=r"Timed out after 0.5 s"):
            work.get_future().wait()  # without a wait() on the work
        with pytest.raises(dist.DistBackendError, match=r"Timed out after 0.5 s"):
            work.wait()
        assert not work.is_success()
        assert isinstance(work.exception(), dist.DistBackendError)
    dist.barrier()


def test_receive_over_its_limit(comm, limited):
    if comm.rank == 1:
        with pytest.raises(dist.DistBackendError, match=r"recv, sequence number 1, .*Timed out after 0.5 s"):
            dist.recv(torch.zeros(1), 0, group=limited)
    dist.barrier()


def test_wait_with_a_limit_of_its_own(comm):
    if comm.size == 1:
        pytest.skip("needs another rank")
    x = torch.full((2,), float(comm.rank))
    if comm.rank == 0:
        work = dist.all_reduce(x, async_op=True)
        with pytest.raises(dist.DistBackendError, match=r"Timed out after 0.2 s"):
            work.wait(timedelta(seconds=0.2))
        dist.monitored_barrier(timeout=timedelta(seconds=20))
        work.wait()  # it went on
    else:
        dist.monitored_barrier(timeout=timedelta(seconds=20))
        dist.all_reduce(x)
    assert x.tolist() == [comm.size * (comm.size - 1) / 2] * 2


def test_everything_works_in_a_limited_group(comm):
    group = dist.new_group(timeout=timedelta(seconds=50))
    rank, size = comm.rank, comm.size
    x = torch.full((3,), float(rank))
    works = [dist.all_reduce(x, group=group, async_op=True) for _ in range(3)]
    dist.all_reduce(x, group=group)
    assert all(work.is_completed() for work in works)
    assert x.tolist() == [size * (size - 1) / 2 * size**3] * 3
    found = [torch.zeros(2) for _ in range(size)]
    dist.all_gather(found, torch.full((2,), float(rank)), group=group)
    assert [one[0].item() for one in found] == list(range(size))
    objects = [None] * size
    dist.all_gather_object(objects, rank, group=group)
    assert objects == list(range(size))
    dist.destroy_process_group(group)


WRONG = [
    (lambda x: dist.all_reduce(x.to(torch.int32), dist.ReduceOp.AVG), "average of int32"),
    (lambda x: dist.all_reduce(x, dist.ReduceOp.BXOR), "bxor has no meaning for float32"),
    (lambda x: dist.all_reduce(x.to(torch.float8_e5m2)), "float8_e5m2 can be moved but not reduced"),
    (lambda x: dist.all_reduce(x.to(torch.complex64), dist.ReduceOp.MAX), "does not support"),
    (lambda x: dist.all_gather([x.clone()] * 9, x), "output tensor list size, must be world size"),
    (lambda x: dist.all_gather([torch.zeros(9)] * dist.get_world_size(), x), "the input has 2 elements"),
    (lambda x: dist.reduce_scatter(x, [x] * 9), "input tensor list size, must be world size"),
    (lambda x: dist.all_gather_into_tensor(x.new_zeros(99), x), "world_size times input tensor size"),
    (
        lambda x: dist.all_gather_into_tensor(x.new_zeros(2 * dist.get_world_size(), dtype=torch.int8), x),
        "same type",
    ),
    (lambda x: dist.reduce_scatter_tensor(x, x.new_zeros(99)), "output size times world size"),
    (lambda x: dist.all_to_all([x] * 9, [x] * 9), "not equal to group size"),
    (lambda x: dist.all_to_all_single(x, x, [1] * 9, [1] * 9), "tensor splits not equal to group size"),
    (
        lambda x: dist.gather(x, [torch.zeros(9)] * dist.get_world_size() if dist.get_rank() == 0 else None),
        None,
    ),
    (lambda x: dist.broadcast(x.expand(2, 2), 0), None),
    (lambda x: dist.all_reduce(x[:1].expand(4)), "several elements"),
    (lambda x: dist.send(x, dist.get_rank()), "should not be the same as the rank of the current process"),
    (lambda x: dist.isend(x, 0, tag=-1), "`tag` must be"),
    (lambda x: dist.broadcast(x, 99), "`root` must be a rank"),
    (lambda x: dist.all_reduce([x]), "Invalid function argument"),
    (lambda x: dist.group.WORLD.allreduce([x, x]), "does not support multi-GPU"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_wrong_arguments_raise_before_anything_is_sent(comm, number):
    call, message = WRONG[number]
    x = torch.ones(2)
    if message is None:  # wrong on the root only; the others must not be left waiting, so only it calls
        if comm.rank == 0 and number == 12:
            with pytest.raises(ValueError, match="invalid tensor size"):
                call(x)
    else:
        with pytest.raises((ValueError, TypeError, RuntimeError), match=message):
            call(x)
    x = torch.ones(2)
    dist.all_reduce(x)  # nobody is out of step
    assert x.tolist() == [comm.size] * 2


def test_nan_is_kept_by_max(comm):
    x = torch.full((3,), float("nan") if comm.rank == 0 else 1.0)
    dist.all_reduce(x, dist.ReduceOp.MAX)
    assert torch.isnan(x).all()
