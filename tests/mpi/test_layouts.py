"""Random shapes, strides, memory orders and libraries, different on every rank where that is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi_plugin import need

from .support import (
    CANARY,
    REDUCIBLE,
    as_numpy,
    assert_same,
    libraries,
    moved,
    numpy_dtype,
    reduced,
    terms,
    torch,
)

need("hypothesis")
from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

# All ranks have to draw the same examples: nothing random, nothing remembered, nothing timed. Shrinking would
# follow each rank's own exceptions; `together` makes them alike, so it may be done.
same_everywhere = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=60,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


def together(comm: Any, example: Any, body: Callable[[], None]) -> None:
    """Run one example; if it fails on one rank it fails on all, with the same exception."""
    message = ""
    try:
        body()
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
    everywhere = comm.mpi.allgather((repr(example), message))
    assert len({drawn for drawn, _ in everywhere}) == 1, "the ranks have drawn different examples"
    failed = [f"rank {rank}: {text}" for rank, (_, text) in enumerate(everywhere) if text]
    assert not failed, "\n".join(failed)


@st.composite
def views(draw: Any, shape: tuple[int, ...], library: str) -> tuple[Any, ...]:
    """How an array of the shape lies in memory: order of axes, steps, gaps, offset."""
    order = draw(st.permutations(range(len(shape))))
    lowest = -2 if library == "numpy" else 1
    steps = [draw(st.integers(lowest, 3).filter(bool)) for _ in shape]
    gaps = [draw(st.integers(0, 2)) for _ in shape]
    return order, steps, gaps, draw(st.integers(0, 3))


def lay(
    model: np.ndarray, dtype: str, library: str, view: tuple[Any, ...]
) -> tuple[Any, np.ndarray, np.ndarray]:
    """The values of `model` in memory laid out like `view`; also the memory and the mask of its own bytes."""
    order, steps, gaps, offset = view
    strides = [0] * model.ndim
    reach = 1
    start = offset
    for axis in order:
        length = max(model.shape[axis], 1)
        strides[axis] = reach * steps[axis]
        if steps[axis] < 0:
            start += reach * -steps[axis] * (length - 1)
        reach = reach * abs(steps[axis]) * length + gaps[axis]
    size = model.itemsize
    memory = torch.full(((reach + start + 4) * size,), CANARY, dtype=torch.uint8)
    raw = memory.numpy()
    in_bytes = [stride * size for stride in strides]
    array = np.ndarray(model.shape, model.dtype, raw, start * size, in_bytes)
    array[...] = model
    inside = np.zeros(raw.shape, bool)
    if model.size:
        np.ndarray((*model.shape, size), bool, inside, start * size, [*in_bytes, 1])[...] = True
    if library == "numpy":
        return array, raw, inside
    typed = memory.view(getattr(torch, dtype))
    return typed.as_strided(model.shape, strides, start), raw, inside


@st.composite
def cases(draw: Any, size: int, dtypes: tuple[str, ...]) -> tuple[Any, ...]:
    dtype = draw(st.sampled_from(dtypes))
    shape = tuple(draw(st.lists(st.integers(0, 6), max_size=4)))
    holders = [draw(st.sampled_from(sorted({"numpy", "torch"} & set(libraries(dtype))))) for _ in range(size)]
    layouts = [(draw(views(shape, library)), draw(views(shape, library))) for library in holders]
    return dtype, shape, holders, layouts


def check(
    comm: Any, case: tuple[Any, ...], models: list[np.ndarray], expected: np.ndarray, call: Any
) -> None:
    dtype, _, holders, layouts = case
    library, (view_in, view_out) = holders[comm.rank], layouts[comm.rank]
    x, raw_in, _ = lay(models[comm.rank], dtype, library, view_in)
    blank = (
        np.full(expected.size * expected.itemsize, CANARY, np.uint8)
        .view(expected.dtype)
        .reshape(expected.shape)
    )
    out, raw_out, inside = lay(blank, dtype, library, view_out)
    before = raw_in.tobytes()
    assert call(x, out) is out
    assert_same(out, expected, dtype, f"{dtype} {expected.shape}", exact=True)
    assert raw_in.tobytes() == before, "the input has changed"
    assert (raw_out[~inside] == CANARY).all(), "memory around the output has changed"


def test_allreduce(comm):
    @same_everywhere
    @given(cases(comm.size, tuple(name for name in REDUCIBLE if not name.endswith("longdouble"))))
    def run(case):
        def body():
            models = terms(case[0], case[1], "sum", comm.size)
            expected = reduced(models, "sum", case[0])
            check(comm, case, models, expected, lambda x, out: comm.allreduce(x, out=out))

        together(comm, case, body)

    run()


def test_allreduce_in_place(comm):
    @same_everywhere
    @given(cases(comm.size, ("int32", "float64", "bfloat16", "bool")))
    def run(case):
        def body():
            dtype, shape, holders, layouts = case
            models = terms(dtype, shape, "max" if dtype == "bool" else "sum", comm.size)
            x, raw, inside = lay(models[comm.rank], dtype, holders[comm.rank], layouts[comm.rank][0])
            comm.allreduce(x, out=x)
            assert_same(x, reduced(models, "sum", dtype), dtype, str(shape))
            assert (raw[~inside] == CANARY).all()

        together(comm, case, body)

    run()


def test_broadcast(comm):
    @same_everywhere
    @given(
        cases(comm.size, ("int8", "float16", "float64", "complex128", "float8_e5m2")),
        st.integers(0, comm.size - 1),
    )
    def run(case, root):
        def body():
            dtype, shape, holders, layouts = case
            model = moved(dtype, shape, 3)
            start = model if comm.rank == root else np.zeros_like(model)
            x, raw, inside = lay(start, dtype, holders[comm.rank], layouts[comm.rank][0])
            comm.broadcast(x, root=root)
            assert_same(x, model, dtype, str(shape), exact=True)
            assert (raw[~inside] == CANARY).all()

        together(comm, (case, root), body)

    run()


def test_allgather_of_uneven_blocks(comm):
    @same_everywhere
    @given(
        st.sampled_from(["int16", "float32", "complex64"]),
        st.lists(st.integers(0, 5), min_size=comm.size, max_size=comm.size),
        st.lists(st.integers(0, 4), max_size=2),
        st.data(),
    )
    def run(dtype, counts, rest, data):
        shapes = [(count, *rest) for count in counts]
        holders = [data.draw(st.sampled_from(["numpy", "torch"])) for _ in counts]
        whole = (sum(counts), *rest)
        layouts = [
            (data.draw(views(shape, library)), data.draw(views(whole, library)))
            for shape, library in zip(shapes, holders, strict=True)
        ]
        case = (dtype, shapes[comm.rank], holders, layouts)

        def body():
            models = [moved(dtype, shape, rank) for rank, shape in enumerate(shapes)]
            expected = np.concatenate(models)
            check(comm, case, models, expected, lambda x, out: comm.allgather(x, counts=counts, out=out))
            library, (view, _) = holders[comm.rank], layouts[comm.rank]
            x = lay(models[comm.rank], dtype, library, view)[0]
            got = as_numpy(comm.allgather(x, counts="auto"), dtype)
            assert got.tobytes() == expected.tobytes()

        together(comm, (dtype, counts, rest, holders, layouts), body)

    run()


def test_alltoall_of_uneven_blocks(comm):
    @same_everywhere
    @given(
        st.sampled_from(["uint8", "int64", "float32"]),
        st.lists(
            st.lists(st.integers(0, 4), min_size=comm.size, max_size=comm.size),
            min_size=comm.size,
            max_size=comm.size,
        ),
        st.lists(st.integers(0, 3), max_size=2),
    )
    def run(dtype, table, rest):
        def body():
            me = comm.rank
            models = [moved(dtype, (sum(row), *rest), rank) for rank, row in enumerate(table)]
            parts = [
                model[sum(row[:me]) : sum(row[: me + 1])] for model, row in zip(models, table, strict=True)
            ]
            expected = np.concatenate(parts)
            x = models[me] if me % 2 else torch.from_numpy(models[me].copy())
            got = comm.alltoall(x, send_counts=table[me])
            assert_same(got, expected, dtype, str(table), exact=True)

        together(comm, (dtype, table, rest), body)

    run()


def test_reduce_scatter_of_uneven_blocks(comm):
    @same_everywhere
    @given(
        st.sampled_from(["int32", "float64", "float16"]),
        st.lists(st.integers(0, 5), min_size=comm.size, max_size=comm.size),
        st.lists(st.integers(0, 4), max_size=2),
        st.sampled_from(["sum", "max", "prod"]),
    )
    def run(dtype, counts, rest, op):
        def body():
            models = terms(dtype, (sum(counts), *rest), op, comm.size)
            start = sum(counts[: comm.rank])
            expected = reduced(models, op, dtype)[start : start + counts[comm.rank]]
            x = np.asfortranarray(models[comm.rank]) if comm.rank % 2 else models[comm.rank]
            assert_same(comm.reduce_scatter(x, counts=counts, op=op), expected, dtype, str(counts))

        together(comm, (dtype, counts, rest, op), body)

    run()


def test_an_example_that_fails_on_one_rank_fails_alike_on_all(comm):
    """The tests above rest on it: all ranks walk through the same examples, also while they shrink."""
    seen = []

    @same_everywhere
    @given(st.integers(0, 1000))
    def run(number):
        def body():
            seen.append(number)
            assert comm.rank != comm.size - 1 or number < 17

        together(comm, number, body)

    try:
        run()
    except AssertionError as error:
        assert f"rank {comm.size - 1}" in str(error)
    else:
        raise AssertionError("nothing has failed")
    everywhere = comm.allgather_object(seen)
    assert all(other == seen for other in everywhere)
    assert seen[-1] == 17


def test_the_product_of_lengths_is_what_is_laid_out():
    """The layouts above are injective: no two elements share memory."""
    model = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    for library, steps in (("numpy", [-2, 1, 3]), ("torch", [2, 1, 3])):
        x, _, inside = lay(model, "int32", library, ([2, 0, 1], steps, [1, 0, 2], 2))
        assert as_numpy(x, "int32").tolist() == model.tolist()
        assert inside.sum() == math.prod(model.shape) * numpy_dtype("int32").itemsize
