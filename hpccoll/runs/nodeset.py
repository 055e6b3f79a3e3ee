"""Many ranks or hosts in few words: ``[0-3,5]``, ``node[01-16]``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby

__all__ = ["fold_hosts", "fold_ranks", "few"]


def fold_ranks(ranks: Iterable[int]) -> str:
    """``[0, 1, 2, 3, 5] -> "[0-3,5]"``; a single one is without brackets, none is empty text."""
    ordered = sorted(set(ranks))
    if len(ordered) == 1:
        return str(ordered[0])
    return f"[{_ranges([(number, str(number)) for number in ordered])}]" if ordered else ""


def fold_hosts(hosts: Iterable[str]) -> str:
    """``["node01", "node02", "gpu"] -> "gpu,node[01-02]"``: names that differ in their last number alone are one."""
    families: dict[tuple[str, str, int], list[tuple[int, str]]] = {}
    plain = []
    for host in sorted(set(hosts)):
        match = re.fullmatch(r"(.*?)([0-9]+)([^0-9]*)", host)
        if match is None:
            plain.append(host)
            continue
        # Numbers with leading zeros only join others of their width.
        width = len(match[2]) if match[2].startswith("0") else 0
        families.setdefault((match[1], match[3], width), []).append((int(match[2]), match[2]))
    # node09 and node10 are of one family although 10 has no leading zero.
    for prefix, suffix, width in [key for key in families if key[2]]:
        loose = families.get((prefix, suffix, 0), [])
        joined = [item for item in loose if len(item[1]) == width]
        families[prefix, suffix, width] += joined
        families[prefix, suffix, 0] = [item for item in loose if item not in joined]
    for (prefix, suffix, _), numbers in families.items():
        if len(numbers) == 1:
            plain.append(f"{prefix}{numbers[0][1]}{suffix}")
        elif numbers:
            plain.append(f"{prefix}[{_ranges(sorted(numbers))}]{suffix}")
    return ",".join(sorted(plain))


def few(items: Iterable[str], limit: int = 8) -> str:
    """The first `limit` items, and how many there are besides."""
    listed = list(items)
    more = len(listed) - limit
    return ", ".join(listed[:limit]) + (f" and {more} more" if more > 0 else "")


def _ranges(numbers: list[tuple[int, str]]) -> str:
    parts = []
    for _, run in groupby(enumerate(numbers), key=lambda item: item[1][0] - item[0]):
        texts = [text for _, (_, text) in run]
        parts.append(texts[0] if len(texts) == 1 else f"{texts[0]}-{texts[-1]}")
    return ",".join(parts)
