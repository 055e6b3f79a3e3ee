"""What people train with, on the mpi backend, against the same computation in one process or over gloo.

mpirun -n 4 python tests/torch_backend/jobs/training.py
"""

from __future__ import annotations

import copy
import functools
import os
import shutil
import sys
import tempfile
import warnings

os.environ["HPCCOLL_TORCH_ABORT"] = "0"

import torch
import torch.distributed as dist
from checks import check, run
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hpccoll.torch_backend  # noqa: F401

warnings.simplefilter("ignore")  # torch's own deprecations
dist.init_process_group("mpi")
RANK, SIZE = dist.get_rank(), dist.get_world_size()


class Net(nn.Module):
    """Two layers, and one that takes part only where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.sometimes = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(4, 4)

    def forward(self, x, use_all=True):
        x = self.second(torch.relu(self.first(x)))
        return self.sometimes(x) if use_all else x


def net():
    torch.manual_seed(1)
    return Net()


def batches(steps=3, per_rank=4):
    torch.manual_seed(2)
    return [(torch.randn(per_rank * SIZE, 8), torch.randn(per_rank * SIZE, 4)) for _ in range(steps)]


def mine(x, per_rank=4):
    return x[RANK * per_rank : (RANK + 1) * per_rank]


def train(model, share, steps=None, after=lambda step: None, **kwargs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (x, y) in enumerate(steps or batches()):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(share(x), **kwargs), share(y)).backward()
        optimizer.step()
        after(step)
    return model


@functools.cache
def over_gloo():
    return dist.new_group(backend="gloo")


def whole(x):
    return x


def close(one, other, tolerance=1e-5):
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=tolerance, atol=tolerance), f"{name}: {(a - b).abs().max()}"


def equal_on_all_ranks(model):
    for parameter in model.parameters():
        found = [torch.empty_like(parameter) for _ in range(SIZE)]
        dist.all_gather(found, parameter.detach())
        assert all(torch.equal(one, parameter) for one in found)


@check
def data_parallel():
    for options in ({}, {"static_graph": True}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 0.0001}):
        model = DistributedDataParallel(net(), **options)
        train(model, mine)
        close(model.module, train(net(), whole))
        equal_on_all_ranks(model)


@check
def data_parallel_broadcasts_rank_0s_parameters_and_buffers():
    torch.manual_seed(RANK)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)))
    equal_on_all_ranks(model)
    model(mine(batches()[0][0]))
    model(mine(batches()[0][0]))
    found = [torch.empty(4) for _ in range(SIZE)]
    dist.all_gather(found, model.module[1].num_batches_tracked.float().expand(4).contiguous())
    assert all(torch.equal(one, found[0]) for one in found)


@check
def data_parallel_with_unused_parameters():
    model = DistributedDataParallel(net(), find_unused_parameters=True)
    train(model, mine, use_all=False)
    close(model.module, train(net(), whole, use_all=False))


@check
def data_parallel_without_synchronisation():
    model, alone = DistributedDataParallel(net()), net()
    steps = batches(2)
    with model.no_sync():
        nn.functional.mse_loss(model(mine(steps[0][0])), mine(steps[0][1])).backward()
    nn.functional.mse_loss(model(mine(steps[1][0])), mine(steps[1][1])).backward()
    for x, y in steps:
        nn.functional.mse_loss(alone(x), y).backward()
    for a, b in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-5)


@check
def data_parallel_join_with_uneven_inputs():
    def trained(group):
        model = DistributedDataParallel(net(), process_group=group)
        with model.join():
            train(model, mine, batches(RANK + 1))
        return model

    model = trained(dist.group.WORLD)
    close(model.module, trained(over_gloo()).module)
    equal_on_all_ranks(model)


@check
def data_parallel_hooks():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    def in_bfloat16(state, bucket):  # DDP refuses the hook itself, by its name, without NCCL
        return default_hooks.bf16_compress_hook(state, bucket)

    alone = train(net(), whole)
    for hook, tolerance in (
        (default_hooks.allreduce_hook, 1e-5),
        (default_hooks.fp16_compress_hook, 1e-2),
        (in_bfloat16, 5e-2),
        (default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), 1e-2),
    ):
        model = DistributedDataParallel(net())
        model.register_comm_hook(None, hook)
        train(model, mine)
        close(model.module, alone, tolerance)
        equal_on_all_ranks(model)

    def trained_with_power_sgd(group):
        model = DistributedDataParallel(net(), process_group=group)
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=4, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return train(model, mine, batches(6))

    model = trained_with_power_sgd(dist.group.WORLD)
    close(model.module, trained_with_power_sgd(over_gloo()).module)
    equal_on_all_ranks(model)


@check
def synchronised_batch_norm_is_for_devices_and_says_so():
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)))
    try:
        model(mine(batches()[0][0]))
        message = ""
    except ValueError as error:
        message = str(error)
    assert "SyncBatchNorm expected input tensor to be on" in message  # torch has no CPU kernel for it
    model.eval()(mine(batches()[0][0]))


@check
def fully_sharded():
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    for options in ({}, {"reshard_after_forward": False}):
        model = net()
        for layer in (model.first, model.second):
            fully_shard(layer, **options)
        fully_shard(model, **options)
        train(model, mine)
        alone = train(net(), whole)
        for (name, a), b in zip(model.named_parameters(), alone.parameters(), strict=True):
            assert torch.allclose(a.full_tensor(), b, atol=1e-5), name
    model = net()
    fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    train(model, lambda x: mine(x).to(torch.bfloat16))
    for a, b in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(a.full_tensor(), b, atol=5e-2)


@check
def fully_sharded_in_its_first_form():
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(net(), device_id=torch.device("cpu"))
    train(model, mine)
    with FullyShardedDataParallel.summon_full_params(model):
        close(model.module, train(net(), whole))


@check
def zero_redundancy_optimizer():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model, alone = DistributedDataParallel(net()), net()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    single = torch.optim.Adam(alone.parameters(), lr=0.01)
    for x, y in batches():
        for one, opt, share in ((model, optimizer, mine), (alone, single, whole)):
            opt.zero_grad()
            nn.functional.mse_loss(one(share(x)), share(y)).backward()
            opt.step()
    close(model.module, alone, 1e-4)
    optimizer.consolidate_state_dict(0)
    if RANK == 0:
        assert len(optimizer.state_dict()["state"]) == len(list(alone.parameters()))


@check
def tensor_parallel_on_a_mesh_of_two_dimensions():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    rows = 2 if SIZE % 2 == 0 else 1
    mesh = init_device_mesh("cpu", (rows, SIZE // rows), mesh_dim_names=("data", "tensor"))
    torch.manual_seed(3)
    full = torch.randn(12, 12)
    spread = distribute_tensor(full, mesh, [Shard(0), Shard(1)])
    assert torch.equal(spread.full_tensor(), full)
    assert torch.allclose((spread @ spread).full_tensor(), full @ full, atol=1e-4)
    assert torch.equal(spread.redistribute(mesh, [Shard(1), Replicate()]).full_tensor(), full)
    assert torch.allclose(spread.sum().full_tensor(), full.sum(), atol=1e-3)

    alone = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 4))
    model = copy.deepcopy(alone)
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = torch.randn(6, 8)
    y = model(x)
    assert torch.allclose(y, alone(x), atol=1e-5)
    y.sum().backward()
    alone(x).sum().backward()
    assert torch.allclose(model[0].weight.grad.full_tensor(), alone[0].weight.grad, atol=1e-4)


@check
def sharded_and_parallel_at_once():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    if SIZE % 2:
        return
    mesh = init_device_mesh("cpu", (SIZE // 2, 2), mesh_dim_names=("data", "tensor"))
    torch.manual_seed(4)
    alone = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 4))
    model = copy.deepcopy(alone)
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    part = RANK // 2

    def share(x):
        rows = x.shape[0] // (SIZE // 2)
        return x[part * rows : (part + 1) * rows]

    train(model, share)
    train(alone, whole)
    for a, b in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(a.full_tensor(), b, atol=1e-5)


@check
def functional_collectives():
    import torch.distributed._functional_collectives as functional

    group = dist.group.WORLD
    x = torch.full((SIZE, 2), float(RANK + 1))
    total = SIZE * (SIZE + 1) / 2
    assert torch.equal(functional.all_reduce(x, "sum", group), torch.full((SIZE, 2), total))
    assert torch.equal(functional.all_reduce(x, "avg", group), torch.full((SIZE, 2), total / SIZE))
    gathered = functional.all_gather_tensor(x[:1], 0, group)
    assert torch.equal(gathered, torch.arange(1.0, SIZE + 1)[:, None].expand(SIZE, 2))
    assert torch.equal(functional.reduce_scatter_tensor(x, "sum", 0, group), torch.full((1, 2), total))
    turned = functional.all_to_all_single(x, None, None, group)
    assert torch.equal(turned, gathered)
    assert torch.equal(functional.broadcast(x, 0, group), torch.ones(SIZE, 2))
    several = functional.all_reduce_coalesced([x, x + 1], "sum", group)
    assert torch.equal(several[1], torch.full((SIZE, 2), total + SIZE))
    parts = functional.reduce_scatter_tensor_coalesced([x, x], "sum", [0, 0], group)
    assert torch.equal(parts[1], torch.full((1, 2), total))
    wholes = functional.all_gather_into_tensor_coalesced([x[:1], x[:1]], group)
    assert torch.equal(wholes[0], gathered)
    shifted = functional.permute_tensor(x[:, 0], [(rank + 1) % SIZE for rank in range(SIZE)], group)
    assert torch.equal(shifted, torch.full((SIZE,), float((RANK - 1) % SIZE + 1)))


@check
def differentiable_collectives():
    from torch.distributed.nn import functional

    x = torch.full((2,), float(RANK + 1), requires_grad=True)
    functional.all_reduce(x).sum().backward()
    assert x.grad.tolist() == [SIZE, SIZE]
    x.grad = None
    functional.all_gather(x)[0].sum().backward()
    assert x.grad.tolist() == ([SIZE, SIZE] if RANK == 0 else [0, 0])


@check
def compiled():
    def step(x, weight):
        y = torch.tanh(x @ weight)
        dist.all_reduce(y)
        gathered = y.new_empty(y.shape[0] * SIZE, y.shape[1])
        dist.all_gather_into_tensor(gathered, y)
        return gathered * 2

    torch.manual_seed(RANK)
    x, weight = torch.randn(4, 8), torch.ones(8, 3)
    for backend in ("aot_eager", "inductor") if shutil.which("g++") else ("aot_eager",):
        torch._dynamo.reset()
        compiled = torch.compile(step, fullgraph=True, backend=backend)
        assert torch.allclose(compiled(x, weight), step(x, weight), atol=1e-5), backend


@check
def compiled_data_parallel():
    torch._dynamo.reset()
    model = torch.compile(DistributedDataParallel(net()), backend="aot_eager")
    train(model, mine)
    close(model, train(net(), whole))


@check
def checkpoints():
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.fsdp import fully_shard

    folder = [tempfile.mkdtemp()] if RANK == 0 else [None]
    dist.broadcast_object_list(folder, 0)
    model, other = net(), net()
    fully_shard(model)
    train(model, mine)
    checkpoint.save({"model": model.state_dict(), "step": 3}, checkpoint_id=folder[0])
    fully_shard(other)
    state = {"model": other.state_dict(), "step": 0}
    checkpoint.load(state, checkpoint_id=folder[0])
    assert state["step"] == 3
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a.full_tensor(), b.full_tensor())
    future = checkpoint.async_save({"model": model.state_dict()}, checkpoint_id=folder[0] + "/later")
    future.result()


@check
def rendezvous_over_the_groups_store():
    from torch.distributed import distributed_c10d

    store = distributed_c10d._get_default_store()
    assert store.add("counter", 1) >= 1
    dist.barrier()
    assert int(store.get("counter")) == SIZE


run(*sys.argv[1:])
