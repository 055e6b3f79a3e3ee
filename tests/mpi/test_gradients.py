"""hpccoll.gradients: broadcast, average, and the Averager beside a backward pass."""

from __future__ import annotations

import numpy as np
import pytest
from mpi_plugin import need

from hpccoll import ArgumentError, UnsupportedError, gradients

torch = need("torch")

SHAPES = ((3, 4), (), (5,), (0, 2), (7, 3), (2,))
DTYPES = ("float32", "float64", "float32", "complex64", "bfloat16", "float16")
BUCKETS = (1, 40, gradients.BUCKET_NBYTES)


def tensors(value, library):
    """One of each shape and dtype that the library has, small integers, so that sums are exact."""
    made = []
    for number, (shape, dtype) in enumerate(zip(SHAPES, DTYPES, strict=True)):
        if library == "numpy" and dtype == "bfloat16":
            dtype = "longdouble"
        values = np.arange(np.prod(shape, dtype=int)).reshape(shape) + number + value
        if library == "torch":
            made.append(torch.tensor(values, dtype=getattr(torch, dtype)))
        else:
            made.append(np.array(values, dtype))
    return made


def check(found, expected):
    assert len(found) == len(expected)
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert a.dtype == b.dtype and a.shape == b.shape, number
        assert bool((a == b).all()), f"tensor {number}: {a} instead of {b}"


def mean(comm, step=2):
    """Of ``step * rank`` over the ranks; whole for step 2."""
    return step * (comm.size - 1) // 2


@pytest.mark.parametrize("bucket_nbytes", BUCKETS)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_broadcast(comm, library, bucket_nbytes):
    for root in {0, comm.size - 1}:
        given = tensors(comm.rank, library)
        extra = np.arange(3) + comm.rank  # integers too: buffers count steps
        given.append(torch.from_numpy(extra) if library == "torch" else extra)
        gradients.broadcast(comm, given, root=root, bucket_nbytes=bucket_nbytes)
        check(given[:-1], tensors(root, library))
        assert given[-1].tolist() == [root, root + 1, root + 2]


def test_broadcast_of_a_model_and_of_strided_memory(comm):
    torch.manual_seed(comm.rank)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    turned = torch.full((3, 5), float(comm.rank)).t()
    gradients.broadcast(comm, [*model.parameters(), *model.buffers(), turned])
    torch.manual_seed(0)
    first = torch.nn.Linear(4, 3)
    assert torch.equal(model[0].weight, first.weight)
    assert model[0].weight.requires_grad
    assert turned.eq(0).all()


@pytest.mark.parametrize("bucket_nbytes", BUCKETS)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_average(comm, library, bucket_nbytes):
    given = tensors(2 * comm.rank, library)
    given.insert(2, None)
    found = gradients.average(comm, given, bucket_nbytes=bucket_nbytes)
    assert found[2] is None
    assert all(a is b for a, b in zip(found, given, strict=True))
    del found[2]
    check(found, tensors(mean(comm), library))


def test_average_of_strided_memory_and_of_nothing(comm):
    matrix = np.full((4, 6), 2.0 * comm.rank)
    tensor = torch.full((4, 6), 2.0 * comm.rank)
    gradients.average(comm, [matrix[:, ::2], tensor.t()])
    assert (matrix[:, ::2] == mean(comm)).all()
    assert (matrix[:, 1::2] == 2 * comm.rank).all()
    assert (tensor == mean(comm)).all()
    assert gradients.average(comm, []) == []
    assert gradients.average(comm, [None]) == [None]


@pytest.mark.parametrize("compress", ["bfloat16", "float16"])
def test_compress(comm, compress):
    """What travels is rounded, added in float32, and rounded once more."""
    dtype = getattr(torch, compress)
    terms = [torch.full((9,), 1 / 3 + rank) for rank in range(comm.size)]
    x = terms[comm.rank].clone()
    gradients.average(comm, [x], compress=compress)
    total = sum(term.to(dtype).float() for term in terms)
    expected = (total / comm.size).to(dtype).float()
    assert torch.allclose(x, expected, rtol=2**-7 if compress == "bfloat16" else 2**-10, atol=0)
    assert torch.equal(x, x.to(dtype).float())
    with pytest.raises(UnsupportedError, match="for real torch tensors"):
        gradients.average(comm, [np.ones(2)], compress=compress)


def test_averager_by_hand(comm):
    """Gradients in any order, another one on each rank; several steps; buckets of all sizes."""
    for bucket_nbytes in BUCKETS:
        for library in ("numpy", "torch"):
            with gradients.Averager(comm, tensors(0, library), bucket_nbytes=bucket_nbytes) as averager:
                for step in range(3):
                    given = tensors(2 * comm.rank + step, library)
                    order = np.random.default_rng(comm.rank + step).permutation(len(given))
                    for index in order:
                        averager.put(index, given[index])
                    times = averager.finish()
                    check(given, tensors(mean(comm) + step, library))
                    assert times is averager.times
                    assert times.busy_s > 0 and times.waited_s > 0


def test_a_gradient_that_no_rank_has(comm):
    with gradients.Averager(comm, [np.zeros(2), np.zeros(3)], bucket_nbytes=1000) as averager:
        for _ in range(2):
            x = np.full(3, 2.0 * comm.rank)
            averager.put(0, None)
            averager.put(1, x)
            averager.finish()
            assert (x == mean(comm)).all()


def test_a_gradient_that_one_rank_lacks(comm):
    """An error on every rank that names both, nothing is changed, and the next step works."""
    if comm.size == 1:
        pytest.skip("needs 2 ranks")
    last = comm.size - 1
    with gradients.Averager(comm, [np.zeros(2), np.zeros(3)], bucket_nbytes=8) as averager:
        x, y = np.full(2, 1.0 + comm.rank), np.full(3, 1.0 + comm.rank)
        if comm.rank != last:
            averager.put(1, y)
        averager.put(0, x)
        with pytest.raises(
            ArgumentError, match=rf"rank {last} has no gradient of tensor 1, .* and rank 0 has"
        ):
            averager.finish()
        assert (x == 1.0 + comm.rank).all() and (y == 1.0 + comm.rank).all()
        averager.put(0, x)
        averager.put(1, y)
        averager.finish()
        assert (x == 1 + (comm.size - 1) / 2).all() and (y == x[0]).all()
    gradient = None if comm.rank == last else np.ones(2)
    with pytest.raises(ArgumentError, match=f"tensor 1 is .* on rank 0 and None on rank {last}"):
        gradients.average(comm, [np.ones(1), gradient])


def net(seed=0, dtype=None):
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(8, 2)).to(dtype or torch.float32)


def batch(step, rows):
    torch.manual_seed(100 + step)
    return torch.randn(rows, 6), torch.randn(rows, 2)


@pytest.mark.parametrize("bucket_nbytes", [1, 200, gradients.BUCKET_NBYTES])
def test_training_like_one_process(comm, bucket_nbytes):
    """Hooks, accumulation, 100 steps: like one process with the whole batch, and the same bits on all ranks."""
    rows = 12 * comm.size
    model, alone = net(seed=comm.rank, dtype=torch.float64), net(dtype=torch.float64)
    gradients.broadcast(comm, model.parameters())
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (model, alone)]
    with gradients.Averager(comm, model.parameters(), bucket_nbytes=bucket_nbytes).attach() as averager:
        for step in range(100):
            x, y = (t.double() for t in batch(step, rows))
            mine = slice(comm.rank * 12, (comm.rank + 1) * 12)
            for optimizer in optimizers:
                optimizer.zero_grad()
            torch.nn.functional.mse_loss(alone(x), y).backward()
            parts = x[mine].chunk(2), y[mine].chunk(2)
            with averager.no_sync():
                (torch.nn.functional.mse_loss(model(parts[0][0]), parts[1][0]) / 2).backward()
            (torch.nn.functional.mse_loss(model(parts[0][1]), parts[1][1]) / 2).backward()
            averager.finish()
            for optimizer in optimizers:
                optimizer.step()
    for a, b in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)
        assert len({x.tobytes() for x in comm.allgather(a.detach().numpy())}) == 1


def test_training_bit_by_bit(comm):
    """In whole numbers every order of adding is right, so one process and all ranks agree in every bit."""
    if comm.size not in (1, 2, 4):
        pytest.skip("a mean over 3 ranks is rounded")
    torch.manual_seed(3)
    x, y = torch.randint(-3, 4, (8, 3)).double(), torch.randint(-3, 4, (8, 2)).double()
    share = slice(comm.rank * 8 // comm.size, (comm.rank + 1) * 8 // comm.size)
    weights = [torch.zeros(3, 2, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    averager = gradients.Averager(comm, weights[:1]).attach()
    for _ in range(6):
        for weight, part in zip(weights, (share, slice(None)), strict=True):
            weight.grad = None
            ((x[part] @ weight - y[part]) ** 2).mean().backward()
        averager.finish()
        with torch.no_grad():
            for weight in weights:
                weight -= weight.grad / 64
    averager.close()
    assert torch.equal(*weights)
    assert weights[0].abs().sum() > 0


def test_what_the_last_backward_pass_did_not_touch(comm):
    """A gradient from a pass in no_sync() alone is averaged too; a layer that nobody used keeps None."""
    used, early, never = (torch.nn.Parameter(torch.zeros(2)) for _ in range(3))
    with gradients.Averager(comm, [used, early, never]).attach() as averager:
        with averager.no_sync():
            (early.sum() * 2.0 * comm.rank).backward()
        (used.sum() * 2.0 * comm.rank).backward()
        averager.finish()
    assert used.grad.tolist() == early.grad.tolist() == [mean(comm)] * 2
    assert never.grad is None
    (used.sum() * 5).backward()  # the hooks are gone
    assert used.grad.tolist() == [mean(comm) + 5] * 2


def test_backward_twice_without_finish(comm):
    x = torch.nn.Parameter(torch.zeros(2))
    with gradients.Averager(comm, [x]).attach() as averager:
        x.sum().backward()
        with pytest.raises(ArgumentError, match=r"call finish\(\) after each step.*no_sync"):
            x.sum().backward()
        averager.finish()


@pytest.mark.parametrize("call", ["broadcast", "average", "Averager"])
def test_ranks_that_differ(comm, call):
    if comm.size == 1:
        pytest.skip("needs 2 ranks")
    last = comm.rank == comm.size - 1
    function = getattr(gradients, call)
    same = np.ones(2)
    cases = (
        (
            [same, np.ones(4 if last else 3)],
            rf"tensor 1 is a .* \(3,\) on rank 0 and .* \(4,\) on rank {comm.size - 1}",
        ),
        ([same, np.ones(3, "f4" if last else "f8")], "tensor 1 is a float64 array .* and a float32 array"),
        (
            [same] * (3 if last else 2),
            f"rank 0 has 2 tensors and rank {comm.size - 1} 3; number 2, a float64",
        ),
        (
            [torch.ones(2) if last else np.ones(2, "f4")],
            "tensor 0 is a float32 array .* and a float32 tensor",
        ),
    )
    for given, message in cases:
        before = [x.tolist() for x in given]
        with pytest.raises(ArgumentError, match=message):
            function(comm, given)
        assert [x.tolist() for x in given] == before
    with pytest.raises(ArgumentError, match=f"`bucket_nbytes` is 9 on rank 0 and 8 on rank {comm.size - 1}"):
        function(comm, [same], bucket_nbytes=8 if last else 9)


def test_wrong_arguments(comm):
    with pytest.raises(ArgumentError, match="tensor 1 must be a NumPy array or a torch tensor, got list"):
        gradients.broadcast(comm, [np.ones(1), [1.0]])
    with pytest.raises(ArgumentError, match=r"tensor 0 must be .*, got NoneType"):
        gradients.broadcast(comm, [None])
    with pytest.raises(UnsupportedError, match="tensor 0 is a int64 array"):
        gradients.average(comm, [np.ones(2, int)])
    with pytest.raises(ArgumentError, match="`bucket_nbytes` must be 1 or more"):
        gradients.average(comm, [np.ones(2)], bucket_nbytes=0)
    with pytest.raises(ArgumentError, match="`compress` must be None"):
        gradients.average(comm, [torch.ones(2)], compress="int8")
    with gradients.Averager(comm, [np.ones(2), torch.ones(3)]) as averager:
        for index in (2, -1, "a"):
            with pytest.raises(ArgumentError, match="`index` must be 0 to 1"):
                averager.put(index, np.ones(2))
        for index, gradient in (
            (0, np.ones(3)),
            (0, torch.ones(2)),
            (1, torch.ones(3).double()),
            (0, [1.0, 1.0]),
        ):
            with pytest.raises(ArgumentError, match=f"the gradient of tensor {index} must be a"):
                averager.put(index, gradient)
        with pytest.raises(UnsupportedError, match="to_dense"):
            averager.put(1, torch.ones(3).to_sparse())
        with pytest.raises(ArgumentError, match=r"tensor 0 is a .* gets no gradient from torch.*put\(\)"):
            averager.attach()


READ_ONLY = np.ones(3)
READ_ONLY.setflags(write=False)


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (READ_ONLY, ArgumentError, "read-only"),
        (np.lib.stride_tricks.as_strided(np.ones(1), (3,), (0,)), ArgumentError, "share memory"),
        (torch.ones(1).expand(3), ArgumentError, "share memory"),
        (torch.ones(3).to_sparse(), UnsupportedError, r"layout torch.sparse_coo.*to_dense"),
        (np.ma.masked_array(np.ones(3)), ArgumentError, "masked array"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(1)]), UnsupportedError, "unbind"),
    ],
    ids=["read-only", "strided array", "expanded tensor", "sparse", "masked", "nested"],
)
def test_memory_that_cannot_be_written_is_named_before_anything_is_sent(comm, bad, error, message):
    good = np.ones(2) if isinstance(bad, np.ndarray) else torch.ones(2)
    with pytest.raises(error, match=rf"average: .*`tensors\[1\]`.*{message}"):
        gradients.average(comm, [good * (comm.rank + 1), bad])
    if error is UnsupportedError or comm.rank != 0:
        with pytest.raises(error, match=rf"broadcast: .*`tensors\[1\]`.*{message}"):
            gradients.broadcast(comm, [good, bad])
    if not getattr(bad, "is_nested", False):  # it has no shape to be like
        like = np.ones(3) if isinstance(bad, np.ndarray) else torch.ones(3)
        with gradients.Averager(comm, [like]) as averager:
            with pytest.raises(error, match=f"put: .*`gradient of tensor 0`.*{message}"):
                averager.put(0, bad)
            averager.put(0, like)
            averager.finish()
    comm.barrier()


def test_a_root_may_broadcast_what_is_read_only(comm):
    x = READ_ONLY if comm.rank == 0 else np.zeros(3)
    gradients.broadcast(comm, [np.ones(2), x])
    assert x.tolist() == [1.0, 1.0, 1.0]


def test_buckets_travel_before_the_end_of_the_step(comm):
    """The last layer's gradients come first, and arrive while nobody has called finish()."""
    first, last = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3))
    with gradients.Averager(comm, [first, last], bucket_nbytes=1).attach() as averager:
        (last.sum() * 2.0 * comm.rank).backward()
        early, late = averager._buckets
        assert early.work.wait(30) is early.flat
        assert early.flat.tolist() == [mean(comm)] * 3
        assert late.work is None
        (first.sum() * 2.0 * comm.rank).backward()
        assert late.work.wait(30).tolist() == [mean(comm)] * 2
        averager.finish()
    assert first.grad.tolist() == [mean(comm)] * 2 and last.grad.tolist() == [mean(comm)] * 3
