"""A program with something wrong put into it: ``python injected.py FAULT [VALUE ...] -- NAME ARGS``.

late RANK MS            the rank dawdles before it enters each call
clock RANK S            its clock is ahead
spoil ENGINE CALL       on rank 1 an element of that engine's result in that call is wrong
slow MS                 Comm.allreduce takes longer
kill RANK ROWS          the rank is killed when it has written so many rows
disk RANK NBYTES        it may write no more than that into a file
remove ROWS             rank 0 removes the directory of the records after so many rows
mixed                   the ranks say that they have different processors
none                    nothing is wrong
"""

from __future__ import annotations

import importlib
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import hpccoll.bench.engines.base as base
import hpccoll.bench.header as header
import hpccoll.bench.measuring as measuring
from hpccoll.aborting import run_program
from hpccoll.bench import clock
from hpccoll.bench.engines.c_engine import CEngine
from hpccoll.bench.engines.comm_engine import CommEngine
from hpccoll.bench.engines.torch_engine import TorchEngine
from hpccoll.bench.runlog import RunLog
from hpccoll.comm import Comm, world


def late(rank: str, ms: str) -> None:
    real = measuring.run_calls

    class Gate:
        def __init__(self, gate: Any) -> None:
            self._gate = gate

        def wait(self) -> Any:
            agreed = self._gate.wait()
            if world().rank == int(rank):
                time.sleep(float(ms) / 1e3)
            return agreed

    def run_calls(functions: Any, data: Any, gate: Any, *rest: Any) -> Any:
        return real(functions, data, Gate(gate), *rest)

    measuring.run_calls = run_calls  # type: ignore[assignment]


def ahead(rank: str, seconds: str) -> None:
    if world().rank == int(rank):
        clock.now_ns = lambda: time.perf_counter_ns() + int(float(seconds) * 1e9)


def spoil(engine: str, call: str) -> None:
    kind: Any = {"c": CEngine, "gloo": TorchEngine}.get(engine, CommEngine)
    real = kind.bind
    calls = 0

    def bind(self: Any, collective: str, comm: Any, buffers: Any) -> Any:
        bound = real(self, collective, comm, buffers)
        timed = bound.timed

        def spoiled(number: int) -> Any:
            nonlocal calls
            times = timed(number)
            if calls == int(call) and world().rank == 1:
                buffers.recv.reshape(-1)[-1] += 1
            calls += 1
            return times

        if self.name == engine:
            bound.timed = spoiled
        return bound

    kind.bind = bind


def slow(ms: str) -> None:
    real = Comm.allreduce

    def allreduce(self: Any, *args: Any, **options: Any) -> Any:
        time.sleep(float(ms) / 1e3 * (self.size > 1))
        return real(self, *args, **options)

    Comm.allreduce = allreduce  # type: ignore[method-assign]


def after_rows(number: int, act: Callable[[RunLog], None]) -> None:
    real = RunLog.row
    rows = 0

    def row(self: Any, *args: Any) -> None:
        nonlocal rows
        real(self, *args)
        rows += 1
        if rows == number:
            act(self)

    RunLog.row = row  # type: ignore[method-assign]


def kill(rank: str, rows: str) -> None:
    def act(log: RunLog) -> None:
        if log.rank == int(rank):
            os.kill(os.getpid(), signal.SIGKILL)

    after_rows(int(rows), act)


def remove(rows: str) -> None:
    def act(log: RunLog) -> None:
        if log.rank == 0:
            shutil.rmtree(log.directory)
        world().barrier()

    after_rows(int(rows), act)


def disk(rank: str, nbytes: str) -> None:
    if world().rank == int(rank):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(nbytes), int(nbytes)))


def mixed() -> None:
    header.processor = lambda: f"model {world().rank}"  # type: ignore[assignment]
    header.MPI.Get_processor_name = lambda: f"host{world().rank}"


FAULTS: dict[str, Callable[..., None]] = {
    "late": late, "clock": ahead, "spoil": spoil, "slow": slow, "kill": kill, "disk": disk, "remove": remove,
    "mixed": mixed, "none": lambda: None,
}  # fmt: skip


def main(argv: Sequence[str] | None) -> int:
    cut = sys.argv.index("--")
    fault, *values = sys.argv[1:cut]
    name, *arguments = sys.argv[cut + 1 :]
    world()  # MPI makes its own files before the disk is full
    FAULTS[fault](*values)
    status: int = importlib.import_module(f"hpccoll.{name}").main(arguments)
    return status


if __name__ == "__main__":
    assert base.Bound
    run_program(main)
