"""What the environment says about the recorder and the watchdog. A wrong value is an error that names its variable."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

from hpccoll.errors import ArgumentError

__all__ = ["DUMP_DIR", "EXIT_STATUS", "check_mode", "operations", "timeout_s"]

RECORDER, TIMEOUT, DUMP_DIR, CHECK = (
    "HPCCOLL_RECORDER",
    "HPCCOLL_TIMEOUT_S",
    "HPCCOLL_DUMP_DIR",
    "HPCCOLL_CHECK",
)

EXIT_STATUS = 76
"""With this the watchdog ends a process whose operation is over its limit, and the launcher with it the job."""

_DEFAULT_OPERATIONS = 1024
_MOST_OPERATIONS = 10_000_000


def operations(environ: Mapping[str, str] | None = None) -> int:
    """How many operations the recorder keeps: ``HPCCOLL_RECORDER``, 1024 without it; 0 turns it off."""
    text = (os.environ if environ is None else environ).get(RECORDER, "").strip()
    if not text:
        return _DEFAULT_OPERATIONS
    if not (text.isascii() and text.isdigit()) or int(text) > _MOST_OPERATIONS:
        raise ArgumentError(
            f"{RECORDER} must be the number of operations to keep, 0 (off) to {_MOST_OPERATIONS}; got {text!r}"
        )
    return int(text)


def timeout_s(environ: Mapping[str, str] | None = None) -> float | None:
    """The limit of every operation in seconds: ``HPCCOLL_TIMEOUT_S``; None without it."""
    text = (os.environ if environ is None else environ).get(TIMEOUT, "").strip()
    return None if not text else seconds(text, TIMEOUT)


def seconds(value: object, name: str) -> float:
    """A limit in seconds, above 0 and finite, or ArgumentError."""
    try:
        limit_s = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        limit_s = math.nan
    if not 0 < limit_s < math.inf:
        raise ArgumentError(f"{name} must be a number of seconds above 0, got {value!r}")
    return limit_s


def check_mode(environ: Mapping[str, str] | None = None) -> bool | str:
    """Whether check mode is wanted: ``HPCCOLL_CHECK`` as False, True or ``"nan"``."""
    text = (os.environ if environ is None else environ).get(CHECK, "").strip()
    modes: dict[str, bool | str] = {"": False, "0": False, "1": True, "nan": "nan"}
    if text not in modes:
        raise ArgumentError(
            f"{CHECK} must be 1 (the ranks compare their calls), nan (and look for NaN and infinity) or 0 (off); "
            f"got {text!r}"
        )
    return modes[text]
