"""Check mode of process groups: every way in, the short cut of all_reduce included."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import hpccoll as hc

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.fixture(params=["torch's own limit", "a limit"])
def group(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("HPCCOLL_CHECK", "nan")
    made = dist.new_group(timeout=None if request.param == "torch's own limit" else timedelta(seconds=300))
    yield made
    dist.destroy_process_group(made)


def other() -> bool:
    return dist.get_rank() == dist.get_world_size() - 1


def ones(count: int, **kwargs: Any) -> Any:
    return torch.ones(count, **kwargs)


def into_list(group: Any, odd: bool) -> Any:
    blocks = [ones(4 if odd else 3) for _ in range(dist.get_world_size())]
    return dist.all_gather(blocks, blocks[0], group=group, async_op=True)


DIFFERENT = {
    "count": lambda g, odd: dist.all_reduce(ones(3 if odd else 4), group=g),
    "count ": lambda g, odd: dist.all_reduce(ones(3 if odd else 4), group=g, async_op=True),
    "dtype": lambda g, odd: dist.all_reduce(ones(4, dtype=torch.int32 if odd else torch.float32), group=g),
    "op": lambda g, odd: dist.all_reduce(ones(4), dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM, group=g),
    "root": lambda g, odd: dist.broadcast(ones(4), 1 if odd else 0, group=g),
    "the method": lambda g, odd: dist.barrier(group=g) if odd else dist.all_reduce(ones(4), group=g),
    "count  ": into_list,
}


@pytest.mark.parametrize("word", DIFFERENT)
def test_what_differs_raises_everywhere(group, word):
    def go() -> None:
        work = DIFFERENT[word](group, other())
        if work is not None:
            work.wait()

    with pytest.raises(
        RuntimeError, match=rf"the ranks differ in {word.strip()}\. Nothing has been sent"
    ) as caught:
        go()
    assert isinstance(caught.value, hc.MismatchError)
    texts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(texts, str(caught.value), group=group)
    assert set(texts) == {str(caught.value)}
    assert len(re.findall(r"\) at \S*torch_backend/test_checking\.py:\d+ in ", texts[0])) == 2
    if "method" in word:
        assert "all_reduce(float32[4], op=sum) at" in texts[0]  # torch's word, not Comm's


def test_nothing_has_been_sent(group):
    x = ones(3 if other() else 4)
    with pytest.raises(hc.MismatchError):
        dist.all_reduce(x, group=group)
    assert bool((x == 1).all())


def test_the_rank_with_a_nan_is_named(group):
    x = ones(4)
    if other():
        x[2] = torch.nan
    with pytest.raises(
        hc.NotFiniteError, match=rf"rank {dist.get_world_size() - 1}: all_reduce\(.*nan at \[2\]"
    ):
        dist.all_reduce(x, group=group)


def test_what_is_right_passes(group):
    size = dist.get_world_size()
    x = ones(4)
    dist.all_reduce(x, group=group)
    assert x.tolist() == [size] * 4
    blocks = [torch.empty(rank + 1) for rank in range(size)]
    dist.all_gather(blocks, torch.full((dist.get_rank() + 1,), 2.0), group=group)
    assert [block.tolist() for block in blocks] == [[2.0] * (rank + 1) for rank in range(size)]
    mine = [torch.full((dist.get_rank() + 1,), 3.0) for _ in range(size)]
    dist.all_to_all(blocks, mine, group=group)
    assert blocks[-1].tolist() == [3.0] * size
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, "x" * dist.get_rank(), group=group)
    assert objects == ["x" * rank for rank in range(size)]
    scattered: list[Any] = [None]
    dist.scatter_object_list(scattered, [*range(size)] if dist.get_rank() == 0 else None, group=group)
    assert scattered == [dist.get_rank()]


def test_gradients_of_a_model(group):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    wrapped = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    for _ in range(3):
        wrapped(torch.ones(2, 4)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_without_a_wish_the_short_cut_stays(process_group):
    assert process_group._plain and process_group._comm._check is None
