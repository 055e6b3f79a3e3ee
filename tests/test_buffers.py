"""Buffers: what goes to MPI where it lies, what is copied, and what is refused."""

import tracemalloc

import numpy as np
import pytest
from mpi_plugin import need

from hpccoll.errors import ArgumentError, UnsupportedError

buffers = need("hpccoll.buffers")
torch = need("torch")
ml_dtypes = need("ml_dtypes")

NUMPY = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "longdouble", "datetime64[s]"),
]
TORCH = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"),
]


@pytest.mark.parametrize("name", NUMPY)
def test_contiguous_array_is_used_where_it_lies(name):
    whole = np.zeros((6, 5), name)
    for view in (whole, whole[2:], whole[1], whole[3, 2:4], whole[2:2], np.zeros((), name)):
        buffer = buffers.source(view, "test")
        assert not buffer.staged
        assert buffer.address == view.ctypes.data
        assert (buffer.count, buffer.nbytes, buffer.shape) == (view.size, view.nbytes, view.shape)
        assert buffers.destination(view, "test").address == view.ctypes.data


@pytest.mark.parametrize("name", TORCH)
def test_contiguous_tensor_is_used_where_it_lies(name):
    whole = torch.zeros((6, 5), dtype=getattr(torch, name))
    for view in (whole, whole[2:], whole[1], whole[3, 2:4], torch.zeros((), dtype=whole.dtype)):
        buffer = buffers.source(view, "test")
        assert not buffer.staged
        assert buffer.address == view.data_ptr()
        assert (buffer.count, buffer.nbytes, buffer.shape) == (view.numel(), view.nbytes, view.shape)
        assert buffers.destination(view, "test").address == view.data_ptr()


def test_opening_a_contiguous_array_allocates_nothing_of_its_size():
    array = np.zeros(1 << 22)
    tracemalloc.start()
    try:
        send = buffers.source(array, "test")
        buffers.target(array, send, array.shape, "test")
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "view",
    [
        np.arange(24).reshape(4, 6).T,
        np.arange(24)[::2],
        np.arange(24)[::-1],
        np.arange(24).reshape(4, 6)[:, 1:3],
        np.arange(24, dtype=">i4"),
        np.asfortranarray(np.arange(24.0).reshape(4, 6)),
        np.broadcast_to(np.arange(3), (4, 3)),
        torch.arange(24).reshape(4, 6).T,
        torch.arange(24)[::2],
        torch.arange(3).expand(4, 3),
        torch.arange(6).to(torch.complex64).conj(),
        torch.arange(6).to(torch.complex64).conj().imag,
    ],
    ids=lambda view: f"{type(view).__module__}-{view.dtype}",
)
def test_everything_else_is_copied_in_c_order(view):
    buffer = buffers.source(view, "test")
    assert buffer.staged
    assert buffer.shape == view.shape
    assert np.array_equal(
        np.asarray(buffer.flat), np.asarray(view.resolve_conj().resolve_neg() if buffer.is_torch else view)
    )


def test_staged_output_comes_back_to_where_it_belongs():
    whole = np.zeros((4, 6), ">i2")
    buffer = buffers.destination(whole[:, ::2], "test")
    buffer.flat[...] = np.arange(12).reshape(4, 3)
    assert buffer.finish().base is whole
    assert np.array_equal(whole[:, ::2], np.arange(12).reshape(4, 3))
    assert not whole[:, 1::2].any()


def test_numpy_and_torch_share_one_name_for_a_dtype():
    for name in TORCH:
        numpy_dtype = (
            np.dtype(getattr(ml_dtypes, name)) if name.startswith(("bf", "float8")) else np.dtype(name)
        )
        found = buffers.dtype_of(getattr(torch, name))
        assert found == buffers.dtype_of(numpy_dtype)
        assert found.itemsize == numpy_dtype.itemsize


def test_partial_overlap_is_refused_and_identity_found():
    array = np.zeros(10)
    send = buffers.source(array[:8], "test")
    assert buffers.same_memory(send, buffers.target(array[:8], send, (8,), "test"), "test")
    assert not buffers.same_memory(
        buffers.source(array[:5], "test"), buffers.source(array[5:], "test"), "test"
    )
    with pytest.raises(ArgumentError, match="overlaps"):
        buffers.same_memory(send, buffers.target(array[2:], send, (8,), "test"), "test")


@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        ([1, 2], ArgumentError, "np.asarray"),
        (None, ArgumentError, "None"),
        (np.array([object()]), UnsupportedError, "broadcast_object"),
        (np.ma.masked_array([1, 2], [0, 1]), ArgumentError, "mask"),
        (torch.eye(2).to_sparse(), UnsupportedError, "layout"),
        (torch.zeros(2, device="meta"), UnsupportedError, "meta"),
        (torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8), UnsupportedError, "quantized"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_travel_says_why(bad, error, words):
    with pytest.raises(error, match=words) as caught:
        buffers.source(bad, "method", "name")
    assert str(caught.value).startswith("method: `name` ")


def test_output_that_cannot_be_written_says_why():
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only"):
        buffers.destination(frozen, "method")
    for shared in (np.lib.stride_tricks.as_strided(np.zeros(3), (2, 3), (0, 8)), torch.zeros(3).expand(2, 3)):
        with pytest.raises(ArgumentError, match="share memory"):
            buffers.destination(shared, "method")


def test_in_place_needs_a_writable_array():
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only"):
        buffers.target(frozen, buffers.source(frozen, "method"), (3,), "method")
    assert buffers.direct(frozen, frozen) is None


def test_short_cut_takes_only_what_is_plain():
    plain, tensor = np.zeros(4), torch.zeros(4)
    buffers.source(tensor, "test")
    assert buffers.direct(plain, np.zeros(4)) is not None
    assert buffers.direct(plain, plain) is not None
    assert buffers.direct(tensor, torch.zeros(4)) is not None
    assert buffers.direct(tensor, tensor) is not None
    for x, out in (
        (plain, np.zeros(5)),
        (plain, np.zeros(4, np.float32)),
        (plain, np.zeros(8)[::2]),
        (plain, tensor),
        (plain[1:], plain[:-1]),
        (np.zeros(4, ml_dtypes.bfloat16), np.zeros(4, ml_dtypes.bfloat16)),
        ("text", "text"),
        (np.zeros(4, ">f8"), np.zeros(4, ">f8")),
        (tensor, torch.zeros(2, 2)),
        (tensor, torch.zeros(4, dtype=torch.float64)),
        (tensor, torch.zeros(8)[::2]),
        (tensor[1:], tensor[:-1]),
        (torch.zeros(1, dtype=torch.complex64).conj().imag, torch.zeros(1)),
        (torch.zeros(4, device="meta"), torch.zeros(4, device="meta")),
    ):
        assert buffers.direct(x, out) is None


@pytest.mark.parametrize("make", [np.zeros, torch.zeros], ids=["numpy", "torch"])
def test_short_cut_knows_blocks(make):
    buffers.source(make(1), "test")
    whole, block = make((3, 2)), make(2)
    assert buffers.direct(block, whole, 3)[2] == 2
    assert buffers.direct(whole, block, -3)[2] == 2
    for x, out, blocks in (
        (block, whole, 2),
        (whole, block, 3),
        (block, whole, 0),
        (whole[1], whole, 3),
        (whole, whole, 3),
    ):
        assert buffers.direct(x, out, blocks) is None


@pytest.mark.parametrize("make", [lambda: torch.eye(3).to_sparse_csr(), lambda: torch.eye(3).to_mkldnn()])
def test_direct_never_raises(make):
    buffers.source(torch.ones(1), "test")  # from now on tensors are known
    assert buffers.direct(make(), make()) is None
    with pytest.raises(UnsupportedError, match="layout"):
        buffers.source(make(), "test")


def test_tensor_whose_memory_was_given_back():
    x = torch.ones(4)
    x.untyped_storage().resize_(0)
    assert buffers.direct(x, x) is None
    with pytest.raises(ArgumentError, match="test: the memory of `x` cannot be reached"):
        buffers.source(x, "test")


def test_the_line_is_none_of_autograds_business():
    leaf = torch.ones(2, 2, requires_grad=True)
    buffers.source(leaf, "test").line.mul_(2)
    assert leaf.tolist() == [[2, 2], [2, 2]]
    assert leaf.is_leaf
