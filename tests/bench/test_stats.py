"""The statistics against NumPy and SciPy on the same samples."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from hpccoll.bench import histogram
from hpccoll.bench.stats import (
    Interval,
    launch_interval,
    median_interval,
    order_rank,
    ratio_interval,
    summarise,
    t_quantile,
)

SIZES = (6, 7, 10, 99, 100, 1000, 4321)


def samples(number: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(3, 0.7, number)


@pytest.mark.parametrize("number", [1, 2, 5, 6, 7, 19, 20, 99, 100, 101, 5000, 100_000, 100_001, 3_000_000])
def test_order_statistics(number: int) -> None:
    """As many samples are cut off as leave 2.5 % on each side at most."""
    k = order_rank(number)
    exact = int(scipy_stats.binom.ppf(0.025, number, 0.5))
    assert abs(k - exact) <= (0 if number <= 100_000 else 1)
    if number <= 100_000:
        assert scipy_stats.binom.cdf(k - 1, number, 0.5) <= 0.025 < scipy_stats.binom.cdf(k, number, 0.5)


@pytest.mark.parametrize("number", SIZES)
def test_median_interval(number: int) -> None:
    values = samples(number)
    found = median_interval(values)
    known = scipy_stats.quantile_test(values, q=20.0, p=0.5).confidence_interval(0.95)
    assert found.value == np.median(values)
    assert (found.low, found.high) == (known.low, known.high)


def test_too_few_samples_for_an_interval() -> None:
    assert median_interval(samples(5)) == Interval(float(np.median(samples(5))), None, None)
    assert Interval(1.0, None, None).half_width is None


def test_interval_covers_the_median() -> None:
    """In 95 of 100 runs or a little more, whatever the distribution."""
    rng = np.random.default_rng(7)
    inside = 0
    for _ in range(2000):
        found = median_interval(rng.exponential(1.0, 40))
        assert found.low is not None
        assert found.high is not None
        inside += found.low <= np.log(2) <= found.high
    assert 0.94 <= inside / 2000 <= 0.99


@pytest.mark.parametrize("number", [1, 2, 19, 20, 99, 100, 1234])
def test_summary(number: int) -> None:
    values = samples(number)
    found = summarise(values)
    assert (found.samples, found.least, found.most) == (number, values.min(), values.max())
    assert found.median.value == np.median(values)
    assert found.mean == pytest.approx(values.mean())
    assert found.p95 == (np.percentile(values, 95) if number >= 20 else None)
    assert found.p99 == (np.percentile(values, 99) if number >= 100 else None)
    if number > 1:
        assert found.cv == pytest.approx(scipy_stats.variation(values, ddof=1))
    else:
        assert found.cv is None


@pytest.mark.parametrize("freedom", [1, 2, 7, 29, 30, 31, 60, 1000])
def test_student(freedom: int) -> None:
    assert t_quantile(freedom) == pytest.approx(scipy_stats.t.ppf(0.975, freedom), rel=1e-4)


@pytest.mark.parametrize("number", [2, 3, 10, 50])
def test_interval_over_launches(number: int) -> None:
    medians = samples(number)
    found = launch_interval(medians)
    known = scipy_stats.ttest_1samp(medians, 0.0).confidence_interval(0.95)
    assert (found.value, found.low, found.high) == pytest.approx(
        (medians.mean(), known.low, known.high), rel=1e-4
    )
    assert found.half_width == pytest.approx((known.high - known.low) / 2 / medians.mean(), rel=1e-4)


def test_one_launch_has_no_interval() -> None:
    assert launch_interval(np.array([3.0])) == Interval(3.0, None, None)


def test_ratio_is_of_pairs() -> None:
    """A machine that slows down meets both, and the ratio stays."""
    below = np.array([10.0, 20, 40, 80, 160, 320, 640])
    found = ratio_interval(1.5 * below, below)
    assert (found.value, found.low, found.high) == (1.5, 1.5, 1.5)


# ---- The histogram


def test_every_value_is_within_the_error_of_its_bucket() -> None:
    edges = [2**power + step for power in range(62) for step in (-1, 0, 1)]
    values = np.unique(np.array([*range(5000), *edges, 2**63 - 1], np.int64).clip(0))
    lower, upper = histogram.bounds()
    assert (lower[1:] == upper[:-1]).all()
    assert lower[0] == 0
    for value in values.tolist():
        [place] = np.flatnonzero(histogram.count(np.array([value])))
        assert lower[place] <= value
        assert value < upper[place] or value == 2**63 - 1
        middle = (int(lower[place]) + int(upper[place]) - 1) / 2
        assert abs(middle - value) <= histogram.RELATIVE_ERROR * max(1, middle)


def test_merged_histogram_has_the_percentiles_of_all_samples() -> None:
    parts = [np.rint(samples(5000, seed) * 1000).astype(np.int64) for seed in range(4)]
    merged = sum((histogram.count(part) for part in parts), np.zeros(histogram.BUCKETS, np.int64))
    assert merged.sum() == 20_000
    for share in (0.05, 0.5, 0.95, 0.99):
        exact = np.percentile(np.concatenate(parts), 100 * share, method="inverted_cdf")
        assert histogram.quantile(merged, share) == pytest.approx(exact, rel=histogram.RELATIVE_ERROR * 1.01)
