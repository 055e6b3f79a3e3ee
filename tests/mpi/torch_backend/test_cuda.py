"""CUDA tensors, where there is a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def device():
    return torch.device("cuda", dist.get_rank() % torch.cuda.device_count())


@pytest.mark.parametrize("is_async", [False, True])
def test_on_the_right_device_and_stream(device, is_async):
    """The input comes from a kernel that is still running, on a stream of its own."""
    rank, size = dist.get_rank(), dist.get_world_size()
    stream = torch.cuda.Stream(device)
    with torch.cuda.device(device), torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        x = torch.full((1 << 16,), float(rank + 1), device=device)
        work = dist.all_reduce(x, async_op=is_async)
        if is_async:
            work.wait()
        assert x.device == device
        assert torch.equal(x.cpu(), torch.full((1 << 16,), size * (size + 1) / 2))
        found = [torch.zeros(3, device=device) for _ in range(size)]
        work = dist.all_gather(found, torch.full((3,), float(rank), device=device), async_op=is_async)
        if is_async:
            work.wait()
        assert [one[0].item() for one in found] == list(range(size))
        y = torch.full((4,), float(rank), device=device, dtype=torch.bfloat16)
        dist.broadcast(y, size - 1)
        assert y.tolist() == [size - 1] * 4


def test_future(device):
    size = dist.get_world_size()
    x = torch.ones(4, device=device)
    value = dist.all_reduce(x, async_op=True).get_future().wait()
    assert value[0].tolist() == [size] * 4


def test_messages(device):
    rank, size = dist.get_rank(), dist.get_world_size()
    y = torch.zeros(2, device=device)
    work = dist.irecv(y, (rank - 1) % size)
    dist.isend(torch.full((2,), float(rank), device=device), (rank + 1) % size).wait()
    work.wait()
    assert y.tolist() == [(rank - 1) % size] * 2
