"""The bandwidth definitions, by hand, and the blocks of each collective."""

from __future__ import annotations

import importlib

import pytest

from hpccoll.bench.case import ALL, Case, Place, Source

NAMES = (
    "allreduce", "broadcast", "reduce", "allgather", "gather", "scatter", "reduce_scatter", "alltoall", "sendrecv",
)  # fmt: skip


def case(name: str) -> Case:
    found = importlib.import_module(f"hpccoll.{name}").CASE
    assert isinstance(found, Case)
    assert found.name == name
    return found


@pytest.mark.parametrize(
    ("name", "one", "two", "three", "eight"),
    [
        ("allreduce", 0, 1, 4 / 3, 1.75),
        ("broadcast", 1, 1, 1, 1),
        ("reduce", 1, 1, 1, 1),
        ("sendrecv", 1, 1, 1, 1),
        ("allgather", 0, 0.5, 2 / 3, 0.875),
        ("gather", 0, 0.5, 2 / 3, 0.875),
        ("scatter", 0, 0.5, 2 / 3, 0.875),
        ("reduce_scatter", 0, 0.5, 2 / 3, 0.875),
        ("alltoall", 0, 0.5, 2 / 3, 0.875),
    ],
)
def test_bus_bandwidth_factors(name: str, one: float, two: float, three: float, eight: float) -> None:
    factors = [case(name).busbw(size) for size in (1, 2, 3, 8)]
    assert factors == pytest.approx([one, two, three, eight])


@pytest.mark.parametrize("name", NAMES)
def test_sizes_are_rounded_to_whole_counts(name: str) -> None:
    blocks = 3 if name in ("allgather", "gather", "scatter", "reduce_scatter", "alltoall") else 1
    this = case(name)
    assert this.count(0, 4, 3) == 0
    assert this.nbytes(0, 4, 3) == 0
    assert this.count(1, 4, 3) == 1  # bytes were asked for, so there are some
    assert this.nbytes(1, 4, 3) == 4 * blocks
    assert this.count(1000, 4, 3) == 1000 // 4 // blocks
    assert this.nbytes(this.count(1000, 4, 3), 4, 3) == 1000 // 4 // blocks * 4 * blocks


@pytest.mark.parametrize("name", NAMES)
def test_a_rank_receives_what_it_should(name: str) -> None:
    """Rank 1 of 3, and rank 2 as the root."""
    every = [Source(0, 0), Source(1, 0), Source(2, 0)]
    expected = {
        "allreduce": (1, [Source(ALL, 0)], 1, [Source(ALL, 0)]),
        "broadcast": (0, [Source(2, 0)], 1, [Source(2, 0)]),
        "reduce": (1, [], 1, [Source(ALL, 0)]),
        "allgather": (1, every, 1, every),
        "gather": (1, [], 1, every),
        "scatter": (0, [Source(2, 1)], 3, [Source(2, 2)]),
        "reduce_scatter": (3, [Source(ALL, 1)], 3, [Source(ALL, 2)]),
        "alltoall": (
            3,
            [Source(0, 1), Source(1, 1), Source(2, 1)],
            3,
            [Source(0, 2), Source(1, 2), Source(2, 2)],
        ),
        "sendrecv": (1, [Source(0, 0)], 1, [Source(1, 0)]),
    }[name]
    this, other, root = case(name), Place(1, 3, 2), Place(2, 3, 2)
    assert (
        this.sends(other),
        list(this.expects(other)),
        this.sends(root),
        list(this.expects(root)),
    ) == expected


@pytest.mark.parametrize("name", [*NAMES, "barrier"])
def test_docstring_opens_with_a_command_that_runs(name: str) -> None:
    text = importlib.import_module(f"hpccoll.{name}").__doc__ or ""
    assert text.startswith(f"``mpirun -n 4 python -m hpccoll.{name}`` ")
