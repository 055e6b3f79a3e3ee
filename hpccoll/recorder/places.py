"""Where the ranks of the job are: hosts, and processes of this host, which one can look at when a rank is silent."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["Place", "folded", "laid_out", "own", "states_of"]

Place = tuple[str, int, str]
"""Host, process number, and the namespace that this number is one of: containers count their own."""


def own() -> Place:
    """This process's place."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return socket.gethostname().partition(".")[0], os.getpid(), namespace


def laid_out(places: Sequence[Place], rank: int) -> tuple[dict[str, str], dict[int, int]]:
    """The ranks of each host, as text, and the process numbers of the other ranks on this rank's host.

    Parameters
    ----------
    places
        Of all ranks, in order.
    rank
        This one.
    """
    ranks: dict[str, list[int]] = {}
    for number, place in enumerate(places):
        ranks.setdefault(place[0], []).append(number)
    host, _, namespace = places[rank]
    neighbours = {
        number: places[number][1]
        for number in ranks[host]
        if places[number][2] == namespace != "" and number != rank
    }
    return {host: folded(numbers) for host, numbers in ranks.items()}, neighbours


def folded(ranks: Sequence[int]) -> str:
    """``0-3,7``; a plain comma list where they do not ascend, so that the order is kept."""
    if isinstance(ranks, range):
        return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"
    if list(ranks) != sorted(ranks):
        return ",".join(map(str, ranks))
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def states_of(neighbours: Mapping[int, int]) -> list[dict[str, object]]:
    """What has become of other ranks of this host, as a dump has it."""
    found = ((rank, pid, _state_of(pid)) for rank, pid in neighbours.items())
    return [{"rank": rank, "pid": pid, "state": state} for rank, pid, state in found if state is not None]


def _state_of(pid: int) -> str | None:
    """The kernel's letter for a process (R, S, D, T, Z), ``"gone"``, or None where the system does not tell."""
    if not Path("/proc/self/stat").exists():
        return None
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"
    except (OSError, IndexError):
        return None
