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
limit = {"timeout": timedelta(seconds=1.5)} if sys.argv[1] in ("own", "caught") else {}
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
        if sys.argv[1] == "own":
            raise
        other = os.path.join(os.environ["HPCCOLL_DUMP_DIR"], "rank000001.json")
        for _ in range(200):
            time.sleep(0 if os.path.exists(other) else 0.1)
        os._exit(5)
time.sleep(60)
