"""Slurm's short forms for host names: ``rack[1-2]node[01-03],login`` and back to single names.

``scontrol show hostnames`` knows them best and is asked first; `expand` is for where there is none, and for
the forms that it refuses, such as a suffix after the brackets. (The library python-hostlist does the same; it
is under the GPL, which would bind those who ship hpccoll, so the tests compare with it and nothing imports it.)
"""

import itertools
import math
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping

from hpccoll.errors import ArgumentError

__all__ = ["MOST_HOSTS", "allocated_hosts", "expand", "hosts"]

MOST_HOSTS = 1_000_000
_SCONTROL_S = 10.0
_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\],\s]+)")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


def hosts(text: str) -> list[str]:
    """Names in the node list `text`, by ``scontrol show hostnames`` where it is there, else by `expand`.

    Raises
    ------
    ArgumentError
        If `text` is not a node list.
    """
    scontrol = shutil.which("scontrol")
    if scontrol and "[" in text:
        try:
            done = subprocess.run(
                [scontrol, "show", "hostnames", text],
                capture_output=True,
                text=True,
                timeout=_SCONTROL_S,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired):
            return expand(text)
        names = done.stdout.split()
        # It prints its complaints on either stream, and exits 0 with them.
        if names and not done.returncode and not done.stderr and "[" not in done.stdout:
            return names
    return expand(text)


def allocated_hosts(environ: Mapping[str, str] | None = None) -> list[str] | None:
    """Hosts of the Slurm job that this process runs in; None outside one.

    Parameters
    ----------
    environ
        The variables to read; those of this process if left out.
    """
    env = os.environ if environ is None else environ
    text = env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST")
    return hosts(text) if text else None


def expand(text: str) -> list[str]:
    """Names in the node list `text`, in order, repeated ones repeated.

    A name may have several brackets, each with numbers and ranges: ``gpu-a[1-2]-b[003-005,9]-ib``. Every number
    of a range has at least as many digits as its first one is written with. The last bracket varies fastest.

    Raises
    ------
    ArgumentError
        If a bracket is open, empty, or holds something else, if a range runs backwards, or if there would be more
        than a million names.
    """
    names: list[str] = []
    for item in _items(text):
        pieces, end = [], 0
        for match in _PART.finditer(item):
            if match.start() != end:
                break
            end = match.end()
            pieces.append([match[2]] if match[2] is not None else list(_numbers(match[1], text)))
        if end != len(item):
            raise ArgumentError(f"node list {text!r}: {item!r} has a bracket without its partner")
        if len(names) + math.prod(map(len, pieces)) > MOST_HOSTS:
            raise ArgumentError(f"node list {text!r} has more than {MOST_HOSTS} names")
        names += map("".join, itertools.product(*pieces))
    return names


def _items(text: str) -> Iterator[str]:
    """The parts between the commas and spaces that stand outside brackets."""
    for match in re.finditer(r"(?:\[[^\]]*\]?|[^\[,\s])+", text):
        yield match[0]


def _numbers(inside: str, text: str) -> Iterator[str]:
    for part in inside.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ArgumentError(
                f"node list {text!r}: [{inside}] must hold numbers and ranges like 1,003-005, not {part!r}"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ArgumentError(f"node list {text!r}: the range {part!r} runs backwards")
        if last - first >= MOST_HOSTS:
            raise ArgumentError(f"node list {text!r} has more than {MOST_HOSTS} names")
        for number in range(first, last + 1):
            yield f"{number:0{len(match[1])}d}"
