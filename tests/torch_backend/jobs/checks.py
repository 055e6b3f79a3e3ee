"""For the programs of this directory: runs checks one after the other on all ranks and tells how each ended.

A check that fails on one rank has failed on all. The last line is ``N passed, M failed``, the status 1 after a
failure.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

_checks: list[Callable[[], Any]] = []


def check(function: Callable[[], Any]) -> Callable[[], Any]:
    """Decorator: the function is one of this program's checks."""
    _checks.append(function)
    return function


def run(*only: str) -> None:
    """Run the checks (those named, if any are) and leave."""
    from mpi4py import MPI

    outer = MPI.COMM_WORLD.Dup()
    failed = 0
    chosen = [one for one in _checks if not only or one.__name__ in only]
    for one in chosen:
        error = ""
        try:
            one()
        except BaseException:
            error = traceback.format_exc()
        errors = outer.allgather(error)
        failed += any(errors)
        if outer.rank == 0:
            print(f"{'FAILED' if any(errors) else 'ok'} {one.__name__}", flush=True)
            for rank, text in enumerate(errors):
                if text:
                    print(f"rank {rank}: {text}", flush=True)
    if outer.rank == 0:
        print(f"{len(chosen) - failed} passed, {failed} failed", flush=True)
    sys.exit(1 if failed else 0)
