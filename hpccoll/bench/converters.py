"""Types for argparse: from the text of an option to its value, or one line on what was expected."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from hpccoll.units import parse_bytes

__all__ = ["numbers", "percent", "root", "seconds", "size_option", "whole", "words"]


def size_option(text: str) -> int:
    """argparse type: a number of bytes with K, M or G."""
    try:
        return parse_bytes(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from None


def whole(least: int) -> Callable[[str], int]:
    """argparse type: a whole number of at least `least`."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"a whole number is expected, got {text!r}") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {value}")
        return value

    return convert


def words(valid: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """argparse type: one or several of `valid`, separated by commas, or ``all``."""

    def convert(text: str) -> tuple[str, ...]:
        found = tuple(text.split(","))
        for word in found:
            if word not in valid and text != "all":
                raise argparse.ArgumentTypeError(f"{word!r} is not one of {', '.join(valid)}")
        return found

    return convert


def percent(text: str) -> float:
    """argparse type: ``2%`` as 0.02."""
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = 0.0
    if not 0 < value < 100:
        raise argparse.ArgumentTypeError(f"a percentage like 2% is expected, got {text!r}")
    return value / 100


def seconds(text: str) -> float:
    """argparse type: a time above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"a number of seconds above 0 is expected, got {text!r}")
    return value


def numbers(text: str) -> tuple[int, ...]:
    """argparse type: whole numbers from 2 on, separated by commas."""
    return tuple(whole(2)(word) for word in text.split(","))


def root(text: str) -> int | str:
    """argparse type: a rank, or ``all``."""
    return text if text == "all" else whole(0)(text)
