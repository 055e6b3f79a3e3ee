"""What the user sets in the environment: every ``HPCCOLL_`` variable, its values, and an error that names it."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hpccoll.errors import ArgumentError

__all__ = [
    "ALL",
    "ALLOW_SINGLETONS",
    "CHECK",
    "CUDA_AWARE",
    "DUMP_DIR",
    "EXIT_TIMEOUT_S",
    "RECORDER",
    "TIMEOUT_S",
    "TORCH_ABORT",
    "TORCH_WAIT",
    "Setting",
    "check",
    "doubtful",
    "seconds",
]

_MOST_OPERATIONS = 10_000_000
_ON, _OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_ALIKE = 0.75  # HPCCOLL_TIMEOUT is meant to be one of ours, HPCCOLL_HOME is a site's own


@dataclass(frozen=True)
class Setting:
    """A variable of the environment.

    Attributes
    ----------
    name : str
    meaning : str
        For the help.
    wanted : str
        What its value must be, for the error.
    default : object
        What `get` gives where it is not set, or empty.
    read : callable
        From text to value; raises ValueError.
    """

    name: str
    meaning: str
    wanted: str
    default: Any
    read: Callable[[str], Any]

    def get(self, environ: Mapping[str, str] | None = None) -> Any:
        """The value; ArgumentError if the text is none."""
        text = self.text(environ)
        if not text:
            return self.default
        try:
            return self.read(text)
        except ValueError:
            raise ArgumentError(f"{self.name} must be {self.wanted}; got {text!r}") from None

    def get_or_default(self, environ: Mapping[str, str] | None = None) -> Any:
        """The value, also where the text is none: for what is read before anybody could be told."""
        try:
            return self.get(environ)
        except ArgumentError:
            return self.default

    def text(self, environ: Mapping[str, str] | None = None) -> str:
        """As it stands in the environment."""
        return (os.environ if environ is None else environ).get(self.name, "").strip()


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > _MOST_OPERATIONS:
        raise ValueError
    return int(text)


def _flag(text: str) -> bool:
    if text.lower() not in _ON + _OFF:
        raise ValueError
    return text.lower() in _ON


def _one_of(values: Mapping[str, Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if text.lower() not in values:
            raise ValueError
        return values[text.lower()]

    return read


def _seconds(value: object) -> float:
    limit_s = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    if not 0 < limit_s < math.inf:
        raise ValueError
    return limit_s


def seconds(value: object, name: str) -> float:
    """A limit in seconds, above 0 and finite, or ArgumentError."""
    try:
        return _seconds(value)
    except (TypeError, ValueError):
        raise ArgumentError(f"{name} must be {_SECONDS}; got {value!r}") from None


_SECONDS = "a number of seconds above 0"
_SWITCH = "1 (on) or 0 (off)"

TIMEOUT_S = Setting(
    "HPCCOLL_TIMEOUT_S",
    "seconds that an operation may take before the job is ended (no limit)",
    _SECONDS,
    None,
    _seconds,
)
CHECK = Setting(
    "HPCCOLL_CHECK",
    "1: the ranks compare what they call before each collective; nan: and look for NaN and infinity (0)",
    "1 (the ranks compare their calls), nan (and look for NaN and infinity) or 0 (off)",
    False,
    _one_of({**dict.fromkeys(_OFF, False), **dict.fromkeys(_ON, True), "nan": "nan"}),
)
RECORDER = Setting(
    "HPCCOLL_RECORDER",
    "operations that the flight recorder keeps (1024); 0 turns it off",
    f"the number of operations to keep, 0 (off) to {_MOST_OPERATIONS}",
    1024,
    _whole,
)
DUMP_DIR = Setting("HPCCOLL_DUMP_DIR", "where dumps go (./hpccoll-dump-...)", "a directory", "", str)
EXIT_TIMEOUT_S = Setting(
    "HPCCOLL_EXIT_TIMEOUT_S",
    "seconds for what is pending at the end, and for MPI_Finalize (30)",
    _SECONDS,
    30.0,
    _seconds,
)
CUDA_AWARE = Setting(
    "HPCCOLL_CUDA_AWARE",
    "1: MPI takes CUDA memory as it is, if a self-test passes (0)",
    _SWITCH,
    False,
    _flag,
)
TORCH_WAIT = Setting(
    "HPCCOLL_TORCH_WAIT",
    "spin or sleep: how a rank of torch.distributed waits (sleep where cores are short)",
    "spin or sleep",
    None,
    _one_of({"spin": "spin", "sleep": "sleep"}),
)
TORCH_ABORT = Setting(
    "HPCCOLL_TORCH_ABORT",
    "0: an uncaught exception ends its rank only, not the job (1)",
    _SWITCH,
    True,
    _flag,
)
ALLOW_SINGLETONS = Setting(
    "HPCCOLL_ALLOW_SINGLETONS",
    "1: go on where MPI knows fewer ranks than the launcher (0)",
    _SWITCH,
    False,
    _flag,
)

ALL = (
    TIMEOUT_S,
    CHECK,
    RECORDER,
    DUMP_DIR,
    EXIT_TIMEOUT_S,
    CUDA_AWARE,
    TORCH_WAIT,
    TORCH_ABORT,
    ALLOW_SINGLETONS,
)


def check(environ: Mapping[str, str] | None = None) -> None:
    """Raise ArgumentError with the first setting whose value is wrong, or that another one rules out."""
    for setting in ALL:
        setting.get(environ)
    if TIMEOUT_S.get(environ) is not None and not RECORDER.get(environ):
        raise ArgumentError(f"{TIMEOUT_S.name} needs the flight recorder: unset {RECORDER.name}=0")


def doubtful(environ: Mapping[str, str] | None = None) -> list[str]:
    """A sentence for each variable that looks like a setting misspelt, and would be without effect."""
    ours = {setting.name.partition("_")[2]: setting.name for setting in ALL}
    found = []
    for name in sorted(os.environ if environ is None else environ):
        prefix, _, rest = name.partition("_")
        meant = (
            difflib.get_close_matches(rest.upper(), ours, 1, _ALIKE) if prefix.upper() == "HPCCOLL" else []
        )
        if meant and ours[meant[0]] != name:
            found.append(f"{name} has no effect: hpccoll reads {ours[meant[0]]}")
    return found
