"""The training of jobs/train_ddp.py: any number of ranks comes to what one process comes to."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from mpi_plugin import need

import hpccoll as hc

torch = need("torch")
need("sklearn")
sys.path.insert(0, str(Path(__file__).parents[2] / "jobs"))

from training import digits  # noqa: E402
from training.options import parse  # noqa: E402
from training.trainer import Trainer  # noqa: E402

CPU = torch.device("cpu")
WAYS = (
    [],
    ["--accumulate", "2"],
    ["--without-ddp"],
    ["--without-ddp", "--bucket-mb", "0.001", "--accumulate", "2"],
)


@pytest.fixture(scope="module", autouse=True)
def process_group():
    import torch.distributed as dist

    import hpccoll.torch_backend  # noqa: F401

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HPCCOLL_TORCH_ABORT", "0")  # the plugin reports the failures
        ours = not dist.is_initialized()
        if ours:
            dist.init_process_group("mpi")
        yield
        if ours:
            dist.destroy_process_group()


@pytest.fixture(scope="module")
def data(comm):
    return {name: digits.load(comm, getattr(torch, name), CPU) for name in ("float32", "float64")}


def parameters(trainer):
    return torch.cat([x.detach().reshape(-1) for x in trainer.model.parameters()])


def trained(options, comm, data, steps):
    trainer = Trainer(options, comm, data)
    for number in range(steps):
        trainer.step(number)
    found = parameters(trainer), trainer.digest(), trainer.evaluate()  # digest: the ranks have the same bits
    trainer.close()
    return found


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_like_one_process_after_100_steps(comm, data, way):
    """In float64, to 1e-10 of each parameter, which leaves room for the order of adding and for nothing else."""
    options = parse(["--dtype", "float64", "--hidden", "32", *way], "")
    alone = dataclasses.replace(options, without_ddp=True, backend=None, accumulate=1)
    found, digest, (accuracy, loss) = trained(options, comm, data["float64"], 100)
    expected, single_digest, (single_accuracy, single_loss) = trained(
        alone, hc.Comm(MPI.COMM_SELF), data["float64"], 100
    )
    assert torch.allclose(found, expected, rtol=1e-10, atol=1e-12), (found - expected).abs().max()
    assert accuracy == single_accuracy
    assert np.isclose(loss, single_loss, rtol=1e-10)
    assert len(set(comm.allgather_object(digest))) == 1
    if comm.size == 1 and options.accumulate == 1:
        assert digest == single_digest


def test_two_ways_the_same_bits(comm, data):
    """DDP over MPI and hpccoll.gradients, where halves and quarters are exact."""
    if comm.size not in (1, 2):
        pytest.skip("more ranks add up in an order that depends on the buckets")
    options = parse([], "")
    with_ddp = trained(options, comm, data["float32"], 50)[1]
    without = trained(dataclasses.replace(options, without_ddp=True), comm, data["float32"], 50)[1]
    assert with_ddp == without


def test_accuracy_and_going_on(comm, data):
    """0.95 of unseen digits; and from a saved state, in the middle of an epoch, to the same bits."""
    options = parse([], "")
    first = Trainer(options, comm, data["float32"])
    for number in range(400):
        if number == 217:
            kept = {name: _copy(part) for name, part in first.state().items()}
        first.step(number)
    accuracy, _ = first.evaluate()
    assert accuracy >= 0.95
    second = Trainer(options, comm, data["float32"])
    second.restore(kept)
    for number in range(217, 400):
        second.step(number)
    assert second.digest() == first.digest()


def test_replicas_that_differ_are_found(comm, data):
    if comm.size == 1:
        pytest.skip("needs 2 ranks")
    trainer = Trainer(parse(["--without-ddp"], ""), comm, data["float32"])
    if comm.rank == comm.size - 1:
        with torch.no_grad():
            next(trainer.model.parameters())[0, 0] += 1e-6
    with pytest.raises(RuntimeError, match=rf"of ranks \[{comm.size - 1}\] are no longer those of rank 0"):
        trainer.digest()
    trainer.close()


def _copy(part):
    """A state on its own, whatever the optimizer does next."""
    import copy

    return copy.deepcopy(part)


def test_bits_of_one_process_in_whole_numbers(comm):
    """DDP on a model whose every sum is exact: no order of adding can make a difference."""
    if comm.size not in (1, 2, 4):
        pytest.skip("a mean over 3 ranks is rounded")
    torch.manual_seed(3)
    x, y = torch.randint(-3, 4, (8, 3)).double(), torch.randint(-3, 4, (8, 2)).double()
    share = slice(comm.rank * 8 // comm.size, (comm.rank + 1) * 8 // comm.size)
    models = [torch.nn.Linear(3, 2, bias=False, dtype=torch.float64) for _ in range(2)]
    for model in models:
        torch.nn.init.zeros_(model.weight)
    forwards = (torch.nn.parallel.DistributedDataParallel(models[0]), models[1])
    for _ in range(6):
        for model, forward, part in zip(models, forwards, (share, slice(None)), strict=True):
            model.weight.grad = None
            ((forward(x[part]) - y[part]) ** 2).mean().backward()
            with torch.no_grad():
                model.weight -= model.weight.grad / 64
    assert torch.equal(models[0].weight, models[1].weight)
    assert models[0].weight.abs().sum() > 0
