"""Two ranks of torch.distributed, of which rank 1 does not come to the last all_reduce."""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import hpccoll.torch_backend  # noqa: F401

if sys.argv[1] == "default":
    torch.distributed.distributed_c10d.default_pg_timeout = timedelta(seconds=1.5)
limit = {"timeout": timedelta(seconds=1.5)} if sys.argv[1] == "own" else {}
dist.init_process_group("mpi", **limit)
x = torch.ones(8)
dist.all_reduce(x)
group = dist.new_group([0, 1])
dist.broadcast(x, 0, group=group)


def step() -> None:
    if sys.argv[1] == "async":
        dist.all_reduce(x, async_op=True).wait()
    else:
        dist.all_reduce(x)


if dist.get_rank() == 0:
    try:
        step()
    except dist.DistBackendError:
        sys.stdout.write(f"dumped {os.listdir(os.environ['HPCCOLL_DUMP_DIR'])}\n")
        raise
time.sleep(60)
