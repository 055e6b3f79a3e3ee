"""The loop's order of events, the choice of iterations, and the statistics."""

from __future__ import annotations

import gc
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpccoll.bench.arrival import check_order
from hpccoll.bench.engines import Bound
from hpccoll.bench.storage import Wrong
from hpccoll.bench.timing import (
    Block,
    choose_batch,
    choose_iterations,
    garbage_collector_off,
    join_blocks,
    run_calls,
)


class Call(Bound):
    """Writes down what happens to it."""

    def __init__(self, name: str, events: list[Any]) -> None:
        super().__init__(lambda: events.append(name))
        self._name, self._events = name, events

    def load(self) -> None:
        self._events.append(f"load {self._name}")

    def unload(self) -> None:
        self._events.append(f"unload {self._name}")


def test_order_of_events() -> None:
    """Preparation, barrier, call, check; each sample has its own window, and its number goes on after the warm-up."""
    events: list[Any] = []
    data: Any = SimpleNamespace(
        prepare=lambda i: events.append(("prepare", i)), check=lambda i: events.append(("check", i))
    )
    gate: Any = SimpleNamespace(wait=lambda: events.append("gate"))
    calls = [Call(name, events) for name in "abc"]
    block = run_calls(calls, data, gate, first=4, number=2)
    assert events == [
        ("prepare", 4), "load b", "gate", "b", "unload b", ("check", 4),
        ("prepare", 5), "load c", "gate", "c", "unload c", ("check", 5),
    ]  # fmt: skip
    assert (block.wrong, block.right.tolist()) == ([], [True, True])
    assert (block.left_ns >= block.entered_ns).all()
    assert block.elapsed_s > 0


def test_batch_is_called_back_to_back() -> None:
    events: list[Any] = []
    gate: Any = SimpleNamespace(wait=lambda: events.append("gate"))
    run_calls([Call("a", events)], None, gate, first=0, number=2, batch=3)
    assert events == ["gate", "a", "a", "a", "gate", "a", "a", "a"]


def test_every_wrong_call_is_kept() -> None:
    data: Any = SimpleNamespace(
        prepare=lambda i: None, check=lambda i: Wrong(i, f"call {i}") if i in (2, 5) else None
    )
    gate: Any = SimpleNamespace(wait=lambda: None)
    block = run_calls([Bound(lambda: None)], data, gate, 0, 7)
    assert block.wrong == [Wrong(2, "call 2"), Wrong(5, "call 5")]
    assert np.flatnonzero(~block.right).tolist() == [2, 5]


def test_time_after_the_agreed_one() -> None:
    gate: Any = SimpleNamespace(wait=lambda: time.perf_counter_ns() - 1_000_000)
    block = run_calls([Bound(lambda: None)], None, gate, 0, 3)
    assert (block.late_ns >= 1_000_000).all()


def test_blocks_are_joined_and_thinned() -> None:
    def block(first: int) -> Block:
        values = np.arange(first, first + 3)
        return Block(values, values + 10, values * 0, values > 1, [Wrong(first, "")], 0.5)

    joined = join_blocks([block(0), block(3)]).only(np.array([True, False] * 3))
    assert joined.entered_ns.tolist() == [0, 2, 4]
    assert joined.left_ns.tolist() == [10, 12, 14]
    assert joined.right.tolist() == [False, True, True]
    assert ([item.count for item in joined.wrong], joined.elapsed_s, len(joined)) == ([0, 3], 1.0, 3)


@pytest.mark.parametrize(
    ("mode", "calls_ns", "batch"),
    [
        ("barrier", [4000], 1),
        ("barrier", [3999], 2),
        ("barrier", [100_000, 400], 10),
        ("barrier", [0], 500),
        ("window", [400], 10),
        ("pipelined", [10_000], 200),
        ("pipelined", [10_000, 1_000_000], 2),
        ("pipelined", [50_000_000], 2),
        ("pipelined", [100, 50_000_000], 40),
    ],
)
def test_choice_of_batch(mode: str, calls_ns: list[float], batch: int) -> None:
    assert choose_batch(mode, calls_ns, resolution_ns=40) == batch


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
    block = Block(entered, left, entered * 0, entered > 0, [], 1.0)
    assert order(block, [[100, 200, 300], [105, 195, 310]]) == []
    [wrong] = order(block, [[100, 200, 300], [105, 2210, 311]])
    assert wrong.count == 2
    assert wrong.text == (
        "index 1: expected to leave after the last rank had entered, found that it left 2.0 us before rank 1"
        " of this host had"
    )
