"""Trains a classifier of handwritten digits on all ranks of an MPI job: DistributedDataParallel over MPI.

    mpirun -n 4 python jobs/train_ddp.py --checkpoint-dir checkpoints --log-dir runs

Every step takes --batch-size rows, divided among the ranks, so that any number of ranks trains the same. SIGUSR1 or
SIGTERM on any rank: all ranks finish the step, save, and exit with status 75; the same command goes on from there.

Exit status: 0 trained to the end; 75 saved before the end, because of a signal; 2 a bad option or checkpoint; 1 a
failure.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.options import Options, UsageError, parse
from training.stopping import StopSignals

from hpccoll.aborting import run_program
from hpccoll.aside import write_aside
from hpccoll.environment import is_first_rank

if TYPE_CHECKING:
    import torch
    from training.journal import Journal
    from training.trainer import Trainer

    import hpccoll as hc

SAVED = 75  # EX_TEMPFAIL: the same command goes on


def main(argv: Sequence[str] | None = None) -> int:
    """Train; `argv` as on the command line. The same status on every rank."""
    try:
        options = parse(argv, __doc__ or "")
        if importlib.util.find_spec("torch") is None:
            raise UsageError("this needs PyTorch: pip install torch")
    except UsageError as error:
        return (
            _refuse(error) if is_first_rank() else 0
        )  # a launcher ends the job at the first status that is not 0

    with StopSignals() as signals:
        import hpccoll as hc

        comm = hc.world()
        try:
            return _run(options, comm, signals)
        except UsageError as error:
            return _refuse(error) if comm.rank == 0 else 2


def _refuse(error: Exception) -> int:
    print(f"train_ddp: error: {error}", file=sys.stderr, flush=True)
    return 2


def _run(options: Options, comm: hc.Comm, signals: StopSignals) -> int:
    import torch
    from training import digits, scaling
    from training.journal import Journal
    from training.trainer import Trainer

    device = _device(options, comm)
    _look_at_json(options, comm)
    if options.backend is not None:
        import torch.distributed as dist

        import hpccoll.torch_backend  # noqa: F401  # where hpccoll is not installed

        dist.init_process_group(options.backend, init_method=None if options.backend == "mpi" else "mpi://")
    data = digits.load(comm, getattr(torch, options.dtype), device)
    result: Any
    if options.scaling is not None:
        result, status = scaling.measure(options, comm, data), 0
    else:
        trainer = Trainer(options, comm, data)
        journal = Journal(options, comm)
        signals.take()
        step = _resume(options, comm, trainer, journal, device)
        result = _train(options, comm, trainer, journal, signals, step)
        status = 0 if result["status"] == "ok" else SAVED
        journal.close(result["status"])
        trainer.close()
    if options.json is not None and comm.rank == 0:
        text = json.dumps(result, indent=1) + "\n"
        write_aside(options.json, lambda aside: aside.write_text(text, "utf-8"))
    if options.backend is not None:
        dist.destroy_process_group()
    return status


def _look_at_json(options: Options, comm: hc.Comm) -> None:
    """Refuse a file that could not be written at the end of a training of days."""
    problem = ""
    if options.json is not None and comm.rank == 0 and not os.access(options.json.parent, os.W_OK | os.X_OK):
        problem = f"--json {options.json}: there is no directory {options.json.parent} that can be written to"
    problem = comm.broadcast_object(problem)
    if problem:
        raise UsageError(problem)


def _device(options: Options, comm: hc.Comm) -> torch.device:
    import torch

    if options.device == "cpu":
        return torch.device("cpu")
    there = torch.cuda.device_count()
    if comm.allreduce(there, op="min") == 0:
        raise UsageError("--device cuda: a rank sees no GPU (torch.cuda.device_count() is 0)")
    with comm.node() as node:
        torch.cuda.set_device(node.rank % there)
    return torch.device("cuda", torch.cuda.current_device())


def _train(
    options: Options, comm: hc.Comm, trainer: Trainer, journal: Journal, signals: StopSignals, step: int
) -> dict[str, Any]:
    """From `step` to the last one, or to a signal; what is worth keeping of it."""
    last = options.steps or options.epochs * trainer.steps_per_epoch
    reason = None
    if step >= last:
        limit = f"--steps {last}" if options.steps else f"--epochs {options.epochs}"
        text = f"the checkpoint is at step {step}, {limit} ends at step {last}: nothing to train"
        journal.event("nothing-to-train", text, step=step)
    while step < last and reason is None:
        journal.step(step + 1, trainer.step(step))
        step += 1
        if step % trainer.steps_per_epoch == 0 and step < last:
            journal.evaluated(step // trainer.steps_per_epoch, step, *trainer.evaluate())
        reason = signals.agreed(comm)
        if step % options.checkpoint_every == 0 or step == last or reason is not None:
            _save(options, comm, trainer, step)
    accuracy, loss = trainer.evaluate()
    journal.evaluated(-(-step // trainer.steps_per_epoch), step, accuracy, loss)
    if step < last:
        where = options.checkpoint_dir
        kept = f"saved in {where}" if where else "nothing is saved without --checkpoint-dir"
        journal.event("stopped", f"{reason} after step {step} of {last}: {kept}", step=step)
    return {
        "status": "stopped" if step < last else "ok",
        "ranks": comm.size,
        "step": step,
        "accuracy": accuracy,
        "test_loss": loss,
        "digest": trainer.digest(),
        **journal.total(),
    }


def _resume(options: Options, comm: hc.Comm, trainer: Trainer, journal: Journal, device: torch.device) -> int:
    """Take over the newest checkpoint, which rank 0 alone has to see; the steps that were done."""
    from training import checkpoints

    if options.checkpoint_dir is None:
        return 0
    found, problem = None, ""
    if comm.rank == 0:
        try:
            found = _find(options, options.checkpoint_dir)
        except checkpoints.CheckpointError as error:
            problem = str(error)
        except OSError as error:
            problem = f"--checkpoint-dir {options.checkpoint_dir} cannot be used: {error}"
    problem, found = comm.broadcast_object((problem, found))
    if problem:
        raise UsageError(problem)
    if found is None:
        return 0
    trainer.restore(found.state(device))
    trainer.digest()
    journal.event("resumed", f"going on after step {found.step} from {found.path}", step=found.step)
    return found.step


def _find(options: Options, directory: Path) -> Any:
    from training import checkpoints

    directory.mkdir(parents=True, exist_ok=True)
    checkpoints.remove_unfinished(directory)
    found = checkpoints.newest(directory, options.settings) if options.resume != "never" else None
    if options.resume == "never" and checkpoints.paths(directory):
        raise checkpoints.CheckpointError(
            f"{directory} has checkpoints, and --resume never was given: move them away, or give another directory"
        )
    if options.resume == "require" and found is None:
        raise checkpoints.CheckpointError(f"{directory} has no checkpoint to go on from (--resume require)")
    return found


def _save(options: Options, comm: hc.Comm, trainer: Trainer, step: int) -> None:
    """Write a checkpoint on rank 0, if the ranks still agree; all ranks learn when that fails."""
    from training import checkpoints

    if options.checkpoint_dir is None:
        return
    trainer.digest()
    problem = ""
    if comm.rank == 0:
        try:
            checkpoints.save(options.checkpoint_dir, step, trainer.state(), options.settings)
        except OSError as error:
            problem = (
                f"the checkpoint of step {step} cannot be written, those before it are untouched: {error}"
            )
    problem = comm.broadcast_object(problem)
    if problem:
        raise RuntimeError(problem)


if __name__ == "__main__":
    run_program(main)
