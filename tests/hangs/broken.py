"""Programs with one fault each: ``mpirun -n 3 python broken.py NAME``.

What the guilty rank does last (or, if it is killed or stopped, what the others wait for it in) is marked with
``# <- here``: that is the line that the report has to name.
"""

import importlib
import os
import signal
import sys
import threading
import time

import numpy as np

import hpccoll as hc


def skips_a_collective(comm):
    x = np.ones(4)
    comm.allreduce(x)
    if comm.rank != 1:
        comm.allreduce(x, op="max")
    comm.allreduce(x, op="min")  # <- here


def swapped_order(comm):
    x, other = np.ones(4), comm.dup()
    if comm.rank == 2:
        other.allreduce(x)  # <- here
        comm.allreduce(x)
    else:
        comm.allreduce(x)
        other.allreduce(x)


def different_counts(comm):
    comm.barrier()
    if comm.rank == 1:
        comm.allreduce(np.ones(2))  # <- here
    else:
        comm.allreduce(np.ones(4))
    comm.barrier()


def different_dtypes(comm):
    comm.barrier()
    if comm.rank == 1:
        comm.allreduce(np.ones(4, "float32"))  # <- here
    else:
        comm.allreduce(np.ones(4, "float64"))
    comm.barrier()


def different_ops(comm):
    comm.barrier()
    if comm.rank == 1:
        comm.allreduce(np.ones(4), op="max")  # <- here
    else:
        comm.allreduce(np.ones(4))
    comm.barrier()


def different_roots(comm):
    comm.barrier()
    if comm.rank == 1:
        comm.broadcast(np.ones(4), root=1)  # <- here
    else:
        comm.broadcast(np.ones(4), root=0)
    comm.barrier()


def allreduce_against_broadcast(comm):
    x = np.ones(4)
    comm.barrier()
    if comm.rank == 2:
        comm.broadcast(x, root=2)  # <- here
    else:
        comm.allreduce(x)
    comm.barrier()


def sendrecv_cycle(comm):
    x = np.ones(4)
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    comm.recv(x, source=left)  # <- here
    comm.send(x, dest=right)


def receive_without_send(comm):
    x = np.ones(4)
    if comm.rank == 1:
        comm.recv(x, source=0, tag=7)  # <- here
    comm.barrier()


def tags_differ(comm):
    x = np.ones(4)
    if comm.rank == 0:
        comm.send(x, dest=1, tag=5)  # <- here
    elif comm.rank == 1:
        comm.recv(x, source=0, tag=7)  # <- here
    comm.barrier()


def raises(comm):
    comm.barrier()
    if comm.rank == 1:
        raise ValueError("a bad value")  # <- here
    comm.allreduce(np.ones(4))


def raises_in_a_thread(comm):
    def work():
        raise ValueError("a bad value in a thread")  # <- here

    comm.barrier()
    if comm.rank == 1:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        time.sleep(1000)
    comm.allreduce(np.ones(4))


def exits_early(comm):
    comm.barrier()
    if comm.rank == 1:
        comm.broadcast(np.ones(4), root=0)  # <- here
        sys.exit(0)
    comm.broadcast(np.ones(4), root=0)
    comm.allreduce(np.ones(4))


def is_killed(comm):
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.allreduce(np.ones(4))  # <- here


def is_stopped(comm):
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    comm.allreduce(np.ones(4))  # <- here


def loops_for_ever(comm):
    comm.barrier()
    number = 0
    while comm.rank == 1:  # <- here
        number += 1  # <- here (or above)
    comm.allreduce(np.ones(4))


def sleeps(comm):
    comm.barrier()
    if comm.rank == 1:
        time.sleep(1000)  # <- here
    comm.allreduce(np.ones(4))


def _torch():
    import torch
    import torch.distributed as dist

    dist.init_process_group("mpi")
    return torch, dist


def torch_skips_a_collective(comm):
    torch, dist = _torch()
    x = torch.ones(4)
    dist.all_reduce(x)
    if comm.rank != 1:
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
    dist.all_reduce(x, op=dist.ReduceOp.MIN)  # <- here


def torch_swapped_order(comm):
    torch, dist = _torch()
    x, other = torch.ones(4), dist.new_group([0, 1, 2])
    if comm.rank == 2:
        dist.all_reduce(x, group=other)  # <- here
        dist.all_reduce(x)
    else:
        dist.all_reduce(x)
        dist.all_reduce(x, group=other)


def torch_counts(comm):
    torch, dist = _torch()
    dist.barrier()
    if comm.rank == 1:
        dist.all_reduce(torch.ones(2))  # <- here
    else:
        dist.all_reduce(torch.ones(4))
    dist.barrier()


def torch_all_reduce_against_broadcast(comm):
    torch, dist = _torch()
    x = torch.ones(4)
    dist.barrier()
    if comm.rank == 2:
        dist.broadcast(x, 2)  # <- here
    else:
        dist.all_reduce(x)
    dist.barrier()


def torch_receive_cycle(comm):
    torch, dist = _torch()
    x = torch.ones(4)
    dist.recv(x, (comm.rank - 1) % comm.size)  # <- here
    dist.send(x, (comm.rank + 1) % comm.size)


def torch_raises(comm):
    torch, dist = _torch()
    dist.barrier()
    if comm.rank == 1:
        raise ValueError("a bad value")  # <- here
    dist.all_reduce(torch.ones(4))


def torch_exits_early(comm):
    torch, dist = _torch()
    dist.barrier()
    if comm.rank == 1:
        dist.broadcast(torch.ones(4), 0)  # <- here
        sys.exit(0)
    dist.broadcast(torch.ones(4), 0)
    dist.all_reduce(torch.ones(4))


def torch_loops_for_ever(comm):
    torch, dist = _torch()
    dist.barrier()
    number = 0
    while comm.rank == 1:  # <- here
        number += 1  # <- here (or above)
    dist.all_reduce(torch.ones(4))


def ddp_unused_parameter(comm):
    torch, dist = _torch()
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({name: torch.nn.Linear(4, 4) for name in ("one", "two")})

    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = model

        def forward(self, x, skip):
            x = self.parts["one"](x)
            return x if skip else self.parts["two"](x)

    ddp = torch.nn.parallel.DistributedDataParallel(Both(), bucket_cap_mb=1e-5)
    loss = ddp(torch.ones(2, 4), comm.rank == 1).sum()
    loss.backward()
    dist.barrier()  # <- here


def group_collective_by_a_non_member(comm):
    torch, dist = _torch()
    group = dist.new_group([0, 1])
    dist.barrier()
    if comm.rank in (0, 2):  # meant were 0 and 1
        dist.all_reduce(torch.ones(4), group=group)
    dist.barrier()  # <- here


def clean(comm):
    """100,000 operations of all kinds, on three communicators."""
    x, out = np.arange(16.0), np.empty(16)
    other, rows = comm.dup(), comm.split(0, -comm.rank)
    partner = (comm.rank + 1) % comm.size
    before = (comm.rank - 1) % comm.size
    rounds = int(os.environ["HPCCOLL_TEST_OPERATIONS"]) // 10
    for step in range(rounds):
        comm.allreduce(x, out=out)
        other.broadcast(x, root=step % comm.size)
        work = rows.allreduce(x, op="max", blocking=False)
        comm.barrier()
        comm.sendrecv(x, dest=partner, source=before, out=out)
        comm.allgather(x[:2])
        comm.reduce(x, root=step % comm.size)
        other.alltoall(x[: comm.size])
        if comm.rank % 2 == 0:
            other.send(x, dest=partner, tag=step % 100)
            other.recv(out, source=before, tag=step % 100)
        else:
            other.recv(out, source=before, tag=step % 100)
            other.send(x, dest=partner, tag=step % 100)
        work.wait(timeout_s=60)
    sys.stdout.write(f"clean {rounds * 10}\n")


if __name__ == "__main__":
    program = globals()[sys.argv[1]]
    if sys.argv[1].startswith(("torch", "ddp", "group")):
        importlib.import_module(
            "torch.distributed"
        )  # slower on some ranks than the limit allows, on a busy machine
    world = hc.world()
    world.barrier()  # all have started: from here on the limit holds
    with hc.timeout(float(os.environ["HPCCOLL_TEST_LIMIT_S"])):
        program(world)
