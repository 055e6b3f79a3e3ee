"""Groups of some ranks, their making and their end."""

from __future__ import annotations

import itertools
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist


def total(group, value=1.0):
    x = torch.full((1,), float(value))
    dist.all_reduce(x, group=group)
    return x.item()


def test_every_pair_at_once_and_in_any_order(comm):
    """Overlapping groups: each rank makes its own in an order of its own, and no other rank takes part."""
    pairs = list(itertools.combinations(range(comm.size), 2))
    if comm.rank % 2:
        pairs.reverse()
    mine = [pair for pair in pairs if comm.rank in pair]
    # Two ranks that each wait for another would wait for ever: order by what both know.
    mine.sort()
    groups = [dist.new_group(list(pair), use_local_synchronization=True) for pair in mine]
    for pair, group in zip(mine, groups, strict=True):
        assert dist.get_backend(group) == "mpi"
        assert dist.get_process_group_ranks(group) == list(pair)
        assert total(group, comm.rank) == sum(pair)
    for group in groups:
        dist.destroy_process_group(group)


def test_only_members_take_part(comm):
    if comm.rank == 0:
        group = dist.new_group([0], use_local_synchronization=True)
        assert total(group) == 1
        dist.destroy_process_group(group)
    everybody = dist.new_group()
    names = [None] * comm.size
    dist.all_gather_object(names, everybody.group_name)
    assert len(set(names)) == 1  # gloo and others meet under it; torch counts groups to make it
    outside = dist.new_group([comm.size - 1])
    assert (outside == dist.GroupMember.NON_GROUP_MEMBER) == (comm.rank != comm.size - 1)
    assert total(everybody) == comm.size
    dist.destroy_process_group(everybody)
    if comm.rank == comm.size - 1:
        dist.destroy_process_group(outside)


def test_members_in_another_order(comm):
    ranks = list(reversed(range(comm.size)))
    group = dist.new_group(ranks)
    assert dist.get_rank(group) == comm.rank  # torch sorts them
    found = [torch.zeros(1) for _ in ranks]
    dist.all_gather(found, torch.full((1,), float(comm.rank)), group=group)
    assert [one.item() for one in found] == list(range(comm.size))
    dist.destroy_process_group(group)


@pytest.mark.limit_s(120)
def test_three_hundred_groups_again_and_again(comm):
    """MPI libraries have some thousand contexts, and less if they are not given back."""
    for _ in range(3):
        groups = [dist.new_group() for _ in range(300)]
        assert total(groups[0]) == total(groups[-1]) == comm.size
        for group in groups:
            dist.destroy_process_group(group)
    assert total(None) == comm.size


def test_subgroups_and_split(comm):
    if comm.size == 4:
        mine, groups = dist.new_subgroups(2)
        assert dist.get_process_group_ranks(mine) == [comm.rank // 2 * 2, comm.rank // 2 * 2 + 1]
        assert total(mine, comm.rank) == 2 * (comm.rank // 2 * 2) + 1
        inner = dist.split_group(mine, [[0], [1]])
        assert dist.get_world_size(inner) == 1
        dist.destroy_process_group(inner)
        for group in groups:
            if group != dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(group)
    parts = [[rank for rank in range(comm.size) if rank % 2 == odd] for odd in range(min(2, comm.size))]
    group = dist.split_group(split_ranks=parts)
    assert dist.get_backend(group) == "mpi"
    assert total(group, comm.rank) == sum(parts[comm.rank % 2])
    dist.destroy_process_group(group)
    left_out = dist.split_group(split_ranks=[[0]])
    assert (left_out is None) == (comm.rank != 0)
    if left_out is not None:
        dist.destroy_process_group(left_out)
    with pytest.raises(ValueError, match="duplicate"):
        dist.split_group(split_ranks=[[0, 0]])


def test_gloo_beside_it_over_the_same_store(comm):
    group = dist.new_group(backend="gloo")
    assert total(group) == comm.size
    dist.monitored_barrier(group, timeout=timedelta(seconds=20))
    dist.destroy_process_group(group)
    store = dist.distributed_c10d._get_default_store()
    store.set(f"key {comm.rank}", str(comm.rank))
    assert store.get(f"key {comm.size - 1}") == str(comm.size - 1).encode()


def test_device_pairs(comm):
    group = dist.new_group(backend="cpu:mpi,cuda:gloo")
    assert dist.get_backend_config(group) == "cpu:mpi,cuda:gloo"
    assert {device.type for device in group._device_types} == {"cpu", "cuda"}
    assert group._get_backend(torch.device("cuda")).name() == "gloo"
    assert group._get_backend(torch.device("cpu")) is group
    assert total(group) == comm.size
    dist.destroy_process_group(group)


def test_own_name(comm):
    group = dist.new_group(backend="hpccoll")
    assert dist.get_backend(group) == "hpccoll"
    assert total(group) == comm.size
    dist.destroy_process_group(group)


def test_threads_on_different_groups(comm):
    groups = [dist.new_group() for _ in range(4)]
    found = [[] for _ in groups]

    def work(index):
        for step in range(20):
            found[index].append(total(groups[index], index * step))

    threads = [threading.Thread(target=work, args=[index]) for index in range(len(groups))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, values in enumerate(found):
        assert values == [comm.size * index * step for step in range(20)]
    for group in groups:
        dist.destroy_process_group(group)


def test_monitored_barrier(comm):
    dist.monitored_barrier(timeout=timedelta(seconds=20))
    group = dist.new_group()
    if comm.size > 1 and comm.rank != 1:
        expected = (
            "Rank 1 failed to pass monitoredBarrier in 200 ms" if comm.rank == 0 else "waiting for send/recv"
        )
        with pytest.raises(RuntimeError, match=expected):
            dist.monitored_barrier(group, timeout=timedelta(seconds=0.2))
    dist.barrier()
    dist.destroy_process_group(group)


def test_a_group_that_was_destroyed_says_so(comm):
    group = dist.new_group()
    dist.destroy_process_group(group)
    with pytest.raises(RuntimeError, match="destroyed"):
        group.allreduce([torch.ones(1)])
    with pytest.raises(
        ValueError, match=r"not initialized in the world group map|Invalid process group|not registered"
    ):
        dist.all_reduce(torch.ones(1), group=group)


def test_destroyed_with_work_pending(comm):
    group = dist.new_group()
    x = torch.full((1 << 16,), 1.0)
    work = dist.all_reduce(x, group=group, async_op=True)
    dist.destroy_process_group(group)
    work.wait()
    assert x[-1].item() == comm.size
