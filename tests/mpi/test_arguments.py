"""Bad arguments: a clear error on the caller, nothing sent, and the communicator goes on working."""

from __future__ import annotations

import re

import numpy as np
import pytest

import hpccoll
from hpccoll import ArgumentError, UnsupportedError

from .support import COMPLEX, HALF, OPS, REDUCIBLE, ops_of, place, torch

REDUCTIONS = ("allreduce", "reduce", "reduce_scatter", "scan", "exscan")
MOVEMENTS = ("broadcast", "allgather", "gather", "scatter", "alltoall")


def whole(comm, kind=np.float64):
    """An array that every collective takes."""
    return np.zeros((comm.size, 3), kind)


@pytest.fixture(autouse=True)
def still_works(comm):
    yield
    assert comm.allreduce(np.array([comm.rank])).tolist() == [sum(range(comm.size))]


def refused(match, method, *args, error=ArgumentError, **options):
    """The same message with blocking=True and False."""
    with pytest.raises(error, match=match) as first:
        method(*args, **options)
    with pytest.raises(error, match=match) as second:
        method(*args, blocking=False, **options)
    assert str(first.value) == str(second.value)
    assert isinstance(first.value, (hpccoll.HpccollError, ValueError))


@pytest.mark.parametrize("method", REDUCTIONS)
@pytest.mark.parametrize("op", ["median", "SUM", "", None, 3, np.add, ["sum"], {}], ids=repr)
def test_unknown_op_lists_the_valid_ones(comm, method, op):
    valid = re.escape("sum, prod, min, max, avg, band, bor, bxor, land, lor, lxor")
    match = rf"^{method}: `op` must be one of {valid}; got "
    refused(match + re.escape(repr(op)), getattr(comm, method), whole(comm), op=op)
    if method != "reduce_scatter":
        refused(match, getattr(comm, method), 1.5, op=op)
    x = whole(comm)
    if method == "allreduce":
        refused(match, comm.allreduce, x, op=op, out=x)


@pytest.mark.parametrize("method", REDUCTIONS)
@pytest.mark.parametrize("dtype", REDUCIBLE)
def test_op_without_a_meaning_for_the_dtype(comm, method, dtype):
    for library in ("numpy", "torch") if dtype not in ("longdouble", "clongdouble") else ("numpy",):
        model = np.zeros((comm.size, 2), np.float32)
        x = place(model.astype(dtype), dtype).x if library == "numpy" and dtype != "bfloat16" else None
        if x is None:
            x = torch.zeros(comm.size, 2, dtype=getattr(torch, dtype))
        for op in OPS:
            if op not in ops_of(dtype):
                refused(rf"^{method}: .*{dtype}", getattr(comm, method), x, op=op, error=UnsupportedError)
    if dtype not in (*COMPLEX, *HALF) and not dtype.startswith(("float", "longdouble")):
        refused(r"average .*; convert|rounded", getattr(comm, method), x, op="avg", error=UnsupportedError)


@pytest.mark.parametrize("method", REDUCTIONS)
def test_what_can_only_be_moved(comm, method):
    refuse = getattr(comm, method)
    for x in (
        np.zeros((comm.size, 1), "M8[s]"),
        np.zeros((comm.size, 1), "S3"),
        np.zeros((comm.size, 1), [("a", int)]),
        torch.zeros(comm.size, 1).to(torch.float8_e4m3fn),
        torch.zeros(comm.size, 1, dtype=torch.complex32),
    ):
        for op in ("sum", "max", "band"):
            refused(f"^{method}: .*can be moved but not reduced", refuse, x, op=op, error=UnsupportedError)


@pytest.mark.parametrize("method", ["reduce", "broadcast", "gather", "scatter"])
def test_root(comm, method):
    for root in (-1, comm.size, 2**31, 2**70, 1.0, "0", None, np.float64(0), [0], np.array([0, 1])):
        expected = rf"^{method}: `root` must be a rank from 0 to {comm.size - 1}, got "
        refused(expected, getattr(comm, method), whole(comm), root=root)
    for root in (np.int64(0), np.uint8(0), False):
        getattr(comm, method)(
            whole(comm) if comm.rank == 0 or method != "scatter" else np.zeros(3), root=root
        )


def test_root_of_objects(comm):
    for method in (comm.broadcast_object, comm.gather_object, comm.scatter_object):
        for root in (-1, comm.size, "0", None):
            refused(r"_object: `root` must be a rank from 0", method, [0] * comm.size, root=root)


@pytest.mark.parametrize(
    "x",
    [None, "text", [1.0, 2.0], (1,), {}, object(), b"bytes", bytearray(8), range(3)],
    ids=lambda x: type(x).__name__,
)
def test_what_is_no_buffer(comm, x):
    right = (comm.rank + 1) % comm.size
    for method in (*REDUCTIONS, *MOVEMENTS):
        if method == "scatter" and x is None and comm.rank:
            continue
        refused(rf"^{method}: `x` must be .*, got ", getattr(comm, method), x)
    refused(r"^send: `x` must be .*, got ", comm.send, x, dest=right)
    refused(r"^recv: `x` must be .*, got ", comm.recv, x)
    refused(r"^sendrecv: `x` must be .*, got ", comm.sendrecv, x, dest=right)


def test_python_numbers_are_for_reductions_alone(comm):
    for method in MOVEMENTS:
        refused(rf"^{method}: `x` must be", getattr(comm, method), 5)


def test_python_objects_in_arrays(comm):
    for x in (np.array([None] * comm.size), np.zeros(comm.size, [("a", object)])):
        for method in (*REDUCTIONS, *MOVEMENTS):
            refused(
                rf"^{method}: `x` holds Python objects .*_object",
                getattr(comm, method),
                x,
                error=UnsupportedError,
            )


def test_masked_arrays(comm):
    x = np.ma.masked_array(whole(comm), whole(comm) == 0)
    for method in (*REDUCTIONS, *MOVEMENTS):
        refused(rf"^{method}: `x` is a masked array", getattr(comm, method), x)


def test_tensors_that_are_not_plain_memory(comm):
    sparse = torch.eye(comm.size).to_sparse()
    meta = torch.empty(comm.size, 2, device="meta")
    quantized = torch.quantize_per_tensor(torch.ones(comm.size, 2), 0.1, 0, torch.qint8)
    for method in (*REDUCTIONS, *MOVEMENTS):
        refused(rf"^{method}: `x` has layout", getattr(comm, method), sparse, error=UnsupportedError)
        refused(rf"^{method}: `x` is on device meta", getattr(comm, method), meta, error=UnsupportedError)
        refused(rf"^{method}: `x` is quantized", getattr(comm, method), quantized, error=UnsupportedError)
    for bad in (sparse, meta, quantized):
        refused("^allreduce: `out`", comm.allreduce, torch.ones(comm.size, 2), out=bad)


def outputs(comm):
    """Method, input, shape of the output."""
    x = whole(comm)
    yield comm.allreduce, x, x.shape
    yield comm.scan, x, x.shape
    yield comm.exscan, x, x.shape
    yield comm.reduce_scatter, x, (3,)
    yield comm.allgather, x, (comm.size, *x.shape)
    yield comm.alltoall, x, x.shape
    yield (lambda x, **o: comm.sendrecv(x, dest=comm.rank, source=comm.rank, **o)), x, x.shape
    if comm.rank == 0:
        yield comm.reduce, x, x.shape
        yield comm.gather, x, (comm.size, *x.shape)
        yield comm.scatter, x, (3,)


def test_out_of_the_wrong_shape_dtype_kind_or_memory(comm):
    for method, x, shape in outputs(comm):
        good = np.zeros(shape)
        read_only = good.copy()
        read_only.flags.writeable = False
        expanded = np.lib.stride_tricks.as_strided(np.zeros(1), shape, (0,) * len(shape))
        for out, expected in (
            (np.zeros((*shape, 1)), f"must have shape {re.escape(str(shape))}, got"),
            (np.zeros((*shape[:-1], 2)), "must have shape"),
            (np.zeros(shape, np.float32), "must have dtype float64, got float32"),
            (
                torch.zeros(shape, dtype=torch.float64),
                "must be a NumPy array, as the input is; got a torch.Tensor",
            ),
            (good.tolist(), "must be a NumPy array, as the input is; got a list"),
            (read_only, "read-only"),
            (expanded, "share memory"),
        ):
            refused(f": `out` .*{expected}|several elements of `out` share", method, x, out=out)
        t = torch.from_numpy(x.copy())
        for out, expected in (
            (torch.zeros(*shape, 1, dtype=t.dtype), "must have shape"),
            (torch.zeros(shape), "must have dtype torch.float64, got torch.float32"),
            (torch.zeros(shape, dtype=t.dtype, device="meta"), "must be on device cpu, got meta"),
            (good, "must be a torch tensor, as the input is; got a numpy.ndarray"),
            (torch.zeros(1, dtype=t.dtype).expand(shape), "share memory"),
        ):
            refused(f": `out` .*{expected}|several elements of `out` share", method, t, out=out)


def test_what_recv_and_broadcast_write(comm):
    read_only = whole(comm)
    read_only.flags.writeable = False
    expanded = np.broadcast_to(np.zeros(3), (4, 3))
    tensor = torch.zeros(3).expand(4, 3)
    overlapping = np.lib.stride_tricks.as_strided(np.zeros(8), (3, 4), (8, 8))
    for x, expected in (
        (read_only, "read-only"),
        (expanded, "read-only|share"),
        (tensor, "share"),
        (overlapping, "share"),
    ):
        refused(f"^recv: .*({expected})", comm.recv, x, source=0)
        if comm.rank:
            refused(f"^broadcast: .*({expected})", comm.broadcast, x)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_overlap_of_input_and_output(comm, library):
    def make(n):
        return np.zeros(n) if library == "numpy" else torch.zeros(n, dtype=torch.float64)

    base = make(10)
    for method in (comm.allreduce, comm.scan, comm.exscan):
        refused("`out` overlaps `x`", method, base[:8], out=base[1:9])
    if comm.rank == 0:
        refused("`out` overlaps `x`", comm.reduce, base[:8], out=base[1:9])
    size = comm.size
    block = make(size * 4)
    refused("reduce_scatter: `out` overlaps `x`", comm.reduce_scatter, block.reshape(size, 4), out=block[:4])
    refused("reduce_scatter: `out` overlaps `x`", comm.reduce_scatter, block.reshape(size, 4), out=block[-4:])
    if size > 1:
        other = block.reshape(size, 4)[(comm.rank + 1) % size]
        refused("allgather: `out` overlaps `x`", comm.allgather, other, out=block.reshape(size, 4))
    long = make(size * 4 + 1)
    refused(
        "alltoall: `out` overlaps `x`",
        comm.alltoall,
        long[1:].reshape(size, 4),
        out=long[:-1].reshape(size, 4),
    )
    refused(
        "alltoall: `out` overlaps `x`",
        comm.alltoall,
        block,
        out=block,
        send_counts=[4] * size,
        recv_counts=[4] * size,
    )
    refused(
        "sendrecv: `out` overlaps `x`",
        comm.sendrecv,
        long[1:],
        out=long[:-1],
        dest=comm.rank,
        source=comm.rank,
    )


def test_overlap_that_is_staged_is_right(comm):
    """Where one side is copied anyhow an overlap does no harm: the result is right, or it is refused."""
    x = np.arange(20.0).reshape(4, 5)
    expected = x.T.copy() * comm.size
    square = np.arange(16.0).reshape(4, 4)
    try:
        result = comm.allreduce(square.T, out=square)
    except ArgumentError as error:
        assert "overlaps" in str(error)
    else:
        assert (result == np.arange(16.0).reshape(4, 4).T * comm.size).all()
    assert (comm.allreduce(x.T) == expected).all()
    line = np.arange(12.0)
    try:
        result = comm.allreduce(line[::2][:5], out=line[1::2][:5])
    except ArgumentError as error:
        assert "overlaps" in str(error)
    else:
        assert (result == np.arange(0, 10, 2) * comm.size).all()


def test_first_axis(comm):
    size = comm.size
    for method in (comm.reduce_scatter, comm.alltoall):
        name = method.__name__
        refused(rf"^{name}: `x` has no axis", method, np.array(1.0))
        refused(
            rf"^{name}: the first axis of `x` must have one block .* {size} ranks, got shape",
            method,
            np.zeros(size + 1),
        )
        refused(rf"^{name}: the first axis of `x`", method, np.zeros((0, 3)))
    refused(rf"reshape it to \({size}, ", comm.alltoall, np.zeros(size * 3)) if size > 1 else None
    if comm.rank == 0:
        refused(r"^scatter: the first axis of `x`", comm.scatter, np.zeros((size + 1, 2)))


def test_counts(comm):
    size = comm.size
    x = np.zeros((size, 2))
    ones = [1] * size
    for bad in (
        [1] * (size + 1),
        [],
        [-1, *ones[1:]],
        ["1"] * size,
        [1.0] * size,
        5,
        [None] * size,
        [2**70] * size,
    ):
        refused("^reduce_scatter: `counts` (must hold one length|add up)", comm.reduce_scatter, x, counts=bad)
        refused("^allgather: `counts` (must hold one length|says)", comm.allgather, x[:1], counts=bad)
        refused("^gather: `counts` (must hold one length|says)", comm.gather, x[:1], counts=bad)
        refused("^alltoall: `send_counts` (must hold one length|add up)", comm.alltoall, x, send_counts=bad)
        refused(
            "^alltoall: `recv_counts` must hold|sends itself",
            comm.alltoall,
            x,
            send_counts=ones,
            recv_counts=bad,
        )
        if comm.rank == 0:
            refused("^scatter: `counts` (must hold one length|add up)", comm.scatter, x, counts=bad)
    refused("^reduce_scatter: `counts` add up to .*, but `x` has", comm.reduce_scatter, x, counts=[2] * size)
    refused("^alltoall: `send_counts` add up to .*, but `x` has", comm.alltoall, x, send_counts=[2] * size)
    refused(
        "^allgather: `counts` says 2 for rank .*, but its block has 1",
        comm.allgather,
        x[:1],
        counts=[2] * size,
    )
    refused(
        "^gather: `counts` says 2 for rank .*, but its block has 1", comm.gather, x[:1], counts=[2] * size
    )
    refused(
        "^alltoall: rank . sends itself 1 .* but expects 0",
        comm.alltoall,
        x,
        send_counts=ones,
        recv_counts=[0] * size,
    )
    refused("^alltoall: `recv_counts` needs `send_counts`", comm.alltoall, x, recv_counts=ones)
    refused('^allgather: `counts` must be "auto" or', comm.allgather, x, counts="automatic")
    refused(
        "^allgather: `out` needs `counts`", comm.allgather, x, counts="auto", out=np.zeros((size * size, 2))
    )
    refused("^alltoall: `out` needs `recv_counts`", comm.alltoall, x, send_counts=ones, out=x.copy())
    refused("^allgather: `x` has no axis", comm.allgather, np.array(1.0), counts=ones)
    refused("^allgather: `x` has no axis", comm.allgather, np.array(1.0), counts="auto")


def test_counts_of_numpy(comm):
    counts = np.arange(comm.size)
    result = comm.allgather(np.full(comm.rank, comm.rank), counts=counts)
    assert result.tolist() == [rank for rank in range(comm.size) for _ in range(rank)]


@pytest.mark.mpi(min_size=2)
def test_scatter_without_a_place_for_the_block(comm):
    if comm.rank:
        refused("^scatter: rank .* is not the root and has to say what it receives", comm.scatter, None)


def test_peers_and_tags(comm):
    x = np.zeros(1)
    for dest in (-1, comm.size, None, "0", 1.0):
        refused(f"^send: `dest` must be a rank from 0 to {comm.size - 1}, got", comm.send, x, dest=dest)
        refused("^sendrecv: `dest` must be a rank", comm.sendrecv, x, dest=dest)
    for source in (-1, comm.size, "0", 1.0):
        refused("^recv: `source` must be a rank", comm.recv, x, source=source)
        refused("^sendrecv: `source` must be a rank", comm.sendrecv, x, dest=0, source=source)
    for tag in (-1, 2**31, 2**70, 1.5, "1"):
        refused("^send: `tag` must be an int from 0 to", comm.send, x, dest=0, tag=tag)
        refused("^recv: `tag` must be an int from 0 to", comm.recv, x, tag=tag)
        refused("^sendrecv: `tag` must be an int from 0 to", comm.sendrecv, x, dest=0, tag=tag)


def test_keywords_only(comm):
    for method in (*REDUCTIONS, *MOVEMENTS, "send", "recv", "sendrecv"):
        with pytest.raises(TypeError):
            getattr(comm, method)(whole(comm), 0)


def test_requires_grad(comm):
    """Not a differentiable operation: values go through, autograd sees nothing, leaves may be written."""
    leaf = torch.full((3,), 2.0, requires_grad=True)
    result = comm.allreduce(leaf)
    assert not result.requires_grad
    assert result.tolist() == [2 * comm.size] * 3
    parameter = torch.nn.Parameter(torch.full((3,), float(comm.rank)))
    assert comm.broadcast(parameter, root=comm.size - 1) is parameter
    assert parameter.tolist() == [comm.size - 1.0] * 3
    comm.allreduce(parameter, out=parameter)
    assert parameter.tolist() == [comm.size * (comm.size - 1.0)] * 3
    strided = torch.nn.Parameter(torch.ones(3, 2)).t()
    assert comm.allreduce(strided).tolist() == [[comm.size] * 3] * 2
    with torch.no_grad():
        view = torch.nn.Parameter(torch.ones(6)).view(2, 3).t()
    comm.allreduce(view, out=view)
    assert (view == comm.size).all()


def test_lazy_conjugate_and_negative_views(comm):
    z = torch.tensor([1 + 2j, 3 - 1j])
    assert comm.allreduce(z.conj()).tolist() == [(1 - 2j) * comm.size, (3 + 1j) * comm.size]
    assert comm.allgather(z.conj().imag)[0].tolist() == [-2, 1]
    out = torch.zeros(2, dtype=torch.complex64).conj()
    comm.allreduce(z, out=out)
    assert out.tolist() == [(1 + 2j) * comm.size, (3 - 1j) * comm.size]
    assert comm.allreduce(z, op="avg").tolist() == z.tolist()


def test_subclasses_of_ndarray(comm, tmp_path):
    matrix = np.matrix([[1.0, 2.0], [3.0, 4.0]])
    assert np.asarray(comm.allreduce(matrix)).tolist() == (np.asarray(matrix) * comm.size).tolist()
    path = tmp_path / "data"
    np.arange(6.0).tofile(path)
    mapped = np.memmap(path, np.float64, "r+", shape=(2, 3))
    comm.allreduce(mapped, out=mapped)
    assert mapped.tolist() == (np.arange(6.0).reshape(2, 3) * comm.size).tolist()
    only = np.memmap(path, np.float64, "r")
    assert comm.allreduce(only).shape == (6,)
    refused("read-only", comm.allreduce, np.zeros(6), out=only)
    records = np.zeros(3, [("a", np.int32)]).view(np.recarray)
    records.a = comm.rank
    comm.broadcast(records)
    assert records.a.tolist() == [0, 0, 0]


def test_broadcast_arrays_as_inputs(comm):
    x = np.broadcast_to(np.arange(3.0), (4, 3))
    assert comm.allreduce(x).tolist() == (np.asarray(x) * comm.size).tolist()
    t = torch.arange(3.0).expand(4, 3)
    assert comm.allreduce(t).tolist() == (t * comm.size).tolist()
    windows = np.lib.stride_tricks.sliding_window_view(np.arange(5.0), 3)
    assert comm.allgather(windows)[0].tolist() == windows.tolist()


def test_empty_shapes_beyond_any_memory(comm):
    for shape in ((0, 2**40), (2**40, 0), (2**20, 0, 2**20)):
        x = np.empty(shape, np.int8)
        assert comm.allreduce(x).shape == shape
        assert comm.broadcast(x) is x
        assert comm.allgather(x).shape == (comm.size, *shape)
    assert comm.allgather(np.empty((0, 2**40)), counts=[0] * comm.size).shape == (0, 2**40)
