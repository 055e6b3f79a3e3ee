"""Fits against lines that are known, and against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import nnls

from hpccoll.bench.fit import Fit, Segment, fit_times
from hpccoll.bench.model import ALGORITHMS, link_of, predict_us

SIZES = [2**power for power in range(3, 25)]


def test_one_line() -> None:
    fit = fit_times(SIZES, [2.0 + 0.001 * nbytes for nbytes in SIZES])
    assert fit is not None
    [segment] = fit.segments
    assert (segment.alpha_us, segment.us_per_byte) == pytest.approx((2.0, 0.001))
    assert segment.gb_per_s == pytest.approx(1.0)
    assert (segment.first_nbytes, segment.last_nbytes, segment.points) == (8, 2**24, len(SIZES))
    assert segment.residual < 1e-6
    assert fit.switch_points == []


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_switch_points(noise: float) -> None:
    """Eager below 4K, rendezvous above, another algorithm above 1M."""
    rng = np.random.default_rng(1)

    def time_us(nbytes: int) -> float:
        exact = (
            1 + 0.0005 * nbytes
            if nbytes <= 4096
            else 8 + 0.0002 * nbytes
            if nbytes <= 2**20
            else 900 + 0.0001 * nbytes
        )
        return float(exact * (1 + noise * rng.standard_normal()))

    fit = fit_times(SIZES, [time_us(nbytes) for nbytes in SIZES])
    assert fit is not None
    assert fit.switch_points == [(4096, 8192), (2**20, 2**21)]
    assert fit.segments[1].us_per_byte == pytest.approx(0.0002, rel=0.05)
    assert all(segment.residual < 0.01 + 4 * noise for segment in fit.segments)
    assert fit.time_us(2**26) == pytest.approx(900 + 0.0001 * 2**26, rel=0.1)


def test_noise_makes_no_segments() -> None:
    rng = np.random.default_rng(3)
    counts = []
    for _ in range(20):
        times = [(5 + 0.001 * nbytes) * (1 + 0.03 * rng.standard_normal()) for nbytes in SIZES]
        fit = fit_times(SIZES, times)
        assert fit is not None
        counts.append(len(fit.segments))
    assert counts.count(1) >= 18


def test_least_squares_of_the_relative_residuals() -> None:
    rng = np.random.default_rng(4)
    for _ in range(20):
        x = np.sort(rng.choice(np.arange(1, 10_000), 5, replace=False))
        y = rng.uniform(1, 20, 5)
        known, _ = nnls(np.stack((1 / y, x / y), axis=1), np.ones(5))
        fit = fit_times(x.tolist(), y.tolist())
        assert fit is not None
        [segment] = fit.segments
        assert (segment.alpha_us, segment.us_per_byte) == pytest.approx(tuple(known), rel=1e-6, abs=1e-9)


def test_larger_messages_that_are_faster_have_no_bandwidth() -> None:
    fit = fit_times([8, 16, 32], [3.0, 2.0, 1.0])
    assert fit is not None
    assert fit.segments[0].us_per_byte == 0
    assert fit.segments[0].gb_per_s is None


def test_too_few_sizes() -> None:
    assert fit_times([8], [1.0]) is None
    assert fit_times([8, 8], [1.0, 2.0]) is None
    two = fit_times([0, 1000], [1.0, 2.0])
    assert two is not None
    assert two.segments[0].alpha_us == pytest.approx(1.0)


# ---- The model, by hand


def flat(alpha_us: float, us_per_byte: float) -> Fit:
    return Fit((Segment(8, 2**24, 20, alpha_us, us_per_byte, 0.0),))


def test_link() -> None:
    """On 4 ranks recursive doubling has 2 messages, and a ring moves 3/2 of S."""
    link = link_of("allreduce", 4, flat(10.0, 0.003))
    assert link is not None
    assert link == pytest.approx((5.0, 0.002))
    assert link_of("allreduce", 1, flat(10.0, 0.003)) is None


def test_predictions() -> None:
    link = link_of("allreduce", 4, flat(10.0, 0.003))
    assert link is not None
    found = predict_us("allreduce", link, 1000, 8)
    assert found == pytest.approx(
        {
            "ring": 14 * 5 + 14 / 8 * 1000 * 0.002,
            "recursive doubling": 3 * (5 + 2),
            "tree": 6 * (5 + 2),
        }
    )
    two = predict_us("allreduce", link, 1000, 8, ranks_per_node=4)
    assert two["two-level"] == pytest.approx(4 * (5 + 2) + 1 * (5 + 2))
    assert "two-level" not in predict_us("allgather", link, 1000, 8, ranks_per_node=4)
    assert predict_us("barrier", link, 0, 1000)["recursive doubling"] == pytest.approx(10 * 5)


@pytest.mark.parametrize("collective", ALGORITHMS)
def test_model_agrees_with_the_fit_where_that_comes_from(collective: str) -> None:
    """On the same ranks no algorithm beats the fit, and at the ends one reaches it."""
    fit = flat(20.0, 0.01)
    link = link_of(collective, 8, fit)
    assert link is not None
    for nbytes in (0, 2**30) if collective != "barrier" else (0,):
        best = min(predict_us(collective, link, nbytes, 8).values())
        assert best >= fit.time_us(nbytes) * 0.99
        assert best == pytest.approx(fit.time_us(nbytes), rel=0.01)
