"""The program: its options, what stands in its way, what it prints."""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hpccoll.demo
from hpccoll.aborting import run_program
from hpccoll.aside import write_aside
from hpccoll.bench.options import Parser, UsageError
from hpccoll.bench.program import usage_error
from hpccoll.demo.figure import MAX_RANKS, draw
from hpccoll.demo.operations import COMM_CALLS, OPERATIONS, TORCH_CALLS, Step, observe
from hpccoll.environment import is_first_rank

if TYPE_CHECKING:
    from hpccoll.comm import Comm

_OK, _WRONG, _USAGE = 0, 1, 2
_BACKENDS = ("mpi", "gloo", "nccl", "numpy")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status.

    Returns
    -------
    int
        0 if every rank held what it should, 1 if one did not or the figure could not be written, 2 for a bad
        option or a backend that is not there. The same on every rank.
    """
    parser = Parser(
        prog="hpccoll demo",
        description=(hpccoll.demo.__doc__ or "").partition("\n\n")[2],
        allow_abbrev=False,
    )
    parser.add_argument(
        "--backend", choices=_BACKENDS, default="mpi", help="of torch.distributed (mpi); numpy: without torch"
    )
    parser.add_argument(
        "--figure",
        metavar="FILE.svg",
        type=_figure_path,
        help=f"draw both operations as one picture, from the values seen (up to {MAX_RANKS} ranks)",
    )
    try:
        options = parser.parse_args(argv)
    except UsageError as error:
        return usage_error("demo", str(error)) if is_first_rank() else _OK
    from hpccoll.comm import world  # not for --help

    comm = world()
    if obstacles := _obstacles(comm, options.backend, options.figure):
        if comm.rank == 0:
            _complain(*obstacles)
        return _USAGE
    steps = _with_torch(comm, options.backend) if options.backend != "numpy" else []
    steps += _with_numpy(comm, blank="\n" if steps else "")
    if faults := [fault for step in steps for fault in step.faults()]:
        if comm.rank == 0:
            _complain(*faults)
        return _WRONG
    if comm.rank == 0:
        print("\nall values are right on every rank", flush=True)
    return _write_figure(comm, options.figure, steps[:2], options.backend) if options.figure else _OK


def _figure_path(text: str) -> Path:
    path = Path(text)
    if path.suffix != ".svg":
        raise argparse.ArgumentTypeError(f"{text!r} does not end with .svg, the only format")
    return path


# ---- what stands in the way


def _obstacles(comm: Comm, backend: str, figure: Path | None) -> list[str]:
    """The same on every rank: a sentence for each thing that is missing, with the ranks that miss it."""
    own = [] if backend == "numpy" else _missing(comm, backend)
    if comm.rank == 0 and figure is not None:
        if comm.size > MAX_RANKS:
            own.append(f"--figure is for up to {MAX_RANKS} ranks, and there are {comm.size}")
        if not figure.resolve().parent.is_dir():
            own.append(f"--figure: there is no directory {figure.resolve().parent}")
    ranks: dict[str, list[int]] = {}
    for rank, sentences in enumerate(comm.allgather_object(own)):
        for sentence in sentences:
            ranks.setdefault(sentence, []).append(rank)
    return [f"{sentence} [rank {_listed(who)}]" for sentence, who in ranks.items()]


def _missing(comm: Comm, backend: str) -> list[str]:
    """What this rank lacks for `backend`."""
    host = socket.gethostname()
    try:
        import torch
        import torch.distributed as dist

        import hpccoll.torch_backend  # noqa: F401  # where hpccoll is not installed
    except ImportError as error:
        return [f"{host}: --backend {backend} needs PyTorch ({error}): pip install torch, or --backend numpy"]
    if not getattr(dist, f"is_{backend}_available")():
        return [f"{host}: this PyTorch, {torch.__version__}, has no {backend}: --backend mpi, or numpy"]
    if backend == "nccl":
        with comm.node() as node:
            needed = node.size
        if torch.cuda.device_count() < needed:
            return [
                f"{host}: --backend nccl needs a GPU for each of the {needed} ranks here, and PyTorch sees "
                f"{torch.cuda.device_count()}: fewer ranks, or --backend mpi"
            ]
    return []


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


def _complain(*sentences: str) -> None:
    sys.stderr.write("".join(f"hpccoll demo: error: {sentence}\n" for sentence in sentences))
    sys.stderr.flush()


# ---- the two halves


def _with_torch(comm: Comm, backend: str) -> list[Step]:
    import torch
    import torch.distributed as dist

    start = (
        'dist.init_process_group("mpi")'
        if backend == "mpi"
        else f'dist.init_process_group("{backend}", init_method="mpi://")'
    )
    device = "cpu"
    if backend == "nccl":
        with comm.node() as node:
            device = f"cuda:{node.rank}"
        torch.cuda.set_device(device)
    eval(start, {"dist": dist})
    try:
        return _observe_all(
            f"torch.distributed, backend {dist.get_backend()}, {_ranks(comm)}\n\n{start}\n",
            TORCH_CALLS,
            comm,
            lambda value: torch.full((1,), value, device=device),
            {"dist": dist},
        )
    finally:
        dist.destroy_process_group()


def _with_numpy(comm: Comm, blank: str) -> list[Step]:
    import numpy

    return _observe_all(
        f"{blank}hpccoll.Comm on NumPy arrays, {_ranks(comm)}\n\ncomm = hpccoll.world()\n",
        COMM_CALLS,
        comm,
        lambda value: numpy.full(1, value),
        {"comm": comm},
    )


def _observe_all(
    title: str, calls: dict[str, str], comm: Comm, make: Callable[[float], Any], names: dict[str, object]
) -> list[Step]:
    steps = []
    for operation in OPERATIONS:
        steps.append(observe(operation, calls[operation.name], comm, make, names))
        # One rank prints what it was told, in one piece: lines of several ranks never mix.
        if comm.rank == 0:
            sys.stdout.write(title + _table(steps[-1]))
            sys.stdout.flush()
        title = ""
    return steps


def _table(step: Step) -> str:
    ranks = len(str(len(step.before) - 1))
    width = max(len(held.shown) for held in step.before)
    lines = [
        f"  rank {rank:{ranks}}  before {before.shown:{width}}  after {after.shown}"
        for rank, (before, after) in enumerate(zip(step.before, step.after, strict=True))
    ]
    return "\n".join(["", step.call, *lines, ""])


def _ranks(comm: Comm) -> str:
    return "1 rank" if comm.size == 1 else f"{comm.size} ranks"


def _write_figure(comm: Comm, path: Path, steps: list[Step], backend: str) -> int:
    failure = ""
    if comm.rank == 0:
        caption = f"Values of a run of python -m hpccoll.demo on {_ranks(comm)}, backend {backend}."
        try:
            write_aside(path, lambda aside: aside.write_text(draw(steps, caption), encoding="utf-8"))
        except OSError as error:
            failure = f"--figure: {path} could not be written: {error.strerror or error}"
            _complain(failure)
    return _WRONG if comm.broadcast_object(failure) else _OK


if __name__ == "__main__":
    run_program(main)
