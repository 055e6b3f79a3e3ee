"""Who comes late is found; where the clocks cannot tell, nothing is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_runs import Synthetic

from hpccoll.runs.analysis import Analysis, analyse
from hpccoll.runs.store import Store


def collect(run: Synthetic, directory: Path) -> Analysis:
    run.write(directory, by_node=True)
    with Store() as store:
        return analyse(store, [directory])


def test_nobody_is_late(tmp_path: Path) -> None:
    found = collect(Synthetic(ranks=16, per_host=4), tmp_path)
    assert found.stragglers == []
    assert not any(row.late for row in found.ranks)
    assert sum(row.last_share for row in found.ranks) == pytest.approx(1, abs=0.1)


def test_a_late_rank(tmp_path: Path) -> None:
    found = collect(Synthetic(ranks=16, per_host=4, late_us={5: 250.0}), tmp_path)
    (row,) = found.stragglers
    assert (row.rank, row.host) == (5, "node02")
    assert row.lateness_us == pytest.approx(250, abs=0.2)
    assert row.uncertainty_us == 1.0
    assert row.last_share == 1.0
    assert row.call_ratio < 0.5  # it does not wait
    assert found.hosts[0].text == "node02: 1 of 4 ranks late by 250 us"


@pytest.mark.parametrize("hosts", [2, 4])
def test_a_slow_host(tmp_path: Path, hosts: int) -> None:
    late = dict.fromkeys(range(8, 16), 1200.0)
    found = collect(Synthetic(ranks=8 * hosts, per_host=8, late_us=late), tmp_path)
    assert {row.rank for row in found.stragglers} == set(late)
    assert found.hosts[0].text == "node02: 8 of 8 ranks late by 1.20 ms"
    assert [row.stragglers for row in found.hosts] == [8] + [0] * (hosts - 1)


def test_stragglers_are_ranked(tmp_path: Path) -> None:
    found = collect(Synthetic(ranks=16, late_us={3: 300.0, 9: 900.0, 12: 600.0}), tmp_path)
    assert [row.rank for row in found.stragglers] == [9, 12, 3]


def test_nothing_is_claimed_below_the_uncertainty(tmp_path: Path) -> None:
    found = collect(Synthetic(ranks=8, late_us={5: 250.0}, uncertainty_ns=200_000), tmp_path)
    row = found.ranks[5]
    assert row.lateness_us == pytest.approx(250, abs=0.2)
    assert row.uncertainty_us == 400.0
    assert not row.late
    assert found.stragglers == []


def test_late_but_of_no_account(tmp_path: Path) -> None:
    """20 us on a call of 1 s are true and nothing to act on."""
    found = collect(Synthetic(ranks=8, sizes=(10**9,), late_us={5: 20.0}), tmp_path)
    assert found.ranks[5].late
    assert found.stragglers == []


@pytest.mark.parametrize("off_us", [10e6, -10e6])
def test_a_wrong_clock(tmp_path: Path, off_us: float) -> None:
    found = collect(Synthetic(ranks=8, late_us={2: 400.0}, clock_us={5: off_us}), tmp_path)
    (finding,) = found.health.findings
    assert (finding.kind, finding.ranks) == ("clock", (5,))
    assert "10.0 s" in finding.text
    assert found.ranks[5].lateness_us is None
    assert [row.rank for row in found.stragglers] == [2]


def test_clocks_that_were_never_aligned(tmp_path: Path) -> None:
    found = collect(Synthetic(ranks=8, late_us={2: 400.0}, manifest={"clock": None}), tmp_path)
    assert [row.lateness_us for row in found.ranks] == [None] * 8
    assert found.stragglers == []


def test_two_ranks(tmp_path: Path) -> None:
    found = collect(Synthetic(ranks=2, late_us={1: 100.0}), tmp_path)
    assert [row.rank for row in found.stragglers] == [1]
    assert found.ranks[1].lateness_us == pytest.approx(100, abs=0.2)
