"""What this host offers to a rank: memory, cores, binding."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Binding", "available_nbytes", "binding", "processor"]


def available_nbytes(root: Path = Path("/")) -> int | None:
    """Bytes that all processes of this host together may still take; None where the system does not say.

    The least of MemAvailable and of what the control groups of this process, up to their root, leave.
    """
    found = [value for value in (_mem_available(root), _cgroup_available(root)) if value is not None]
    return min(found, default=None)


def _mem_available(root: Path) -> int | None:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return None


def _cgroup_available(root: Path) -> int | None:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    left: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, limit_name, used_name = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            base, limit_name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
            used_name = "memory.usage_in_bytes"
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            group = base.joinpath(*parts[:depth])
            limit, used = _number(group / limit_name), _number(group / used_name)
            if limit is not None and used is not None and limit < 2**60:
                left.append(max(0, limit - max(0, used - _reclaimable(group))))
    return min(left, default=None)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # ValueError: "max"
        return None


def _reclaimable(group: Path) -> int:
    """Page cache that the kernel gives back on demand, but counts as used."""
    try:
        lines = (group / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


@dataclass(frozen=True)
class Binding:
    """Cores of a host and those that a rank may use.

    Attributes
    ----------
    cores : int
        Logical CPUs that are online.
    allowed : tuple of int
        Those in this process's affinity mask.
    """

    cores: int
    allowed: tuple[int, ...]


def binding() -> Binding:
    """Affinity of this process; systems without affinity masks (macOS) count as free to use every core."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return Binding(cores, tuple(sorted(os.sched_getaffinity(0))))
    return Binding(cores, tuple(range(cores)))


def processor(root: Path = Path("/")) -> str:
    """Name of the processor's model; empty where the system does not say."""
    try:
        lines = (root / "proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu", "CPU part"):
            return value.strip()
    return ""
