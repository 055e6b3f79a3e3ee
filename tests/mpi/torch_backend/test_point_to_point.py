"""send, recv and their like."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist


@pytest.fixture
def ring():
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        pytest.skip("needs another rank")
    return rank, (rank + 1) % size, (rank - 1) % size


def test_send_and_recv(ring):
    rank, after, before = ring
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.complex64):
        x, y = torch.full((3,), rank + 1).to(dtype), torch.zeros(3, dtype=dtype)
        if rank == 0:
            dist.send(x, after)
            assert dist.recv(y, before) == before
        else:
            assert dist.recv(y, before) == before
            dist.send(x, after)
        assert torch.equal(y, torch.full((3,), before + 1).to(dtype))


def test_tags_are_told_apart(ring):
    rank, after, before = ring
    works = [dist.isend(torch.full((2,), float(10 * rank + tag)), after, tag=tag) for tag in (1, 2, 3)]
    for tag in (3, 1, 2):
        y = torch.zeros(2)
        dist.recv(y, before, tag=tag)
        assert y.tolist() == [10 * before + tag] * 2
    for work in works:
        work.wait()


def test_from_any_source():
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            y = torch.zeros(1)
            source = dist.recv(y)
            assert y.item() == source
            seen.add(source)
        assert seen == set(range(1, size))
        works = [(dist.irecv(y := torch.zeros(1)), y) for _ in range(size - 1)]
        dist.barrier()
        for work, y in works:
            work.wait()
            assert work._source_rank() == y.item()
    else:
        dist.send(torch.full((1,), float(rank)), 0)
        dist.barrier()
        dist.send(torch.full((1,), float(rank)), 0)


def test_non_contiguous_and_to_itself(ring):
    rank, after, before = ring
    x = torch.stack([torch.full((4,), float(rank)), torch.zeros(4)], dim=1)[:, 0]
    y = torch.zeros(4, 2)[:, 1]
    work = dist.irecv(y, before)
    dist.isend(x, after).wait()
    work.wait()
    assert y.tolist() == [before] * 4
    own = torch.zeros(1)
    works = [dist.isend(torch.full((1,), 7.0), rank), dist.irecv(own, rank)]
    for work in works:
        work.wait()
    assert own.item() == 7


def test_batch(ring):
    rank, after, before = ring
    y = torch.zeros(1 << 16)
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.full((1 << 16,), float(rank)), after),
            dist.P2POp(dist.irecv, y, before),
        ]
    ):
        work.wait()
    assert torch.equal(y, torch.full((1 << 16,), float(before)))


def test_future_of_a_receive(ring):
    rank, after, before = ring
    y = torch.zeros(2)
    future = dist.irecv(y, before).get_future()
    dist.send(torch.full((2,), float(rank)), after)
    assert future.wait()[0].tolist() == [before] * 2


def test_object_lists(ring):
    rank, _, _ = ring
    if rank == 0:
        dist.send_object_list([rank, "text"], 1)
    elif rank == 1:
        found = [None, None]
        dist.recv_object_list(found, 0)
        assert found == [0, "text"]


def test_ranks_of_a_subgroup(ring):
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group([0, size - 1])
    if rank == 0:
        dist.send(torch.ones(1), size - 1, group=group)
    elif rank == size - 1:
        y = torch.zeros(1)
        assert dist.recv(y, group=group) == 0
        assert y.item() == 1
    if rank in (0, size - 1):
        dist.destroy_process_group(group)
