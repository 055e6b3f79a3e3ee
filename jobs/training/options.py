"""The command line, read before MPI and torch are loaded."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hpccoll.environment import is_first_rank

BACKENDS = ("mpi", "hpccoll", "gloo", "nccl")


class UsageError(Exception):
    """What the user has to change: raised alike on every rank, printed by one, status 2."""


@dataclass(frozen=True)
class Options:
    """What the command line says; the names are those of the options."""

    backend: str | None
    device: str
    without_ddp: bool
    compress: str | None
    bucket_mb: float
    epochs: int
    steps: int | None
    batch_size: int
    accumulate: int
    lr: float
    momentum: float
    hidden: int
    dtype: str
    seed: int
    checkpoint_dir: Path | None
    checkpoint_every: int
    resume: str
    log_dir: Path | None
    log_every: int
    json: Path | None
    scaling: int | None

    @property
    def settings(self) -> dict[str, Any]:
        """What a run that goes on must have in common with the one that wrote the checkpoint."""
        names = ("batch_size", "accumulate", "lr", "momentum", "hidden", "dtype", "compress", "seed")
        return {name: getattr(self, name) for name in names}


class _Parser(argparse.ArgumentParser):
    def print_help(self, file: Any = None) -> None:
        if is_first_rank():
            super().print_help(file)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see --help)")


def _at_least(least: int) -> Any:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"must be {least} or more, got {value}")
        return value

    return number


def _number(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of 0 or more, got {text}")
    return value


def parse(argv: Sequence[str] | None, description: str) -> Options:
    """The options; UsageError for what cannot be meant."""
    parser = _Parser(
        prog="train_ddp.py", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--backend", choices=BACKENDS, help="of torch.distributed (mpi; with --device cuda: nccl)")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where to train (cpu)")
    add("--without-ddp", action="store_true", help="hpccoll.gradients and no torch.distributed")
    add("--compress", choices=("bf16",), help="gradients travel as bfloat16")
    add("--bucket-mb", type=float, default=25.0, help="gradients that travel together, in MiB (25)")
    add("--epochs", type=_at_least(1), default=20, help="times through the data (20)")
    add("--steps", type=_at_least(1), help="end after so many steps in all instead")
    add("--batch-size", type=_at_least(1), default=48, help="rows in a step of all ranks together (48)")
    add("--accumulate", type=_at_least(1), default=1, help="parts that a rank cuts its rows into (1)")
    add("--lr", type=_number, default=0.05, help="learning rate (0.05)")
    add("--momentum", type=_number, default=0.9, help="of SGD (0.9)")
    add("--hidden", type=_at_least(1), default=128, help="width of the two hidden layers (128)")
    add("--dtype", choices=("float32", "float64"), default="float32", help="of the parameters (float32)")
    add("--seed", type=_at_least(0), default=1, help="of the weights and of the order of the data (1)")
    add(
        "--checkpoint-dir", type=Path, metavar="DIR", help="keep checkpoints there, and go on from the newest"
    )
    add(
        "--checkpoint-every",
        type=_at_least(1),
        default=100,
        metavar="STEPS",
        help="between two of them (100)",
    )
    add(
        "--resume",
        choices=("auto", "never", "require"),
        default="auto",
        help="auto: go on if there is a checkpoint; never: it is an error if there is one; require: if there is none",
    )
    add("--log-dir", type=Path, metavar="DIR", help="records of every rank, for python -m hpccoll.collect")
    add(
        "--log-every",
        type=_at_least(1),
        default=10,
        metavar="STEPS",
        help="steps in one line of records (10)",
    )
    add("--json", type=Path, metavar="FILE", help="rank 0 writes the result there")
    add(
        "--scaling",
        type=_at_least(1),
        metavar="STEPS",
        help="train no further than to time so many steps on 1, 2, 4 ... ranks, --batch-size rows on each",
    )
    found = parser.parse_args(argv)
    if found.without_ddp and found.backend:
        raise UsageError("--without-ddp uses no torch.distributed: leave out --backend")
    if not found.without_ddp and found.backend is None:
        found.backend = "nccl" if found.device == "cuda" else "mpi"
    if found.backend == "nccl" and found.device != "cuda":
        raise UsageError("--backend nccl is for GPUs: add --device cuda")
    if not 0 < found.bucket_mb < math.inf:
        raise UsageError(f"--bucket-mb must be more than 0, got {found.bucket_mb:g}")
    return Options(**vars(found))
