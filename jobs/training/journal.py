"""What a run tells: records of every rank for ``python -m hpccoll.collect``, and rank 0's lines for people."""

from __future__ import annotations

from pathlib import Path

import mpi4py
import numpy as np
import torch
from mpi4py import MPI

import hpccoll as hc
from hpccoll.records import (
    RecordWriter,
    make_end,
    make_event,
    make_manifest,
    make_metric,
    make_run_dir,
    rank_file,
)
from training.options import Options, UsageError
from training.trainer import Step


class Journal:
    """Keeps the account of one run on one rank; every rank makes one."""

    def __init__(self, options: Options, comm: hc.Comm):
        self._comm = comm
        self._every = options.log_every
        self._steps: list[Step] = []
        self._epoch: list[Step] = []
        self._all: list[Step] = []
        self._log: RecordWriter | None = None
        if options.log_dir is not None:
            directory = _run_dir(options.log_dir, comm)
            self._log = RecordWriter(directory / rank_file(comm.rank))
            versions = {
                "numpy": np.__version__,
                "torch": torch.__version__,
                "mpi4py": mpi4py.__version__,
                "mpi": MPI.Get_library_version().partition("\n")[0].strip("\0 "),
            }
            self._log.write(
                make_manifest(
                    "train_ddp", run=directory.name, rank=comm.rank, size=comm.size, versions=versions
                )
            )

    def say(self, text: str) -> None:
        """One line, from rank 0."""
        if self._comm.rank == 0:
            print(text, flush=True)

    def event(self, kind: str, text: str, **values: float | str) -> None:
        """Something that happened to the run: a record of rank 0 and a line."""
        if self._log is not None and self._comm.rank == 0:
            self._log.write(make_event(0, "info", kind, text, values))
        self.say(text)

    def step(self, number: int, done: Step) -> None:
        """Step `number`, from 1, is done; its records are means over some steps."""
        self._steps.append(done)
        self._epoch.append(done)
        self._all.append(done)
        if number % self._every == 0:
            self._write_steps(number)

    def _write_steps(self, number: int) -> None:
        if self._log is not None and self._steps:
            self._log.write(make_metric(self._comm.rank, step=number, values=summary(self._steps)))
        self._steps.clear()

    def evaluated(self, epoch: int, number: int, accuracy: float, loss: float) -> None:
        """The evaluation after step `number`, the same on all ranks; every rank has to call it."""
        self._write_steps(number)
        if self._log is not None and self._comm.rank == 0:
            values = {"test_accuracy": accuracy, "test_loss": loss}
            self._log.write(make_metric(0, step=number, values=values))
        if not self._epoch:
            self.say(f"after step {number}: test loss {loss:.4f}  accuracy {accuracy:.4f}")
            return
        mine = summary(self._epoch)
        self._epoch.clear()
        means = self._comm.allreduce(np.array(list(mine.values())), op="avg")
        every = dict(zip(mine, means, strict=True))
        rate, share = every["samples_per_s"] * self._comm.size, 100 * every["sync_wait_share"]
        self.say(
            f"epoch {epoch:3d}  step {number:6d}  loss {every['loss']:.4f}  test loss {loss:.4f}"
            f"  accuracy {accuracy:.4f}  {rate:8.0f} samples/s  sync wait {share:.0f} %"
        )

    def total(self) -> dict[str, float]:
        """Means over all steps of this run on this rank; empty if it made none."""
        return summary(self._all) if self._all else {}

    def close(self, status: str) -> None:
        """Write the last line."""
        if self._log is not None:
            with self._log as log:
                log.write(make_end(self._comm.rank, status=status, lines=log.lines))


def summary(steps: list[Step]) -> dict[str, float]:
    """Means over steps, with units in the names."""
    step_s = sum(step.step_s for step in steps)
    wait_s = sum(step.sync_wait_s for step in steps)
    return {
        "loss": sum(step.loss for step in steps) / len(steps),
        "samples_per_s": sum(step.rows for step in steps) / step_s,
        "step_s": step_s / len(steps),
        "sync_busy_s": sum(step.sync_busy_s for step in steps) / len(steps),
        "sync_wait_s": wait_s / len(steps),
        "sync_wait_share": wait_s / step_s,
    }


def _run_dir(parent: Path, comm: hc.Comm) -> Path:
    """Made by rank 0; if that fails, the same error on every rank."""
    made: Path | str = ""
    if comm.rank == 0:
        try:
            made = make_run_dir(parent, "train_ddp")
        except OSError as error:
            made = f"--log-dir {parent} cannot be used: {error}"
    made = comm.broadcast_object(made)
    if isinstance(made, str):
        raise UsageError(made)
    return made
