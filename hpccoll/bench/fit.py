"""Latency and bandwidth from measured times: time = alpha + beta * bytes, by segments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np

__all__ = ["MOST_SEGMENTS", "Fit", "Segment", "fit_times"]

MOST_SEGMENTS = 3
_LEAST_POINTS = 3
_NOISE = 0.02  # residuals below this share of the time are no reason for one more segment


@dataclass(frozen=True)
class Segment:
    """A stretch of sizes with one straight line.

    Attributes
    ----------
    first_nbytes, last_nbytes : int
        The least and the largest of the measured sizes in it.
    points : int
    alpha_us : float
        Latency: time of no bytes.
    us_per_byte : float
    residual : float
        The largest difference between line and measurement, relative to the measurement.
    """

    first_nbytes: int
    last_nbytes: int
    points: int
    alpha_us: float
    us_per_byte: float
    residual: float

    @property
    def gb_per_s(self) -> float | None:
        """1 / beta in GB/s; None where more bytes take no more time."""
        return 1e-3 / self.us_per_byte if self.us_per_byte > 0 else None

    def time_us(self, nbytes: float) -> float:
        """The line at `nbytes`."""
        return self.alpha_us + self.us_per_byte * nbytes


@dataclass(frozen=True)
class Fit:
    """Segments in ascending order of size."""

    segments: tuple[Segment, ...]

    @property
    def switch_points(self) -> list[tuple[int, int]]:
        """Between which two measured sizes one segment ends and the next begins."""
        return [(left.last_nbytes, right.first_nbytes) for left, right in pairwise(self.segments)]

    def time_us(self, nbytes: float) -> float:
        """Time that the fit gives for `nbytes`; beyond the measured sizes the outer segments go on."""
        for segment in self.segments:
            if nbytes <= segment.last_nbytes:
                return segment.time_us(nbytes)
        return self.segments[-1].time_us(nbytes)


def fit_times(sizes: Sequence[int], times_us: Sequence[float]) -> Fit | None:
    """Fit of at least two different sizes, in any order; None for fewer.

    Every line minimises the squares of the *relative* residuals with alpha and beta not below 0, so that small
    messages count as much as large ones. Where segments end, and how many there are (3 at most, of 3 points at
    least), minimises the Bayesian information criterion; an exhaustive search, since there are few sizes.
    """
    points = sorted(dict(zip(sizes, times_us, strict=True)).items())
    points = [(nbytes, time_us) for nbytes, time_us in points if time_us > 0]
    if len(points) < 2:
        return None
    x = np.array([nbytes for nbytes, _ in points], float)
    y = np.array([time_us for _, time_us in points], float)

    @cache
    def line(begin: int, end: int) -> tuple[float, float, float]:
        return _line(x[begin:end], y[begin:end])

    best: tuple[float, tuple[int, ...]] = (math.inf, ())
    for count in range(1, MOST_SEGMENTS + 1):
        for cuts in _cuts(len(points), count):
            cost = sum(line(begin, end)[2] for begin, end in pairwise(cuts))
            parameters = 3 * count - 1
            criterion = len(points) * math.log(cost / len(points) + _NOISE**2)
            best = min(best, (criterion + parameters * math.log(len(points)), cuts))
    segments = []
    for begin, end in pairwise(best[1]):
        alpha, beta, _ = line(begin, end)
        residual = float(np.max(np.abs(alpha + beta * x[begin:end] - y[begin:end]) / y[begin:end]))
        segments.append(Segment(int(x[begin]), int(x[end - 1]), end - begin, alpha, beta, residual))
    return Fit(tuple(segments))


def _cuts(points: int, segments: int) -> list[tuple[int, ...]]:
    """Every way to divide `points` into `segments` stretches, as bounds from 0 to `points`."""
    if segments == 1:
        return [(0, points)]
    return [
        (*head, points)
        for last in range(_LEAST_POINTS * (segments - 1), points - _LEAST_POINTS + 1)
        for head in _cuts(last, segments - 1)
    ]


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """Alpha, beta, and the sum of the squared relative residuals."""
    weights = 1 / y
    columns = np.stack((weights, x * weights))
    moments, right = columns @ columns.T, columns.sum(axis=1)
    candidates = []
    determinant = moments[0, 0] * moments[1, 1] - moments[0, 1] ** 2
    if determinant > 1e-12 * moments[0, 0] * moments[1, 1]:
        alpha, beta = np.linalg.solve(moments, right)
        candidates.append((float(alpha), float(beta)))
    if not candidates or min(candidates[0]) < 0:  # the least squares lie on the border
        candidates = [(float(right[0] / moments[0, 0]), 0.0)]
        if moments[1, 1] > 0:
            candidates.append((0.0, float(right[1] / moments[1, 1])))

    def cost(pair: tuple[float, float]) -> float:
        return float(np.sum((columns.T @ np.array(pair) - 1) ** 2))

    alpha, beta = min(candidates, key=cost)
    return alpha, beta, cost((alpha, beta))
