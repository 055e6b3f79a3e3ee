"""Several programs in one job: ``python several.py [FAULT FIRST LAST] -- NAME ARGS -- NAME ARGS ...``.

With a FAULT the collectives go wrong: on rank 1 (``nothing``: on every rank), in the calls FIRST to LAST of each
program. Before a program's output there is a line ``## NAME``, behind it ``## status N``.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import sys
from collections.abc import Sequence
from typing import Any

from hpccoll.aborting import run_program

VICTIM = 1


def main(argv: Sequence[str] | None) -> int:
    parts = [
        list(part) for dash, part in itertools.groupby(sys.argv[1:], lambda word: word == "--") if not dash
    ]
    fault = parts.pop(0) if sys.argv[1] != "--" else []
    statuses = []
    for name, *arguments in parts:
        if fault:
            spoil_method(name, fault[0], int(fault[1]), int(fault[2]))
        say(f"## {name}")
        statuses.append(importlib.import_module(f"hpccoll.{name}").main(arguments))
        say(f"## status {statuses[-1]}")
    return max(statuses)


def say(text: str) -> None:
    from hpccoll.comm import world

    if world().rank == 0:
        print(text, flush=True)


def spoil_method(name: str, fault: str, first: int, last: int) -> None:
    from hpccoll.comm import Comm

    method = getattr(Comm, name)
    calls = 0

    def faulty(self: Any, *args: Any, **options: Any) -> Any:
        nonlocal calls
        if self.size == 1:  # not a call under test: the engine asks whether op and dtype go together
            return method(self, *args, **options)
        number, calls = calls, calls + 1
        if fault == "nothing" and first <= number <= last:
            return None
        result = method(self, *args, **options)
        if first <= number <= last and self.rank == VICTIM and args:
            spoil(fault, args[0], args[0] if name == "broadcast" else options["out"])
        return result

    setattr(Comm, name, faulty)


def spoil(fault: str, send: Any, out: Any) -> None:
    if fault == "element":
        raw = out.reshape(-1).view("uint8")
        raw[raw.size // 2] ^= 1
    elif fault == "input":
        send.reshape(-1).view("uint8")[-1] ^= 1
    elif fault == "behind":
        ctypes.memset(out.ctypes.data + out.nbytes + 2, 0, 1)
    elif fault == "before":
        ctypes.memset(out.ctypes.data - 1, 0, 1)
    elif fault == "rotate":
        flat = out.reshape(-1)
        flat[...] = flat.take(range(1, out.size + 1), mode="wrap")
    elif fault != "nothing":
        raise ValueError(fault)


if __name__ == "__main__":
    run_program(main)
