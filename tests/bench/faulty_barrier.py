"""The barrier program on a barrier that fails in one timed call: rank 0 comes late to it and nobody waits."""

import sys
import time
from typing import Any

import hpccoll.bench.measuring as measuring
from hpccoll import barrier
from hpccoll.aborting import run_program
from hpccoll.comm import Comm, world

# Three proofs with a late rank, one call to warm up, twenty timed ones: then it fails.
FAULTY_CALL = 3 + 1 + 20

real_barrier, real_run_calls = Comm.barrier, measuring.run_calls
calls = 0


def faulty_barrier(self: Any) -> None:
    global calls
    number, calls = calls, calls + 1
    if number != FAULTY_CALL:
        real_barrier(self)


class Gate:
    """The engine's own barrier, behind which rank 0 dawdles before it enters the faulty one."""

    def __init__(self, gate: Any) -> None:
        self._gate = gate

    def wait(self) -> None:
        self._gate.wait()
        if world().rank == 0 and calls == FAULTY_CALL:
            time.sleep(0.02)


def run_calls(functions: Any, data: Any, gate: Any, first: int, number: int, batch: int = 1) -> Any:
    return real_run_calls(functions, data, Gate(gate), first, number, batch)


Comm.barrier = faulty_barrier  # type: ignore[method-assign,assignment]
measuring.run_calls = run_calls
run_program(barrier.main, sys.argv[1:])
