"""The loop's order of events, the choice of iterations, and the statistics."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpccoll.bench.arrival import check_order
from hpccoll.bench.storage import Wrong
from hpccoll.bench.timing import Block, choose_iterations, garbage_collector_off, run_calls, summarise


def test_order_of_events() -> None:
    """Preparation, barrier, call, check; each call has its own window, and its number goes on after the warm-up."""
    events: list[Any] = []
    data: Any = SimpleNamespace(
        prepare=lambda i: events.append(("prepare", i)), check=lambda i: events.append(("check", i))
    )
    control = SimpleNamespace(Barrier=lambda: events.append("barrier"))
    calls = [lambda: events.append("a"), lambda: events.append("b"), lambda: events.append("c")]
    block = run_calls(calls, data, control, first=4, number=2)
    assert events == [
        ("prepare", 4), "barrier", "b", ("check", 4),
        ("prepare", 5), "barrier", "c", ("check", 5),
    ]  # fmt: skip
    assert block.wrong == []
    assert (block.left_ns >= block.entered_ns).all()
    assert block.elapsed_s > 0


def test_every_wrong_call_is_kept() -> None:
    data: Any = SimpleNamespace(
        prepare=lambda i: None, check=lambda i: Wrong(i, f"call {i}") if i in (2, 5) else None
    )
    block = run_calls([lambda: None], data, SimpleNamespace(Barrier=lambda: None), 0, 7)
    assert block.wrong == [Wrong(2, "call 2"), Wrong(5, "call 5")]


@pytest.mark.parametrize(
    ("nbytes", "call_s", "iterations"),
    [
        (8, 1e-6, 1000),
        (65536, 1e-6, 1000),
        (65537, 1e-6, 100),
        (8, 1e-3, 400),
        (2**24, 0.04, 10),
        (2**24, 9, 5),
        (8, 0, 1000),
    ],
)
def test_choice_of_iterations(nbytes: int, call_s: float, iterations: int) -> None:
    assert choose_iterations(nbytes, call_s) == iterations


def test_summary() -> None:
    found = summarise(np.array([4000, 1000, 2000, 9000], np.int64))
    assert (found.median_us, found.min_us, found.max_us) == (3.0, 1.0, 9.0)


def test_garbage_collector() -> None:
    assert gc.isenabled()
    with pytest.raises(KeyError), garbage_collector_off():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()


def order(mine: Block, entries: list[list[int]]) -> list[Wrong]:
    """`check_order` on a node with the given times of entry."""

    def allgather(_: Any, into: np.ndarray) -> None:
        into[...] = entries

    node = SimpleNamespace(size=len(entries), Allgather=allgather)
    return check_order(mine, node)


def test_order_of_a_barrier() -> None:
    entered, left = np.array([100, 200, 300]), np.array([110, 210, 310])
    block = Block(entered, left, [], 1.0)
    assert order(block, [[100, 200, 300], [105, 195, 310]]) == []
    [wrong] = order(block, [[100, 200, 300], [105, 2210, 311]])
    assert wrong.count == 2
    assert wrong.text == (
        "index 1: expected to leave after the last rank had entered, found that it left 2.0 us before rank 1"
        " of this host had"
    )
