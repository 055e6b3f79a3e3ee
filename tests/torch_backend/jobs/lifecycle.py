"""Ways for a program to begin and end: ``mpirun -n N python lifecycle.py SCENARIO``.

The programs are written as a user would, without hpccoll: test_lifecycle.py says what has to come of each.
"""

import os
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
    import hpccoll.torch_backend  # noqa: F401


def plain():
    dist.init_process_group("mpi")
    x = torch.ones(1)
    dist.all_reduce(x)
    print(
        f"rank {dist.get_rank()} of {dist.get_world_size()}: {x.item():g} by {dist.get_backend()}", flush=True
    )
    dist.destroy_process_group()


def by_every_name():
    """Made and destroyed again and again, by every name."""
    for name in ("mpi", "MPI", "cpu:mpi", "hpccoll", "cpu:hpccoll", "cpu:mpi,cuda:gloo", "mpi"):
        dist.init_process_group(name)
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == dist.get_world_size()
        assert dist.get_backend() == name.lower(), (dist.get_backend(), name)
        dist.destroy_process_group()
    dist.init_process_group("hpccoll", init_method="mpi://")
    dist.destroy_process_group()
    print(f"rank done after {len(sys.argv)}", flush=True)


def gloo_over_mpi():
    forbidden = {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"} & set(os.environ)
    assert not forbidden, forbidden
    dist.init_process_group("gloo", init_method="mpi://")
    x = torch.ones(1)
    dist.all_reduce(x)
    group = dist.new_group(backend="mpi")  # over the same ranks
    dist.all_reduce(x, group=group)
    print(f"rank {dist.get_rank()}: {x.item():g} by {dist.get_backend()}", flush=True)
    dist.destroy_process_group()


def groups_alive():
    """Ends with groups that nobody destroys."""
    dist.init_process_group("mpi")
    groups = [dist.new_group([0, 1]), dist.new_group()]
    dist.all_reduce(torch.ones(1), group=groups[1])
    print("end", flush=True)


def work_pending():
    """Ends while operations are under way, with and without a call to destroy_process_group."""
    dist.init_process_group("mpi")
    works = [dist.all_reduce(torch.ones(1 << 20), async_op=True) for _ in range(5)]
    dist.irecv(torch.zeros(1), (dist.get_rank() + 1) % dist.get_world_size())
    if sys.argv[2:] == ["destroy"]:
        dist.destroy_process_group()
    print(f"end of {len(works)}", flush=True)


def nobody_joins():
    """Ends with an operation under way that no other rank will ever call."""
    dist.init_process_group("mpi")
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1), async_op=True)
    print("end", flush=True)


def one_raises():
    dist.init_process_group("mpi")
    if dist.get_rank() == 1:
        raise ValueError("rank 1 is broken")
    dist.all_reduce(torch.ones(1))
    print("never here", flush=True)


def one_raises_in_a_thread():
    dist.init_process_group("mpi")
    if dist.get_rank() == 1:
        threading.Thread(target=lambda: 1 / 0).start()
    dist.all_reduce(torch.ones(1))
    dist.barrier()
    time.sleep(30)


def exception_is_caught():
    """Goes on after a wrong call, and ends well."""
    dist.init_process_group("mpi")
    try:
        dist.all_reduce(torch.ones(1, dtype=torch.int32), dist.ReduceOp.AVG)
    except ValueError:
        print("caught", flush=True)
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


def times_out():
    """One rank does not come; the others' error ends the job."""
    dist.init_process_group("mpi", timeout=timedelta(seconds=1))
    if dist.get_rank() == 0:
        time.sleep(60)
    dist.all_reduce(torch.ones(3))


def times_out_and_goes_on():
    """One rank hangs; the others catch the error and leave with status 0."""
    dist.init_process_group("mpi", timeout=timedelta(seconds=1))
    if dist.get_rank() == 0:
        time.sleep(60)
    try:
        dist.all_reduce(torch.ones(3))
    except dist.DistBackendError as error:
        print(error, flush=True)
    dist.destroy_process_group()


def all_time_out_and_go_on():
    """Different calls on different ranks, all caught: nothing hangs at the end."""
    dist.init_process_group("mpi", timeout=timedelta(seconds=1))
    group = dist.new_group(timeout=timedelta(seconds=1))
    try:
        dist.all_reduce(torch.ones(3), group=group if dist.get_rank() else None)
    except dist.DistBackendError:
        print("caught", flush=True)
    if sys.argv[2:] == ["destroy"]:
        dist.destroy_process_group()


def default_limit():
    """torch's own limit, made short: the watcher ends the job."""
    from torch.distributed import distributed_c10d

    distributed_c10d.default_pg_timeout = timedelta(seconds=1)
    dist.init_process_group("mpi", timeout=timedelta(seconds=1))
    if dist.get_rank() == 0:
        time.sleep(60)
    if sys.argv[2:] == ["async"]:
        dist.all_reduce(torch.ones(3), async_op=True).wait()
    dist.all_reduce(torch.ones(3))


def workers():
    """DataLoader workers and a DistributedSampler."""
    import warnings

    from torch.utils.data import DataLoader, DistributedSampler

    dist.init_process_group("mpi")
    data = list(range(24))
    for context in ("fork", "forkserver"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            sampler = DistributedSampler(data, shuffle=True)
            sampler.set_epoch(1)
            seen = torch.cat(
                list(
                    DataLoader(
                        data, batch_size=3, sampler=sampler, num_workers=2, multiprocessing_context=context
                    )
                )
            )
        warned = any("forks after MPI has started" in str(one.message) for one in caught)
        assert warned == (context == "fork"), (context, [str(one.message) for one in caught])
        found = [torch.empty_like(seen) for _ in range(dist.get_world_size())]
        dist.all_gather(found, seen)
        assert sorted(torch.cat(found).tolist()) == data
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            os._exit(0 if "forked from an MPI rank" in str(error) else 2)
        os._exit(3)
    assert os.waitpid(child, 0)[1] == 0
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    print("workers done", flush=True)


def large():
    """More than 2**31 - 1 elements."""
    dist.init_process_group("mpi")
    rank, size = dist.get_rank(), dist.get_world_size()
    count = 2**31 + 8
    x = torch.full((count,), rank + 1, dtype=torch.int8)
    dist.all_reduce(x)
    assert x[0].item() == x[-1].item() == size * (size + 1) // 2
    x[-1] = rank
    dist.broadcast(x, size - 1)
    assert x[-1].item() == size - 1
    print("large done", flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
