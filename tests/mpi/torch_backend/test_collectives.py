"""dist.all_reduce and its like, in every form, against what the inputs of all ranks give without communication."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
MOVABLE = [
    torch.bool,
    *INTEGERS,
    *FLOATS,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
OPS = dist.ReduceOp


def rank_and_size():
    return dist.get_rank(), dist.get_world_size()


def block(rank, dtype=torch.float32, shape=(3, 2)):
    """What `rank` contributes: small whole numbers, which every dtype holds."""
    count = torch.Size(shape).numel()
    values = (torch.arange(count) * 3 + rank + 1) % 4
    return values.reshape(shape).to(torch.float32).to(dtype)


def blocks(dtype=torch.float32, shape=(3, 2)):
    return [block(rank, dtype, shape) for rank in range(dist.get_world_size())]


def same(found, expected):
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if found.dtype.itemsize == 1 and found.dtype.is_floating_point:
        found, expected = found.view(torch.uint8), expected.view(torch.uint8)
    assert torch.equal(found, expected), f"{found} != {expected}"


def reduced(op, inputs):
    """The reduction of all ranks' inputs; halves are added in float32 and rounded once."""
    dtype = inputs[0].dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    total = inputs[0].to(wide)
    combine = {
        OPS.SUM: torch.add, OPS.AVG: torch.add, OPS.PRODUCT: torch.mul, OPS.MIN: torch.minimum,
        OPS.MAX: torch.maximum, OPS.BAND: torch.bitwise_and, OPS.BOR: torch.bitwise_or, OPS.BXOR: torch.bitwise_xor,
    }[op]  # fmt: skip
    for other in inputs[1:]:
        total = combine(total, other.to(wide))
    if op == OPS.AVG:
        if dtype.is_complex:  # torch would multiply by an inexact 1 / n
            return torch.view_as_complex(torch.view_as_real(total) / len(inputs))
        total = total / len(inputs)
    return total.to(dtype)


ARITHMETIC = [OPS.SUM, OPS.PRODUCT, OPS.MIN, OPS.MAX]
CASES = [(dtype, op) for dtype in INTEGERS for op in (*ARITHMETIC, OPS.BAND, OPS.BOR, OPS.BXOR)]
CASES += [(dtype, op) for dtype in FLOATS for op in (*ARITHMETIC, OPS.AVG)]
CASES += [(dtype, op) for dtype in (torch.complex64, torch.complex128) for op in (OPS.SUM, OPS.AVG)]
CASES += [(torch.bool, op) for op in (OPS.SUM, OPS.PRODUCT, OPS.MIN, OPS.MAX, OPS.BAND, OPS.BOR)]


def of_bool(op, inputs):
    combine = torch.all if op in (OPS.PRODUCT, OPS.MIN, OPS.BAND) else torch.any
    return combine(torch.stack(inputs), dim=0)


@pytest.mark.parametrize(("dtype", "op"), CASES, ids=lambda v: str(v).rpartition(".")[2])
def test_reductions_of_every_dtype_and_op(dtype, op):
    rank, size = rank_and_size()
    expected = (of_bool if dtype == torch.bool else reduced)(op, blocks(dtype))
    x = block(rank, dtype)
    dist.all_reduce(x, op)
    same(x, expected)
    x = block(rank, dtype)
    assert dist.all_reduce(x, op, async_op=True).wait()
    same(x, expected)
    root = size - 1
    x = block(rank, dtype)
    dist.reduce(x, root, op)
    same(x, expected if rank == root else block(rank, dtype))
    whole = torch.cat([block(rank, dtype, (2,)) for _ in range(size)])
    part = torch.empty(2, dtype=dtype)
    dist.reduce_scatter_tensor(part, whole, op)
    same(part, (of_bool if dtype == torch.bool else reduced)(op, blocks(dtype, (2,))))


@pytest.mark.parametrize("dtype", MOVABLE, ids=str)
def test_movements_of_every_dtype(dtype):
    rank, size = rank_and_size()
    everything = blocks(dtype)
    for root in range(size):
        x = block(rank, dtype)
        dist.broadcast(x, root)
        same(x, everything[root])
        found = [torch.empty_like(x) for _ in range(size)] if rank == root else None
        dist.gather(block(rank, dtype), found, root)
        if rank == root:
            for one, expected in zip(found, everything, strict=True):
                same(one, expected)
        dist.scatter(x, everything if rank == root else None, root)
        same(x, everything[rank])
    found = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(found, block(rank, dtype))
    for one, expected in zip(found, everything, strict=True):
        same(one, expected)
    joined = torch.empty((3 * size, 2), dtype=dtype)
    dist.all_gather_into_tensor(joined, block(rank, dtype))
    same(joined.view(torch.uint8), torch.cat([one.view(torch.uint8) for one in everything]))
    dist.all_to_all(found, [block(rank, dtype) for _ in range(size)])
    for one, expected in zip(found, everything, strict=True):
        same(one, expected)
    found = torch.empty((size, 2), dtype=dtype)
    dist.all_to_all_single(found, torch.stack([block(rank + 2 * to, dtype, (2,)) for to in range(size)]))
    same(found, torch.stack([block(source + 2 * rank, dtype, (2,)) for source in range(size)]))


def test_premultiplied_sum():
    rank, _ = rank_and_size()
    x = block(rank)
    dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
    same(x, sum(one * 0.5 for one in blocks()))
    whole = torch.cat([block(rank, shape=(2,)) for _ in range(dist.get_world_size())])
    before = whole.clone()
    part = torch.empty(2)
    dist.reduce_scatter_tensor(part, whole, dist._make_nccl_premul_sum(2.0))
    same(part, sum(one * 2 for one in blocks(shape=(2,))))
    same(whole, before)


LAYOUTS = {
    "transposed": lambda x: x.t().contiguous().t(),
    "strided": lambda x: torch.stack([x, x], dim=-1)[..., 0],
    "offset": lambda x: torch.cat([torch.zeros(1), x.reshape(-1)])[1:].view(x.shape),
    "column-major": lambda x: x.clone().as_strided(x.shape, (1, x.shape[0])).copy_(x),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("is_async", [False, True])
def test_memory_layouts(layout, is_async):
    rank, size = rank_and_size()
    arrange = LAYOUTS[layout]

    def done(work):
        if is_async:
            work.wait()

    x = arrange(block(rank))
    done(dist.all_reduce(x, async_op=is_async))
    same(x, reduced(OPS.SUM, blocks()))
    x = arrange(block(rank))
    done(dist.broadcast(x, size - 1, async_op=is_async))
    same(x, block(size - 1))
    found = [arrange(torch.zeros(3, 2)) for _ in range(size)]
    done(dist.all_gather(found, arrange(block(rank)), async_op=is_async))
    for one, expected in zip(found, blocks(), strict=True):
        same(one, expected)
    part = arrange(torch.zeros(3, 2))
    done(dist.reduce_scatter(part, [arrange(block(rank)) for _ in range(size)], async_op=is_async))
    same(part, reduced(OPS.SUM, blocks()))
    done(dist.all_to_all(found, [arrange(block(rank)) for _ in range(size)], async_op=is_async))
    for one, expected in zip(found, blocks(), strict=True):
        same(one, expected)
    part = arrange(torch.zeros(3, 2))
    done(dist.scatter(part, [arrange(one) for one in blocks()] if rank == 0 else None, 0, async_op=is_async))
    same(part, block(rank))
    if layout != "column-major":
        together = arrange(torch.zeros(3 * size, 2))
        done(dist.all_gather_into_tensor(together, arrange(block(rank)), async_op=is_async))
        same(together, torch.cat(blocks()))
        done(dist.all_to_all_single(together, arrange(torch.cat([block(rank)] * size)), async_op=is_async))
        same(together, torch.cat(blocks()))


@pytest.mark.parametrize("shape", [(0,), (0, 3), ()])
def test_empty_and_zero_dimensional(shape):
    rank, size = rank_and_size()
    x = torch.full(shape, float(rank + 1))
    dist.all_reduce(x)
    same(x, torch.full(shape, size * (size + 1) / 2))
    found = [torch.zeros(shape) for _ in range(size)]
    dist.all_gather(found, torch.full(shape, float(rank)))
    for source, one in enumerate(found):
        same(one, torch.full(shape, float(source)))
    dist.broadcast(x, 0)
    dist.reduce(x, 0)
    part = torch.zeros(shape)
    dist.reduce_scatter(part, [torch.full(shape, float(rank))] * size)
    same(part, torch.full(shape, size * (size - 1) / 2))
    dist.gather(x, found if rank == 0 else None, 0)
    dist.scatter(part, [x] * size if rank == 0 else None, 0)
    dist.all_to_all(found, [torch.full(shape, float(rank))] * size)


def test_uneven_all_gather_and_reduce_scatter():
    rank, size = rank_and_size()
    found = [torch.zeros(source, 2) for source in range(size)]  # rank 0 has nothing
    dist.all_gather(found, torch.full((rank, 2), float(rank)))
    for source, one in enumerate(found):
        same(one, torch.full((source, 2), float(source)))
    part = torch.zeros(rank, 2)
    dist.reduce_scatter(part, [torch.full((to, 2), float(to + rank)) for to in range(size)])
    same(part, torch.full((rank, 2), float(rank * size + size * (size - 1) // 2)))


def test_uneven_all_to_all_with_empty_parts():
    rank, size = rank_and_size()
    # Rank i sends j rows to rank j when i is even, none when it is odd.
    sent = [to if rank % 2 == 0 else 0 for to in range(size)]
    expected = [rank if source % 2 == 0 else 0 for source in range(size)]
    found = torch.zeros(sum(expected), 2)
    for is_async in (False, True):
        given = torch.full((sum(sent), 2), float(rank))
        work = dist.all_to_all_single(found, given, expected, sent, async_op=is_async)
        if is_async:
            work.wait()
        rows = [torch.full((count, 2), float(source)) for source, count in enumerate(expected)]
        same(found, torch.cat(rows) if rows else found)
        found.zero_()
    parts = [torch.zeros(count) for count in expected]
    dist.all_to_all(parts, [torch.full((count,), float(rank)) for count in sent])
    for source, part in enumerate(parts):
        same(part, torch.full((expected[source],), float(source)))


def test_coalesced_forms():
    rank, size = rank_and_size()
    for big in (4, 1 << 17):  # joined, and one after the other
        tensors = [torch.full((big,), float(rank)), torch.full((3,), float(rank + 1))]
        with pytest.warns(FutureWarning):
            dist.all_reduce_coalesced(tensors)
        same(tensors[0], torch.full((big,), size * (size - 1) / 2))
        same(tensors[1], torch.full((3,), size * (size + 1) / 2))
    mixed = [torch.ones(2), torch.ones(2, dtype=torch.bfloat16)]
    dist.group.WORLD.allreduce_coalesced(mixed).wait()
    assert [one.tolist() for one in mixed] == [[size, size]] * 2
    for is_async in (False, True):
        tensors = [torch.full((2,), float(rank)) for _ in range(3)]
        with dist.distributed_c10d._coalescing_manager(async_ops=is_async) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        manager.wait()
        for tensor in tensors:
            same(tensor, torch.full((2,), size * (size - 1) / 2))
        wholes, parts = [torch.zeros(2 * size) for _ in range(2)], [torch.zeros(2) for _ in range(2)]
        with dist.distributed_c10d._coalescing_manager(async_ops=is_async) as manager:
            for whole in wholes:
                dist.all_gather_into_tensor(whole, torch.full((2,), float(rank)))
        manager.wait()
        with dist.distributed_c10d._coalescing_manager(async_ops=is_async) as manager:
            for whole, part in zip(wholes, parts, strict=True):
                dist.reduce_scatter_tensor(part, whole)
        manager.wait()
        for whole, part in zip(wholes, parts, strict=True):
            same(whole, torch.arange(size).repeat_interleave(2).float())
            same(part, torch.full((2,), float(rank * size)))
    with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        x = torch.full((2,), float(rank))
        dist.broadcast(x, 0, async_op=True)
    manager.wait()
    same(x, torch.zeros(2))


def test_objects():
    rank, size = rank_and_size()
    found = [None] * size
    dist.all_gather_object(found, {"rank": rank, "text": "x" * rank})
    assert found == [{"rank": source, "text": "x" * source} for source in range(size)]
    given = ["a", {"b": 2}, [rank]] if rank == 0 else [None] * 3
    dist.broadcast_object_list(given, 0)
    assert given == ["a", {"b": 2}, [0]]
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(("from", rank), gathered, 0)
    assert rank or gathered == [("from", source) for source in range(size)]
    mine = [None]
    dist.scatter_object_list(mine, [{"to": to} for to in range(size)], 0)
    assert mine == [{"to": rank}]


def test_sparse_all_reduce():
    rank, size = rank_and_size()
    for hybrid in (False, True):
        dense = torch.zeros(4, 3)
        dense[rank % 4] = rank + 1.0
        dense[0, 1] = 5.0
        x = dense.to_sparse(1) if hybrid else dense.to_sparse()
        dist.all_reduce(x)
        expected = torch.zeros(4, 3)
        for source in range(size):
            one = torch.zeros(4, 3)
            one[source % 4] = source + 1.0
            one[0, 1] = 5.0
            expected += one
        same(x.to_dense(), expected)
    with pytest.raises(ValueError, match=r"only works with ReduceOp.SUM"):
        dist.all_reduce(x, OPS.MAX)
    with pytest.raises(ValueError, match="unsupported layout"):
        dist.all_reduce(torch.eye(3).to_sparse_csr())


def test_order_is_kept_when_synchronous_and_asynchronous_calls_mix():
    rank, size = rank_and_size()
    x = torch.full((1 << 16,), float(rank + 1))
    works = [dist.all_reduce(x, OPS.MAX, async_op=True)]
    works += [dist.all_reduce(x, async_op=True) for _ in range(3)]
    dist.all_reduce(x)  # behind the four
    assert all(work.is_completed() for work in works)
    same(x, torch.full((1 << 16,), float(size) ** 5))


def test_futures_complete_without_a_wait():
    rank, size = rank_and_size()
    x = torch.full((4,), float(rank + 1))
    total = dist.all_reduce(x, async_op=True).get_future().then(lambda future: future.value()[0].sum().item())
    assert total.wait() == 2 * size * (size + 1)
    found = [torch.zeros(2) for _ in range(size)]
    work = dist.all_gather(found, torch.full((2,), float(rank)), async_op=True)
    values = work.get_future().wait()  # the copies into the list are made by then
    for source, one in enumerate(found):
        same(one, torch.full((2,), float(source)))
        same(values[source], one)
    done = dist.group.WORLD.allreduce([x], _synchronous())
    assert done.is_completed() and done.is_success() and done.get_future().done()


def _synchronous():
    options = dist.AllreduceOptions()
    options.asyncOp = False
    return options


def test_tensors_stay_alive_until_the_operation_is_complete():
    rank, size = rank_and_size()
    works = []
    for _ in range(20):
        x = torch.full((1 << 14,), float(rank))
        works.append(dist.all_reduce(x, async_op=True))
        del x
        torch.full((1 << 14,), -1.0)  # would take the memory over
    for work in works:
        same(work.result()[0], torch.full((1 << 14,), size * (size - 1) / 2))
