"""Statistics of samples: median with its interval, percentiles, interval over launches. Formulas: docs/methods.md."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

__all__ = [
    "LEAST_FOR_P95",
    "LEAST_FOR_P99",
    "Interval",
    "Summary",
    "launch_interval",
    "median_interval",
    "order_rank",
    "ratio_interval",
    "summarise",
    "t_quantile",
]

LEAST_FOR_P95, LEAST_FOR_P99 = 20, 100
_TAIL = 0.025
_EXACT = 100_000
_Z = 1.959963984540054
# Student's t, 97.5 %, for 1 to 30 degrees of freedom.
_T = (
    *(12.7062, 4.30265, 3.18245, 2.77645, 2.57058, 2.44691, 2.36462, 2.30600, 2.26216, 2.22814),
    *(2.20099, 2.17881, 2.16037, 2.14479, 2.13145, 2.11991, 2.10982, 2.10092, 2.09302, 2.08596),
    *(2.07961, 2.07387, 2.06866, 2.06390, 2.05954, 2.05553, 2.05183, 2.04841, 2.04523, 2.04227),
)


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % confidence interval; the bounds are None where there are too few samples."""

    value: float
    low: float | None
    high: float | None

    @property
    def half_width(self) -> float | None:
        """Half the interval relative to the value; None where there is no interval."""
        if self.low is None or self.high is None or self.value == 0:
            return None
        return (self.high - self.low) / 2 / abs(self.value)


@dataclass(frozen=True)
class Summary:
    """Samples in a nutshell, in their own unit.

    Attributes
    ----------
    samples : int
    median : Interval
    least, most, mean : float
    p95, p99 : float or None
        None below 20 and 100 samples.
    cv : float or None
        Standard deviation (n - 1) relative to the mean; None for a single sample.
    """

    samples: int
    median: Interval
    least: float
    most: float
    mean: float
    p95: float | None
    p99: float | None
    cv: float | None


@lru_cache(maxsize=4096)
def order_rank(samples: int) -> int:
    """Largest k such that the k-th least and the k-th largest sample enclose the median with 95 %; 0 if none do.

    It is the largest k with P(X < k) <= 0.025 for X binomial (n, 1/2), whatever the distribution. Above 100,000
    samples the normal approximation gives it.
    """
    if samples > _EXACT:
        return math.floor((samples - _Z * math.sqrt(samples)) / 2)
    log_factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, samples + 1)))))
    upto = samples // 2 + 1
    logs = log_factorial[samples] - log_factorial[:upto] - log_factorial[samples - np.arange(upto)]
    below = np.cumsum(np.exp(logs - samples * math.log(2)))  # P(X <= i)
    return int(np.searchsorted(below, _TAIL, side="right"))


def median_interval(samples: np.ndarray) -> Interval:
    """Median and its 95 % interval by order statistics."""
    ordered = np.sort(samples)
    k = order_rank(ordered.size)
    middle = float(np.median(ordered))
    if k == 0:
        return Interval(middle, None, None)
    return Interval(middle, float(ordered[k - 1]), float(ordered[-k]))


def summarise(samples: np.ndarray) -> Summary:
    """Summary of at least one sample."""
    values = np.asarray(samples, np.float64)
    mean = float(values.mean())
    return Summary(
        samples=values.size,
        median=median_interval(values),
        least=float(values.min()),
        most=float(values.max()),
        mean=mean,
        p95=float(np.percentile(values, 95)) if values.size >= LEAST_FOR_P95 else None,
        p99=float(np.percentile(values, 99)) if values.size >= LEAST_FOR_P99 else None,
        cv=float(values.std(ddof=1)) / mean if values.size > 1 and mean else None,
    )


def t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t; above 30 degrees of freedom by two terms of Cornish and Fisher."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    first = (_Z**3 + _Z) / (4 * freedom)
    second = (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / (96 * freedom**2)
    return _Z + first + second


def launch_interval(medians: np.ndarray) -> Interval:
    """Mean of the medians of launches, with Student's 95 % interval; launches, unlike calls, are independent."""
    mean = float(np.mean(medians))
    if len(medians) < 2:
        return Interval(mean, None, None)
    margin = t_quantile(len(medians) - 1) * float(np.std(medians, ddof=1)) / math.sqrt(len(medians))
    return Interval(mean, mean - margin, mean + margin)


def ratio_interval(above: np.ndarray, below: np.ndarray) -> Interval:
    """Median of the ratios of paired blocks, with its interval."""
    return median_interval(np.asarray(above) / np.asarray(below))
