"""Ranges in the profiler, named like those of torch's own backends."""

from __future__ import annotations

import torch
import torch.distributed as dist


def test_every_operation_has_a_range():
    rank, size = dist.get_rank(), dist.get_world_size()
    x, whole = torch.ones(2, 3), torch.ones(2 * size, 3)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, acc_events=True
    ) as profile:
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).wait()
        dist.broadcast(x, 0)
        dist.reduce(x, 0)
        dist.all_gather([torch.empty_like(x) for _ in range(size)], x)
        dist.all_gather_into_tensor(whole, x)
        dist.gather(x, [torch.empty_like(x) for _ in range(size)] if rank == 0 else None, 0)
        dist.scatter(x, [x] * size if rank == 0 else None, 0)
        dist.reduce_scatter_tensor(torch.empty_like(x), whole)
        dist.all_to_all_single(torch.empty_like(whole), whole)
        dist.barrier()
        work = dist.irecv(torch.empty_like(x), rank)
        dist.isend(x, rank).wait()
        work.wait()
    events = {}
    for event in profile.events():
        if event.name.startswith("mpi:"):
            events.setdefault(event.name.removeprefix("mpi:"), []).append(event)
    assert set(events) == {
        "all_reduce", "broadcast", "reduce", "all_gather", "_allgather_base", "gather", "scatter",
        "_reduce_scatter_base", "all_to_all", "barrier", "send", "recv",
    }  # fmt: skip
    assert len(events["all_reduce"]) == 2
    for event in events["all_reduce"]:
        assert event.input_shapes == [[2, 3]]
