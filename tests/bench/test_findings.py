"""What the rows tell together, from rows made up for it."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from hpccoll.allreduce import CASE as ALLREDUCE
from hpccoll.bench.findings import late_ranks, read_model
from hpccoll.bench.guidelines import find_violations
from hpccoll.bench.measuring import Arrival, Measurement
from hpccoll.bench.options import UsageError
from hpccoll.bench.report import columns_of
from hpccoll.bench.results import Row
from hpccoll.bench.rotation import Rotation, sets_for
from hpccoll.bench.rows import complete_row, set_ratios
from hpccoll.bench.screen import Screen

ROW = Row(
    nbytes=1024, count=256, dtype="float32", op="sum", root=None, in_place=False, iterations=100, time_us=20.0
)


def measured(times_us: list[float], *, rounds: list[float] | None = None, **changes: Any) -> Measurement:
    times = np.array(times_us)
    found = Measurement("numpy", times_us=times, rounds_us=np.array(rounds or times_us))
    return replace(found, **changes)


# ---- Rows


def test_row_of_one_launch() -> None:
    arrival = Arrival(rank=2, share=0.75, after_us=3.0, uncertainty_us=1.0)
    its = measured([4.0, 1.0, 2.0, 3.0, 5.0, 6.0, 7.0], late_starts=3, warmup=9, batch=2, arrival=arrival)
    row = complete_row(ROW, ALLREDUCE, [its], 4)
    assert (row.time_us, row.ci_low_us, row.ci_high_us) == (4.0, 1.0, 7.0)
    assert (row.time_min_us, row.time_max_us, row.time_p95_us, row.time_p99_us) == (1.0, 7.0, None, None)
    assert (row.iterations, row.batch, row.warmup, row.late_starts) == (7, 2, 9, 3)
    assert row.algbw_gb_per_s == pytest.approx(1024 / 4 / 1e3)
    assert row.busbw_gb_per_s == pytest.approx(1024 / 4 / 1e3 * 1.5)
    assert (row.last_rank, row.last_share, row.last_after_us, row.clock_uncertainty_us) == (2, 0.75, 3.0, 1.0)
    assert complete_row(ROW, ALLREDUCE, [its], 1).busbw_gb_per_s is None


def test_row_of_several_launches() -> None:
    """The mean of the medians, with Student's interval; one launch counts once, however many samples it has."""
    row = complete_row(ROW, ALLREDUCE, [measured([10.0] * 50), measured([12.0]), measured([14.0, 14.0])], 2)
    assert (row.launches, row.iterations) == (3, 53)
    assert row.time_us == 12.0
    margin = 4.30265 * 2.0 / 3**0.5
    assert (row.ci_low_us, row.ci_high_us) == pytest.approx((12 - margin, 12 + margin))


def test_row_that_was_skipped() -> None:
    skipped = Measurement("c", skipped="no reason")
    assert complete_row(ROW, ALLREDUCE, [skipped, skipped], 2).skipped == "no reason"


def test_ratio_is_of_the_rounds() -> None:
    rounds = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
    base, twice = measured(rounds), measured([2 * value for value in rounds])
    first, second = set_ratios([ROW, ROW], [[base], [twice]])
    assert (first.ratio, second.ratio, second.ratio_low, second.ratio_high) == (1.0, 2.0, 2.0, 2.0)
    three = [[base] * 3, [twice, measured([3 * value for value in rounds]), twice]]
    over_launches = set_ratios([ROW, ROW], three)[1]
    assert over_launches.ratio == pytest.approx(7 / 3)
    [alone] = set_ratios([ROW], [[base]])
    assert alone.ratio is None
    missing = set_ratios([ROW, replace(ROW, skipped="x")], [[base], [Measurement("c", skipped="x")]])
    assert missing[1].ratio is None


# ---- Late ranks


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, True),
        ({"last_share": 0.5}, False),  # by chance, of two ranks
        ({"iterations": 29}, False),
        ({"clock_uncertainty_us": 60.0}, False),
        ({"last_after_us": 9.0}, False),  # the others hardly wait for it
        ({"time_us": None}, False),
        ({"last_rank": None}, False),
    ],
)
def test_who_is_named(changes: dict[str, Any], named: bool) -> None:
    late = {
        "last_rank": 3,
        "last_host": "n7",
        "last_share": 0.9,
        "last_after_us": 100.0,
        "clock_uncertainty_us": 1.0,
    }
    lines = late_ranks([replace(ROW, **{**late, **changes})])
    assert bool(lines) == named
    if named:
        assert lines[0].startswith("rank 3 (n7) came last in 90 % of the calls of 1K, 100 us after the first")


def test_a_rank_is_named_once() -> None:
    late = replace(ROW, last_rank=3, last_host="n7", last_share=0.9, clock_uncertainty_us=1.0)
    rows = [replace(late, last_after_us=value, nbytes=size) for value, size in ((50, 8), (70, 16), (60, 32))]
    [line] = late_ranks(rows)
    assert "of 16, 70.0 us" in line


# ---- Guidelines


@pytest.mark.parametrize(
    ("ratio", "high", "violated"),
    [(0.8, 0.9, True), (0.97, 0.98, False), (0.8, 1.1, False), (0.8, None, False)],
)
def test_violations(ratio: float, high: float | None, violated: bool) -> None:
    row = replace(ROW, engine="c:reduce+broadcast", ratio=ratio, ratio_high=high)
    hints = find_violations("allreduce", [replace(ROW, engine="numpy", ratio=0.1, ratio_high=0.2), row])
    assert bool(hints) == violated
    if violated:
        assert "allreduce of 1K through c takes 1.25 times as long as reduce + broadcast" in hints[0]


# ---- Models


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "cannot read"),
        ("{}", "cannot read"),
        (
            '{"format": "x", "header": {"collective": "allreduce", "ranks": 4}, "rows": []}',
            "(x), not of allreduce",
        ),
        (
            '{"format": "hpccoll.bench/1", "header": {"collective": "allreduce", "ranks": 4}, "rows": []}',
            "has no times",
        ),
        (
            '{"format": "hpccoll.bench/1", "header": {"collective": "allreduce", "ranks": 4}, "rows": [{"a": 1}]}',
            "cannot read",
        ),
    ],
)
def test_model_that_is_none(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_model(ALLREDUCE, path)
    assert problem in str(caught.value)
    assert str(path) in str(caught.value)


def test_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_model(ALLREDUCE, tmp_path / "nothing.json")
    json.dumps({})


# ---- Buffers in turn


@pytest.mark.parametrize(
    ("rotate", "one", "limit", "sets"),
    [
        (0, 100, None, 1),
        (1000, 100, None, 10),
        (1001, 100, None, 11),
        (1000, 100, 450, 4),
        (1000, 100, 50, 1),
        (5, 0, 9, 5),
    ],
)
def test_number_of_sets(rotate: int, one: int, limit: int | None, sets: int) -> None:
    assert sets_for(rotate, one, limit) == sets


def test_order_of_sets() -> None:
    """Each is prepared once for each of its turns, and long before it."""
    events: list[str] = []

    def make() -> Any:
        name = f"s{len(made)}"
        made.append(name)
        return SimpleNamespace(
            prepare=lambda i: events.append(f"p{name}:{i}"),
            check=lambda i: events.append(f"c{name}:{i}"),
            windows=lambda kind: [(f"{name}w{w}", None) for w in range(2)],
            check_rest=lambda: [name],
        )

    made: list[str] = []
    data = Rotation(make, 3)
    assert [send for send, _ in data.windows("numpy")] == ["s0w0", "s1w1", "s2w0", "s0w1", "s1w0", "s2w1"]
    for iteration in range(4):
        data.prepare(iteration)
        data.check(iteration)
    assert events == [
        "ps0:0", "ps1:1", "ps2:2", "cs0:0", "ps0:3", "cs1:1", "ps1:4", "cs2:2", "ps2:5", "cs0:3", "ps0:6",
    ]  # fmt: skip
    assert data.check_rest() == ["s0", "s1", "s2"]  # type: ignore[comparison-overlap]


# ---- The table on a terminal


def test_screen() -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=200, color_system=None)
    columns = columns_of(ALLREDUCE, engines=("numpy", "c"), wide=False)
    screen = Screen(columns, total=4, console=console)
    screen.start()
    for number in range(40):
        screen.next(f"{number} bytes")
        screen.row([column.text(replace(ROW, nbytes=number)) for column in columns])
    screen.row(["7", "1", "float32", "sum", "c", "barrier"], "skipped: too big")
    screen.note("# WRONG")
    screen.refresh()
    assert screen.stop() == ["# 7 1 float32 sum c barrier: skipped: too big", "# WRONG"]
    shown = text.getvalue().rpartition("median")[2]
    assert "39" in shown
    assert shown.count("20.00") == 40  # all of them, however high the terminal is
    assert "skipped" in shown
