"""train_ddp.py, in which one rank meets its end at a chosen moment.

killed.py MOMENT NUMBER RANK OPTIONS...

    step N       SIGKILL in the N-th step of this run, when the other ranks are about to average with it
    write N      SIGKILL when half of the N-th checkpoint of this run is written
    rename N     SIGKILL when it is written and on the disk, and has not got its name
    renamed N    SIGKILL when it has its name, and nothing older has been removed
    USR1 N, TERM N    that signal in the N-th step of this run
    never 0      nothing happens
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "jobs"))

import train_ddp
from training import checkpoints, trainer

from hpccoll.aborting import run_program
from hpccoll.environment import detect

moment, number, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
_count = 0


def at_the_moment(signal_number: int) -> None:
    """Count; the signal comes at the N-th call."""
    global _count
    _count += 1
    if _count == number:
        os.kill(os.getpid(), signal_number)


def before(owner: Any, name: str, signal_number: int = signal.SIGKILL) -> None:
    original = getattr(owner, name)

    def replaced(*args: Any, **kwargs: Any) -> Any:
        at_the_moment(signal_number)
        return original(*args, **kwargs)

    setattr(owner, name, replaced)


class HalfWritten:
    """A file whose second write, the contents, comes to the half."""

    def __init__(self, *args: Any):
        self._file, self._writes = open(*args), 0  # noqa: SIM115

    def __enter__(self) -> HalfWritten:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def write(self, data: Any) -> None:
        self._writes += 1
        if self._writes == 2:
            self._file.write(bytes(data)[: len(data) // 2])
            self._file.flush()
            at_the_moment(signal.SIGKILL)
            data = bytes(data)[len(data) // 2 :]
        self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()


launch = detect()
if launch is not None and launch.rank == rank:
    if moment in ("step", "USR1", "TERM"):
        number += 1  # the first is a rehearsal
        which = {"step": signal.SIGKILL, "USR1": signal.SIGUSR1, "TERM": signal.SIGTERM}[moment]
        before(trainer.Trainer, "_backward", which)
    elif moment == "write":
        original_open = open

        def opened(path: Any, mode: str = "r") -> Any:
            return HalfWritten(path, mode) if mode == "wb" else original_open(path, mode)

        checkpoints.open = opened
    elif moment == "rename":
        before(Path, "replace")
    elif moment == "renamed":
        before(checkpoints, "_force")

run_program(train_ddp.main, sys.argv[4:])
