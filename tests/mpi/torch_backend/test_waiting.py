"""How a rank waits: groups that sleep, beside those that spin, and how the ranks agree on it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import hpccoll
from hpccoll.torch_backend import waiting

BIG = waiting.SLEEP_FROM_BYTES // 4


@pytest.fixture
def sleeping(comm, monkeypatch):
    """A group as it is where waiting for the network would cost computing time."""
    if comm.size == 1:
        pytest.skip("needs another rank")
    monkeypatch.setenv(waiting.VARIABLE, "sleep" if comm.rank == 0 else "")
    monkeypatch.setattr(waiting, "_way", None)
    waiting.decide(hpccoll.world())
    group = dist.new_group()
    assert type(group.base_communicator).__name__ == "_Sleeping"
    yield group
    dist.destroy_process_group(group)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("count", [3, BIG - 1, BIG, 5 * BIG])
def test_every_collective(comm, sleeping, count, is_async):
    """Around the limit; a rank may call synchronously what another one calls asynchronously."""
    rank, size, group = comm.rank, comm.size, sleeping
    is_async = is_async and rank > 0

    def done(work):
        if is_async:
            work.wait()

    def same(x, value):
        assert torch.equal(x, torch.full_like(x, value))

    total = size * (size + 1) / 2
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.full((count,), rank + 1.0, dtype=dtype)
        done(dist.all_reduce(x, group=group, async_op=is_async))
        same(x, total)
    x = torch.full((count,), rank + 1.0)
    done(dist.reduce(x, size - 1, group=group, async_op=is_async))
    same(x, total if rank == size - 1 else rank + 1)
    done(dist.broadcast(x, size - 1, group=group, async_op=is_async))
    same(x, total)
    whole = torch.zeros(size, count)
    done(
        dist.all_gather_into_tensor(whole, torch.full((count,), float(rank)), group=group, async_op=is_async)
    )
    for source in range(size):
        same(whole[source], source)
    part = torch.zeros(count)
    done(dist.reduce_scatter_tensor(part, whole, group=group, async_op=is_async))
    same(part, rank * size)
    other = torch.zeros(size, count)
    done(
        dist.all_to_all_single(other, torch.full((size, count), float(rank)), group=group, async_op=is_async)
    )
    for source in range(size):
        same(other[source], source)
    uneven = [torch.zeros(count + source) for source in range(size)]
    done(dist.all_gather(uneven, torch.full((count + rank,), float(rank)), group=group, async_op=is_async))
    for source in range(size):
        same(uneven[source], source)
    sent = [torch.full((count if to == 0 else 1,), float(rank)) for to in range(size)]
    found = [torch.zeros(count if rank == 0 else 1) for _ in range(size)]
    done(dist.all_to_all(found, sent, group=group, async_op=is_async))
    for source in range(size):
        same(found[source], source)


def test_spins_on_one_node(comm, monkeypatch):
    monkeypatch.delenv(waiting.VARIABLE, raising=False)
    monkeypatch.setattr(waiting, "_way", None)
    waiting.decide(hpccoll.world())
    mpi = hpccoll.world().mpi
    assert waiting.communicator(mpi) is mpi


def test_wrong_word_on_one_rank_is_told_on_all(comm, monkeypatch):
    monkeypatch.setenv(waiting.VARIABLE, "doze" if comm.rank == comm.size - 1 else "")
    monkeypatch.setattr(waiting, "_way", None)
    with pytest.raises(ValueError, match=r'HPCCOLL_TORCH_WAIT must be "spin" or "sleep"'):
        waiting.decide(hpccoll.world())
