"""Check mode: what differs raises the same error everywhere and sends nothing; what may differ passes."""

from __future__ import annotations

import re
import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import hpccoll as hc

pytestmark = pytest.mark.mpi(min_size=2)

X = np.arange(12.0).reshape(6, 2)


@pytest.fixture
def checked(comm):
    with hc.Comm(comm.mpi, check=True) as made:
        yield made


@pytest.fixture
def finite(comm):
    with hc.Comm(comm.mpi, check="nan") as made:
        yield made


def other(comm: Any) -> bool:
    """One rank, the last, calls something else."""
    return bool(comm.rank == comm.size - 1)


def refused(comm: Any, kind: type[Any], call: Any) -> str:
    """The error of a call, which has to be the same on every rank of what `comm` duplicates."""
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert set(comm.mpi.allgather(text)) == {text}
    return text


def even(comm: Any, dtype: Any = float) -> Any:
    return np.ones((comm.size, 2), dtype)


DIFFERENT = {
    "count": lambda c, odd: c.allreduce(np.ones(3 if odd else 4)),
    "dtype": lambda c, odd: c.allreduce(np.ones(4, "f4" if odd else "f8")),
    "op": lambda c, odd: c.allreduce(X, op="max" if odd else "sum"),
    "root": lambda c, odd: c.broadcast(X.copy(), root=1 if odd else 0),
    "the method": lambda c, odd: c.broadcast(X.copy()) if odd else c.allreduce(X),
    "the method ": lambda c, odd: c.barrier() if odd else c.allreduce(X),
    "the method  ": lambda c, odd: c.split(0) if odd else c.dup(),
    "the method   ": lambda c, odd: c.gather_object(1) if odd else c.allgather_object(1),
    "root ": lambda c, odd: c.gather_object(1, root=1 if odd else 0),
    "dtype and count": lambda c, odd: c.allreduce(5 if odd else X),
    "count  ": lambda c, odd: c.reduce(np.ones(3 if odd else 4), root=1),
    "op ": lambda c, odd: c.scan(X, op="min" if odd else "max"),
    "count   ": lambda c, odd: c.allgather(np.ones(3 if odd else 4)),
    "counts": lambda c, odd: c.allgather(X[:1], counts=[2] * odd + [1] * (c.size - odd)),
    "block": lambda c, odd: c.scatter(even(c) if c.rank == 0 else None, out=np.ones(3 if odd else 2)),
    "count    ": lambda c, odd: c.alltoall(np.ones((c.size, 3 if odd else 2))),
    "dtype ": lambda c, odd: c.reduce_scatter(even(c, "i4" if odd else "i8")),
    "width": lambda c, odd: c.alltoall(np.ones((c.size, 3 if odd else 2)), send_counts=[1] * c.size),
}  # fmt: skip


@pytest.mark.parametrize("word", DIFFERENT)
@pytest.mark.parametrize("way", ["plain", "out", "later"])
def test_what_differs_is_named(checked, word, way):
    call, odd = DIFFERENT[word], other(checked)
    blocking = way != "later"

    def go() -> Any:
        if blocking:
            return call(checked, odd)
        checked.allreduce(X, blocking=False)  # so that the next one runs on the communicator's thread
        return call(checked, odd)

    text = refused(checked, hc.MismatchError, go)
    last = checked.size - 1
    first = f"rank{'s 0-' + str(last - 1) if last > 1 else ' 0'}"
    assert f": the ranks differ in {word.strip()}. Nothing has been sent." in text
    lines = text.splitlines()[1:]
    if word != "block":  # where the root says it in its own words
        assert [line.split(":")[0].strip() for line in lines] == [first, f"rank {last}"]
    assert all(re.search(r"\) at .*test_checking\.py:\d+ in ", line) for line in lines)
    assert checked.allreduce(1) == checked.size  # and it goes on


def test_the_call_sites_are_named(checked):
    def go() -> None:
        if other(checked):
            checked.allreduce(np.ones(3, "f4"), op="max")
        else:
            checked.broadcast(np.ones((2, 1), "i8"), root=1)

    lines = refused(checked, hc.MismatchError, go).splitlines()
    assert "collective " in lines[0]
    begin = go.__code__.co_firstlineno
    file = re.escape("test_checking.py")
    assert re.search(rf"broadcast\(int64\[2, 1\], root=1\) at \S*{file}:{begin + 4} in \S*go$", lines[1])
    assert re.search(rf"allreduce\(float32\[3\], op=max\) at \S*{file}:{begin + 2} in \S*go$", lines[2])


def test_wrong_arguments_are_refused_as_ever(checked):
    """Where all ranks pass the same."""
    for call in (
        lambda: checked.allreduce(np.array([None, "x"])),
        lambda: checked.allreduce(X, op="mean"),
        lambda: checked.broadcast(X.copy(), root=checked.size),
        lambda: checked.broadcast(X.copy(), root=None),
        lambda: checked.allgather(X, counts=5),
        lambda: checked.alltoall(X, send_counts="x"),
        lambda: checked.alltoall(X, send_counts=[1.5], recv_counts=[None]),
        lambda: checked.allreduce("x"),
    ):
        refused(checked, hc.ArgumentError, call)
    assert checked.allreduce(1) == checked.size


def test_nothing_has_been_sent(checked):
    out = np.full(4 if other(checked) else 3, -7.0)
    refused(checked, hc.MismatchError, lambda: checked.allreduce(np.ones(len(out)), out=out))
    assert (out == -7).all()


def test_later_operations_find_their_partners(checked):
    """One of three that are under way differs; the others are what they were."""
    odd = other(checked)
    works = [checked.allreduce(x, blocking=False) for x in (X, np.ones(3 if odd else 4), X + 1)]
    np.testing.assert_array_equal(works[0].wait(), X * checked.size)
    refused(checked, hc.MismatchError, works[1].wait)
    np.testing.assert_array_equal(works[2].wait(), (X + 1) * checked.size)


def test_lengths_that_do_not_meet(checked):
    """Each list is right by itself; one of the ranks sends more than another expects."""
    size, odd = checked.size, other(checked)
    outgoing = [1] * size
    if odd:
        outgoing[0] = 3
    call = lambda: checked.alltoall(np.ones(sum(outgoing)), send_counts=outgoing, recv_counts=[1] * size)  # noqa: E731
    text = refused(checked, hc.MismatchError, call)
    assert f"rank {size - 1} sends 3 to rank 0, which expects 1." in text


SAME = {
    "an array here, a tensor there": lambda c, odd: c.allreduce(torch.ones(4) if odd else np.ones(4, "f4")),
    "bfloat16 of two libraries": lambda c, odd: c.allgather(
        torch.ones(4, dtype=torch.bfloat16) if odd else np.ones(4, ml_dtypes.bfloat16)
    ),
    "a float8 of two libraries": lambda c, odd: c.broadcast(
        torch.ones(4).to(torch.float8_e5m2) if odd else np.ones(4, ml_dtypes.float8_e5m2)
    ),
    "byte order": lambda c, odd: c.allreduce(np.ones(4, ">f8" if odd else "<f8")),
    "strides": lambda c, odd: c.allreduce(np.asfortranarray(X) if odd else X),
    "out, or none": lambda c, odd: c.allreduce(X, out=X.copy() if odd else None),
    "out on the root": lambda c, odd: c.reduce(X, root=0, out=X.copy() if c.rank == 0 else None),
    "blocking": lambda c, odd: (c.allreduce(X, blocking=odd), c.barrier()),
    "numbers": lambda c, odd: c.allreduce(2.5 if odd else 1),
    "a NumPy integer as root": lambda c, odd: c.broadcast(X.copy(), root=np.int64(1) if odd else 1),
    "None joins no group": lambda c, odd: c.split(None if odd else 0, key=-c.rank),
    "objects": lambda c, odd: c.allgather_object([1, 2, 3] if odd else "x"),
    "objects of the root": lambda c, odd: c.broadcast_object(None if odd else {"a": 1}),
    "lists of objects": lambda c, odd: c.scatter_object([None] * c.size if c.rank == 0 else None),
    "blocks of the root": lambda c, odd: c.scatter(even(c) if c.rank == 0 else None, out=np.ones(2)),
    "an example of the block": lambda c, odd: c.scatter(even(c) if c.rank == 0 else np.ones(2)),
    "gathered lengths": lambda c, odd: c.gather(
        np.ones((c.rank, 2)), root=1, counts=range(c.size) if odd else tuple(range(c.size))
    ),
    "lengths in an array": lambda c, odd: c.allgather(
        np.ones((1, 2)), counts=np.ones(c.size, int) if odd else [1] * c.size
    ),
    "lengths in a tensor": lambda c, odd: c.allgather(
        np.ones((1, 2)), counts=torch.ones(c.size, dtype=torch.int64) if odd else [1] * c.size
    ),
    "scattered lengths": lambda c, odd: c.scatter(
        np.ones((c.size + 1, 3)) if c.rank == 0 else None,
        counts=[2] + [1] * (c.size - 1),
        out=np.ones((2 if c.rank == 0 else 1, 3)),
    ),
    "lengths that nobody knows": lambda c, odd: c.allgather(np.ones((c.rank, 2)), counts="auto"),
    "lengths of each rank": lambda c, odd: c.alltoall(
        np.ones(c.size * (c.rank + 1)),
        send_counts=[c.rank + 1] * c.size,
        recv_counts=[rank + 1 for rank in range(c.size)],
    ),
    "lengths that are asked for": lambda c, odd: c.alltoall(
        np.ones(c.size * c.rank), send_counts=[c.rank] * c.size
    ),
    "nothing": lambda c, odd: c.allreduce(np.ones((0, 3))),
    "zero dimensions": lambda c, odd: c.allreduce(np.float64(3) if odd else np.array(3.0)),
}


@pytest.mark.parametrize("what", SAME)
def test_what_may_differ_passes(checked, what):
    SAME[what](checked, other(checked))
    assert checked.allreduce(1) == checked.size


def test_the_result_is_that_without_it(comm, checked):
    for x in (X, X.astype("f2"), np.arange(5), 3):
        np.testing.assert_array_equal(checked.allreduce(x), comm.allreduce(x))


@pytest.mark.parametrize("make", ["split", "dup", "node", "leaders"])
def test_children_are_checked_too(checked, make):
    child = checked.split(0) if make == "split" else getattr(checked, make)()
    if child is None or child.size < 2:
        return
    with pytest.raises(hc.MismatchError, match=r"differ in count"):
        child.allreduce(np.ones(3 if child.rank == 0 else 4))
    child.free()


def test_a_subgroup_knows_its_place_in_the_world(checked):
    half = checked.split(checked.rank % 2)
    if half.size > 1:
        with pytest.raises(hc.MismatchError, match=r"\(ranks 0-1 of it are (0,2|1,3) of the world\)"):
            half.broadcast(X.copy(), root=half.rank)
    half.free()


def test_it_is_off_without_a_wish(comm):
    assert comm._agreement is None and comm._check is None
    with hc.Comm(comm.mpi, check=False) as made, made.dup() as child:
        assert made._check is None and child._check is None


@pytest.mark.parametrize("check", ["yes", 2, "1", 0.5])
def test_a_wrong_wish(comm, check):
    with pytest.raises(hc.ArgumentError, match=r'`check` must be True, False, "nan" or None, got '):
        hc.Comm(comm.mpi, check=check)


# ---- Ranks that do not come


def test_who_does_not_come_is_named(comm):
    own = comm.dup()  # the ranks will not agree on the numbers of its collectives any more
    made = hc.Comm(own.mpi, check=True)
    made.limit_s = 2.0  # that of a process group; hpccoll.timeout would end this process
    last = comm.size - 1
    if comm.rank != last:
        with pytest.raises(hc.MismatchError) as caught:
            made.allreduce(X)
        assert caught.value.missing == (last,)
        text = str(caught.value)
        assert f"rank {last} has not come to it within " in text
        assert (
            f"  rank{'s 0-' + str(last - 1) if last > 1 else ' 0'}: allreduce(float64[6, 2], op=sum) at "
            in text
        )
        with pytest.raises(hc.MismatchError) as again:  # no way back, and nothing to wait for
            made.barrier()
        assert again.value is caught.value
    comm.barrier()
    if comm.rank == last:  # and who comes late hears of it
        with pytest.raises(hc.MismatchError, match=rf"rank {last} has not come to it") as caught:
            made.allreduce(X)
        assert caught.value.missing == (last,)
    comm.barrier()


def test_a_slow_rank_is_waited_for(checked):
    """It has the other ranks answer to nobody and give up nothing."""
    if other(checked):
        time.sleep(1.0)
    assert checked.allreduce(1) == checked.size


# ---- NaN and infinity

ODD = {
    "float32": np.array([[1, 2], [3, np.nan]], "f4"),
    "-inf": np.array([[1, 2], [3, -np.inf]]),
    "complex": np.array([[1, 2], [3, complex(0, np.inf)]]),
    "float16": np.array([[1, 2], [3, np.nan]], "f2"),
    "bfloat16": np.array([[1, 2], [3, np.nan]], ml_dtypes.bfloat16),
    "tensor": torch.tensor([[1.0, 2], [3, torch.nan]]),
    "tensor of bfloat16": torch.tensor([[1.0, 2], [3, torch.nan]], dtype=torch.bfloat16),
    "tensor of float8": torch.tensor([[1.0, 2], [3, torch.nan]]).to(torch.float8_e5m2),
    "strided": np.array([[1, 3], [2, np.nan]]).T,
}


@pytest.mark.parametrize("kind", ODD)
def test_the_rank_with_a_nan_is_named(finite, kind):
    bad = ODD[kind]
    good = torch.ones_like(bad) if isinstance(bad, torch.Tensor) else np.ones_like(bad)
    x = bad if other(finite) else good
    text = refused(finite, hc.NotFiniteError, lambda: finite.allgather(x))
    last = finite.size - 1
    assert (
        f": rank {last} brings a NaN or an infinity. Nothing has been sent\n  rank {last}: allgather(" in text
    )
    assert re.search(r"\[2, 2\]\) at \S*test_checking\.py:\d+ in .*: \S+ at \[1, 1\], 1 of 4 elements", text)
    finite.allgather(good)


@pytest.mark.parametrize("number", [float("nan"), float("-inf"), complex(0, float("inf"))])
def test_a_number_that_is_none(finite, number):
    text = refused(finite, hc.NotFiniteError, lambda: finite.allreduce(number if other(finite) else 1.0))
    assert f"it is {number}" in text


def test_only_what_is_sent_counts(finite):
    """What is to be overwritten may hold anything, and so may other dtypes."""
    trash = np.full((6, 2), np.nan)
    finite.broadcast(X.copy() if finite.rank == 0 else trash.copy())
    finite.allreduce(X, out=trash.copy())
    finite.scatter(even(finite) if finite.rank == 0 else None, out=np.full(2, np.nan))
    finite.allreduce(np.array([-1, 2]))
    finite.allgather(np.array(["2020-01-01", "NaT"], "M8[D]").view("i8"))
    finite.allgather_object(float("nan"))
    finite.allreduce(torch.tensor([True]), op="lor")
    finite.allreduce(torch.full((100,), 60000.0, dtype=torch.float16), op="max")  # whose sum is infinite
    finite.allgather(np.zeros(3, np.dtype([("a", "f4")])))


@pytest.mark.parametrize("root", [0, 1])
def test_the_roots_data_count(finite, root):
    bad = np.array([1.0, np.inf])
    text = refused(finite, hc.NotFiniteError, lambda: finite.broadcast(bad.copy(), root=root))
    assert f": rank {root} brings" in text


def test_a_mismatch_comes_first(finite):
    refused(finite, hc.MismatchError, lambda: finite.allreduce(np.full(3 if other(finite) else 4, np.nan)))


def test_check_mode_does_not_look_for_it(checked):
    assert np.isnan(checked.allreduce(np.array([np.nan]))[0])
