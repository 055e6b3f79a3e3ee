"""Ranks on cores, drawn in text."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Seat", "picture"]

# A rank, and the CPUs that it may use as the bits of a number.
Seat = tuple[int, int]

_MOST_HOSTS, _MOST_RANKS, _MOST_CPUS = 4, 16, 64


def picture(hosts: Sequence[tuple[str, int, Sequence[Seat]]]) -> str:
    """One line a rank, one column a CPU: ``#`` where the rank may run.

    Hosts whose ranks sit alike are drawn once.

    Parameters
    ----------
    hosts
        Name, CPUs and seats of each host.
    """
    alike: dict[tuple[int, tuple[int, ...]], list[tuple[str, Sequence[Seat]]]] = {}
    for name, cpus, seats in hosts:
        alike.setdefault((cpus, tuple(mask for _, mask in seats)), []).append((name, seats))
    lines: list[str] = []
    for (cpus, masks), members in list(alike.items())[:_MOST_HOSTS]:
        name, seats = members[0]
        more = f", and {len(members) - 1} more alike" if len(members) > 1 else ""
        lines.append(f"{name}: {len(seats)} rank{'s' * (len(seats) > 1)}, {cpus} CPUs{more}")
        for (rank, _), mask in list(zip(seats, masks, strict=True))[:_MOST_RANKS]:
            lines.append(f"  rank {rank:<5} {_row(mask, cpus)}")
        if len(seats) > _MOST_RANKS:
            lines.append(f"  ... {len(seats) - _MOST_RANKS} more ranks")
    if len(alike) > _MOST_HOSTS:
        lines.append(f"... {len(alike) - _MOST_HOSTS} more kinds of hosts")
    return "\n".join(lines)


def _row(mask: int, cpus: int) -> str:
    if cpus > _MOST_CPUS:
        return f"CPUs {ranges(mask)}"
    return "".join("#" if mask >> cpu & 1 else "." for cpu in range(cpus))


def ranges(mask: int) -> str:
    """Bits of `mask` as ``0-3,8``."""
    parts: list[str] = []
    bit = 0
    while mask >> bit:
        if mask >> bit & 1:
            first = bit
            while mask >> (bit + 1) & 1:
                bit += 1
            parts.append(str(first) if first == bit else f"{first}-{bit}")
        bit += 1
    return ",".join(parts)
