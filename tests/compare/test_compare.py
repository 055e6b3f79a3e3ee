"""Slower, faster, the same, or not enough data: on runs of which it is known."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from synthetic_runs import Synthetic

from hpccoll.compare import main
from hpccoll.runs.comparing import compare, manifest_differences, read_side, t_quantile
from hpccoll.stats import has_two_modes


def make(path: Path, **options: Any) -> Path:
    Synthetic(
        **{"launches": 8, "launch_spread": 0.03, "sizes": (8, 65536), "run": path.name, **options}
    ).write(path)
    return path


def verdicts(base: Path, new: Path, within: float = 0.1) -> list[str]:
    return [item.verdict for item in compare(read_side(base), read_side(new), within)]


def test_ten_pairs_of_the_same_are_the_same(tmp_path: Path) -> None:
    sides = [read_side(make(tmp_path / f"run-{seed}", seed=seed)) for seed in range(11)]
    found = [compare(base, new, 0.1)[0].verdict for base, new in pairwise(sides)]
    assert found.count("same") >= 9
    assert not {"slower", "faster"} & set(found)


def test_a_fifth_more_is_slower(tmp_path: Path) -> None:
    for seed in range(10):
        base = make(tmp_path / f"base-{seed}", seed=seed)
        new = make(tmp_path / f"new-{seed}", seed=100 + seed, factor=1.2)
        assert verdicts(base, new)[0] == "slower"
        assert verdicts(new, base)[0] == "faster"


def test_the_numbers_against_scipy(tmp_path: Path) -> None:
    base = read_side(make(tmp_path / "a", seed=1))
    new = read_side(make(tmp_path / "b", seed=2, factor=1.1, launches=5))
    together, *cases = compare(base, new, 0.1)
    assert together.case == {}
    for item in cases:
        (key,) = [key for key in base.cases if key[2] == item.case["nbytes"]]
        old, later = np.log(base.cases[key]), np.log(new.cases[key])
        test = stats.ttest_ind(later, old, equal_var=False)
        low, high = test.confidence_interval(1 - 0.05 / 2)
        assert item.ratio == pytest.approx(math.exp(later.mean() - old.mean()))
        # Degrees of freedom are rounded down, so that the interval is never too narrow.
        assert math.log(item.low) <= low
        assert math.log(item.high) >= high
        assert math.log(item.high / item.low) == pytest.approx(high - low, rel=0.06)
        assert (item.base_repetitions, item.new_repetitions) == (8, 5)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 30, 101])
@pytest.mark.parametrize("probability", [0.6, 0.975, 0.9999])
def test_t_quantile(freedom: int, probability: float) -> None:
    assert t_quantile(freedom + 0.5, probability) == pytest.approx(
        stats.t.ppf(probability, freedom), rel=1e-9
    )


def test_one_launch_is_not_enough(tmp_path: Path) -> None:
    base, new = make(tmp_path / "a", launches=1), make(tmp_path / "b", launches=1, factor=3.0)
    found = compare(read_side(base), read_side(new), 0.1)
    assert [item.verdict for item in found] == ["unsure"] * 3
    assert [item.low for item in found] == [None] * 3
    assert found[0].ratio == pytest.approx(3.0, rel=0.1)


def test_noise_is_not_enough(tmp_path: Path) -> None:
    base, new = make(tmp_path / "a", launch_spread=0.3), make(tmp_path / "b", launch_spread=0.3, seed=5)
    assert verdicts(base, new)[0] == "unsure"


def test_several_runs_repeat_runs(tmp_path: Path) -> None:
    for seed in range(6):
        make(tmp_path / "base" / f"run-{seed}", seed=seed, launches=3)
        make(tmp_path / "new" / f"run-{seed}", seed=50 + seed, launches=3, factor=1.2)
    base, new = read_side(tmp_path / "base"), read_side(tmp_path / "new")
    assert base.unit == "run"
    found = compare(base, new, 0.1)
    assert found[0].verdict == "slower"
    assert found[0].base_repetitions == 6


def test_two_modes_are_flagged(tmp_path: Path) -> None:
    def change(rank: int, lines: list[str]) -> list[str]:
        """Every third call takes 300 us more."""
        found = []
        for number, line in enumerate(lines):
            record = json.loads(line)
            if record["type"] == "sample" and number % 3 == 0:
                record["end_ns"] += 300_000
            found.append(json.dumps(record))
        return found

    run = Synthetic(launches=3, sizes=(8,), iterations=60)
    run.write(tmp_path / "a")
    run.write(tmp_path / "b", change=change)
    (item,) = compare(read_side(tmp_path / "a"), read_side(tmp_path / "b"), 0.1)
    assert item.multimodal == "new"


def test_what_has_two_modes() -> None:
    rng = np.random.default_rng(0)
    single = [
        rng.lognormal(3, 0.1, 500),
        rng.exponential(5, 500) + 5,
        rng.gamma(2, 5, 500),
        np.full(500, 7.0),
    ]
    assert not any(map(has_two_modes, single))
    pair = np.concatenate([rng.normal(10, 0.5, 300), rng.normal(14, 0.7, 200)])
    assert has_two_modes(pair)
    assert not has_two_modes(pair[:20])


def test_baseline_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, new = make(tmp_path / "a"), make(tmp_path / "b", seed=3, factor=1.3)
    kept = tmp_path / "base.json"
    assert main([str(base), "--save", str(kept)]) == 0
    assert kept.stat().st_size < 10_000
    assert read_side(kept) == read_side(base)
    assert main([str(base), str(new), "--json", "-"]) == 0
    direct = json.loads(capsys.readouterr().out)
    assert main([str(kept), str(new), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == direct


@pytest.mark.parametrize(
    ("condition", "factor", "status"),
    [
        (["slower:5%"], 1.3, 1),
        (["slower"], 1.3, 1),
        (["slower:40%"], 1.3, 0),
        (["slower:5%"], 0.7, 0),
        (["faster"], 0.7, 1),
        (["slower:5%", "faster:5%"], 1.0, 0),
        ([], 2.0, 0),
    ],
)
def test_status(tmp_path: Path, condition: list[str], factor: float, status: int) -> None:
    base, new = make(tmp_path / "a"), make(tmp_path / "b", seed=3, factor=factor)
    options = [word for text in condition for word in ("--fail-on", text)]
    assert main([str(base), str(new), *options]) == status


def test_unsure_can_fail(tmp_path: Path) -> None:
    base, new = make(tmp_path / "a", launches=1), make(tmp_path / "b", launches=1)
    assert main([str(base), str(new), "--fail-on", "unsure"]) == 1


def test_what_differs_between_the_manifests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = {
        "versions": {"mpi": "MPI Y 2"}, "affinity": [0, 1, 2, 3], "started": "2031-01-01T00:00:00Z",
        "environment": {"OMP_NUM_THREADS": "4", "UCX_TLS": "tcp"},
    }  # fmt: skip
    base, new = make(tmp_path / "a"), make(tmp_path / "b", per_host=4, manifest=changes)
    found = {name: (one, two) for name, one, two in manifest_differences(read_side(base), read_side(new))}
    assert found["versions.mpi"] == ('"MPI X 1"', '"MPI Y 2"')
    assert found["affinity"] == ("[0, 1]", "[0, 1, 2, 3]")
    assert found["environment.OMP_NUM_THREADS"] == ('"1"', '"4"')
    assert found["environment.UCX_TLS"] == ("not set", '"tcp"')
    assert found["hosts"] == ('["node01", "node02"]', '["node01"]')
    assert not {"started", "run"} & set(found)
    assert main([str(base), str(new)]) == 0
    assert "environment.UCX_TLS" in capsys.readouterr().out
    assert list(manifest_differences(read_side(base), read_side(make(tmp_path / "c")))) == []


@pytest.mark.parametrize(
    ("base", "new", "shown"),
    [
        (["-b", "8", "--log-dir", "a"], ["--log-dir=b", "-b", "8"], []),
        (["-b", "8", "--log-dir", "a"], ["-b", "16", "--log-dir", "b"], [("argv", "-b 8", "-b 16")]),
        (["-e", "1M"], ["-e", "1M", "--check", "-w", "3"], [("argv", "without", "--check -w 3")]),
    ],
)
def test_only_arguments_that_differ_are_shown(
    tmp_path: Path, base: list[str], new: list[str], shown: list[tuple[str, str, str]]
) -> None:
    program = "/a/long/path" * 10 + "/python"
    sides = [
        read_side(make(tmp_path / str(number), manifest={"argv": [program, *arguments]}))
        for number, arguments in enumerate((base, new))
    ]
    assert list(manifest_differences(*sides)) == shown


def test_few_runs_a_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(2):
        make(tmp_path / "base" / f"run-{seed}", seed=seed, launches=2, factor=10.0**seed)
        make(tmp_path / "new" / f"run-{seed}", seed=50 + seed, launches=2, factor=30.0**seed)
    assert main([str(tmp_path / "base"), str(tmp_path / "new"), "--json", str(tmp_path / "found.json")]) == 0
    told = capsys.readouterr().out
    assert "unsure: not enough data; 2 runs a side are few: measure more, 5 or so\n" in told
    assert "> 1000 %" in told
    assert json.loads((tmp_path / "found.json").read_text())["cases"][0]["high"] > 11


def test_what_is_wrong_with_a_side_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = make(tmp_path / "a")
    Synthetic(launches=3, sizes=(8,), run="b").write(tmp_path / "b", leave_out=[3])
    assert main([str(base), str(tmp_path / "b")]) == 0
    assert "! b: 1 rank of 4 left no records: 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ["", "{}", '{"format": "other"}', "\x00", '{"format": "hpccoll.baseline/1"}']
)
def test_no_baseline(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "base.json").write_text(text)
    assert main([str(tmp_path / "base.json"), str(make(tmp_path / "a"))]) == 2
    assert "hpccoll compare: error: " in capsys.readouterr().err


def test_nothing_in_common(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(make(tmp_path / "a", sizes=(8,))), str(make(tmp_path / "b", sizes=(16,)))]) == 2
    assert "a and b have no case in common" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["a"], ["a", "b", "--fail-on", "worse"], ["a", "b", "--within", "lots"]])
def test_bad_options(words: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
