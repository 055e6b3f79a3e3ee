"""Sizes, times and rates as text and back.

Sizes are binary (K = 2**10, M = 2**20, G = 2**30, T = 2**40), as in nccl-tests and the OSU benchmarks.
Rates are decimal: 1 GB/s is 1e9 bytes per second.
"""

import re

__all__ = ["format_bytes", "format_time_us", "parse_bytes", "rate_gb_per_s"]

_SUFFIXES = ("", "K", "M", "G", "T")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?", re.IGNORECASE | re.ASCII)


def parse_bytes(text: str) -> int:
    """Number of bytes that `text` names.

    Parameters
    ----------
    text
        A number with an optional binary suffix: ``"8"``, ``"4K"``, ``"1.5M"``, ``"16MiB"``, ``"1 gb"``.
        ``KB`` and ``KiB`` are both 1024 bytes.

    Raises
    ------
    ValueError
        If `text` is not such a size, is negative or does not come to a whole number of bytes.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"a size like 8, 4K, 1.5M or 1G is expected, got {text!r}")
    number, suffix, _ = match.groups()
    factor: int = 1024 ** _SUFFIXES.index(suffix.upper())
    whole, _, fraction = number.partition(".")
    # In integers, because a float would round sizes above 2**53.
    scale: int = 10 ** len(fraction)
    nbytes, rest = divmod(int(whole + fraction) * factor, scale)
    if rest:
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return nbytes


def format_bytes(nbytes: int) -> str:
    """Shortest exact text for `nbytes`: ``4096 -> "4K"``, ``5000 -> "5000"``; `parse_bytes` reads it back."""
    for power in range(len(_SUFFIXES) - 1, 0, -1):
        if nbytes and nbytes % 1024**power == 0:
            return f"{nbytes // 1024**power}{_SUFFIXES[power]}"
    return str(nbytes)


def format_time_us(time_us: float) -> str:
    """`time_us` microseconds in the unit that suits, in three figures: ``"12.3 us"``, ``"4.56 ms"``."""
    for limit_us, unit in ((1e3, "us"), (1e6, "ms")):
        if abs(time_us) < limit_us * 0.9995:
            return f"{_three_figures(time_us / limit_us * 1e3)} {unit}"
    return f"{_three_figures(time_us / 1e6)} s"


def _three_figures(value: float) -> str:
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f}"


def rate_gb_per_s(nbytes: float, time_us: float) -> float:
    """Rate in GB/s (1e9 bytes per second) of `nbytes` moved in `time_us`; 0.0 where no time was measured."""
    return nbytes / time_us / 1e3 if time_us > 0 else 0.0
