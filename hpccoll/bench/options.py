"""The command line that the programs share, parsed before MPI is started and without NumPy or torch."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hpccoll.bench.case import Case
from hpccoll.bench.converters import numbers, percent, root, seconds, size_option, whole, words
from hpccoll.bench.dtypes import DTYPES, DType
from hpccoll.bench.guidelines import COMPOSITIONS
from hpccoll.environment import is_first_rank

__all__ = [
    "ENGINES",
    "MODES",
    "OPS",
    "Options",
    "Parser",
    "UsageError",
    "parse",
    "parse_sizes",
    "size_option",
    "whole",
]

ENGINES = ("c", "mpi4py", "numpy", "torch", "torch-mpi", "gloo", "nccl")
TORCH_ENGINES = frozenset(("torch", "torch-mpi", "gloo", "nccl"))
MODES = ("barrier", "window", "pipelined")
OPS = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor", "land", "lor", "lxor")


class UsageError(Exception):
    """A bad option. One rank prints it in one line, and the program ends with status 2."""


class Parser(argparse.ArgumentParser):
    """argparse, except that one rank alone prints the help, and errors are raised for one rank to print."""

    def print_help(self, file: Any = None) -> None:
        if is_first_rank():
            super().print_help(file)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


@dataclass(frozen=True)
class Options:
    """What the command line says. Lists have one entry unless several were asked for.

    Attributes
    ----------
    sizes : tuple of int
        Bytes of each row, in ascending order.
    iters, warmup : int or None
        None: chosen by size and time.
    dtypes : tuple of DType
    ops : tuple of (str or None)
        (None,) where the collective has no op.
    every_op, every_dtype, every_root : bool
        ``all`` was given: what has no meaning is left out instead of refused.
    roots : tuple of int
    in_place : bool
    engines : tuple of str
    mode : str
        ``barrier``, ``window`` or ``pipelined``.
    barrier : str
        ``library`` or ``dissemination``.
    batch : int or None
        Calls in a sample; None: chosen by the resolution of the clock and the mode.
    launches : int
    target_ci : float or None
        Relative half width of the interval at which a row ends.
    max_seconds : float
        After which it ends in any case.
    rotate_nbytes : int
    max_memory : int or None
        Bytes that a rank may use for a row.
    guidelines, fit, wide, progress : bool
    predict : tuple of int
        Numbers of ranks.
    model, json, csv, log_dir : str or None
        Files and a directory.
    writers : str
        ``rank`` or ``node``.
    max_samples : int
        Sample lines of a case, over all ranks, above which a histogram takes their place.
    """

    sizes: tuple[int, ...]
    iters: int | None
    warmup: int | None
    dtypes: tuple[DType, ...]
    ops: tuple[str | None, ...]
    every_op: bool
    every_dtype: bool
    roots: tuple[int, ...]
    every_root: bool
    in_place: bool
    engines: tuple[str, ...]
    mode: str
    barrier: str
    batch: int | None
    launches: int
    target_ci: float | None
    max_seconds: float
    rotate_nbytes: int
    max_memory: int | None
    guidelines: bool
    fit: bool
    wide: bool
    progress: bool
    predict: tuple[int, ...]
    model: str | None
    json: str | None
    csv: str | None
    log_dir: str | None
    writers: str
    max_samples: int


def parse_sizes(smallest: int, largest: int, factor: int) -> Iterator[int]:
    """`smallest`, and times `factor` up to `largest`; after 0 comes 1."""
    nbytes = smallest
    while nbytes <= largest:
        yield nbytes
        nbytes = nbytes * factor or 1


def build(case: Case) -> Parser:
    """Parser with the options that mean something for `case`."""
    parser = Parser(
        prog=f"hpccoll {case.name}",
        description=f"{case.summary} Measured and verified; start it with mpirun or srun.",
        epilog="Sizes take K, M and G (binary); GB/s is 1e9 bytes per second. Definitions: docs/methods.md.",
        allow_abbrev=False,
    )
    _add_calls(parser.add_argument_group("what is called"), case)
    _add_timing(parser.add_argument_group("how it is timed"), case)
    _add_output(parser.add_argument_group("what is shown and kept"), case)
    return parser


def _add_calls(group: Any, case: Case) -> None:
    add, several = group.add_argument, "one, several with commas, or all, of"
    if case.sized:
        scope = "sent or received per rank" if case.scaled else "of the message"
        add("-b", "--min-bytes", type=size_option, default="8", metavar="SIZE", help=f"smallest, {scope} (8)")
        add("-e", "--max-bytes", type=size_option, default="16M", metavar="SIZE", help="largest (16M)")
        add("-f", "--factor", type=whole(2), default=2, metavar="N", help="from one size to the next (2)")
        dtypes = f"{several} {', '.join(DTYPES)} (float32)"
        add("--dtype", type=words(tuple(DTYPES)), default="float32", metavar="DTYPE", help=dtypes)
    if case.takes_op:
        add("--op", type=words(OPS), default="sum", metavar="OP", help=f"{several} {', '.join(OPS)} (sum)")
    if case.takes_root:
        add("--root", type=root, default=0, metavar="RANK", help="root of the collective, or all (0)")
    if case.in_place:
        add("--in-place", action="store_true", help="the result overwrites the input")
    if case.sized:
        add("--max-memory", type=size_option, metavar="SIZE", help="skip rows that need more per rank")
    engines = f"{several} {', '.join(ENGINES)} (numpy); ratios are to the first"
    either = group.add_mutually_exclusive_group()
    either.add_argument("--engine", type=words(ENGINES), default="numpy", metavar="ENGINE", help=engines)
    either.add_argument(
        "--buffer",
        dest="engine",
        type=words(("numpy", "torch")),
        default=argparse.SUPPRESS,
        metavar="KIND",
        help="numpy or torch: Comm on these, as --engine says it too",
    )
    if case.name in COMPOSITIONS:
        parts = " and ".join("+".join(parts) for parts in COMPOSITIONS[case.name])
        add("--guidelines", action="store_true", help=f"time {parts} too; it should not be faster")


def _add_timing(group: Any, case: Case) -> None:
    add = group.add_argument
    add("-n", "--iters", type=whole(1), metavar="N", help="timed calls per row (chosen by size and time)")
    add("-w", "--warmup", type=whole(0), metavar="N", help="calls before them (20, or 5 above 64K)")
    mode = "each call behind a barrier, at an agreed time, or back to back (barrier)"
    add("--mode", choices=MODES, default="barrier", help=mode)
    kinds = ("library", "dissemination")
    add("--barrier", choices=kinds, default="library", help="MPI's own, or messages of ours (library)")
    add("--batch", type=whole(1), metavar="N", help="calls per sample (chosen by the clock's resolution)")
    add("--launches", type=whole(1), default=1, metavar="K", help="repeat all, sizes in random order (1)")
    add("--target-ci", type=percent, metavar="P%", help="go on until the interval is median +- P %%")
    add("--max-seconds", type=seconds, default=10.0, metavar="S", help="but no longer than this per row (10)")
    if case.sized:
        add(
            "--rotate-buffers",
            type=size_option,
            default=0,
            metavar="SIZE",
            help="cold caches: so much in turn",
        )


def _add_output(group: Any, case: Case) -> None:
    add = group.add_argument
    add("--wide", action="store_true", help="more columns: percentiles, variation")
    if case.sized:
        add("--fit", action="store_true", help="latency and bandwidth from the rows, by segments")
    add("--predict", type=numbers, default=(), metavar="N,N", help="what the fit says of N ranks: a model")
    add("--model", metavar="FILE", help="JSON of a run on fewer ranks: compare this run with its prediction")
    add("--json", metavar="FILE", help="also write header and rows as JSON; - is standard output")
    add("--csv", metavar="FILE", help="also write the rows as a table for other programs")
    add("--log-dir", metavar="DIR", help="a new directory in DIR with a file of records for each rank")
    add("--writers", choices=("rank", "node"), default="rank", help="one file per rank or per node (rank)")
    most = "above so many records of a row, over all ranks, keep a histogram (1000000)"
    add("--max-samples", type=whole(0), default=1_000_000, metavar="N", help=most)
    add("--no-progress", action="store_true", help="no progress bar on a terminal")


def parse(case: Case, argv: Sequence[str] | None) -> Options:
    """Options of `case` from `argv`.

    Raises
    ------
    UsageError
        With one line for the user. Nothing was started yet.
    """
    given = vars(build(case).parse_args(argv))
    smallest, largest = given.get("min_bytes", 0), given.get("max_bytes", 0)
    if smallest > largest:
        raise UsageError(f"--min-bytes {smallest} is more than --max-bytes {largest}")
    dtypes, ops, given_root = given.get("dtype", ("uint8",)), given.get("op", (None,)), given.get("root", 0)
    engines = given["engine"]
    options = Options(
        sizes=tuple(parse_sizes(smallest, largest, given.get("factor", 2))) if case.sized else (0,),
        iters=given["iters"],
        warmup=given["warmup"],
        dtypes=tuple(DTYPES[name] for name in (DTYPES if dtypes == ("all",) else dtypes)),
        ops=OPS if ops == ("all",) else ops,
        every_op=ops == ("all",),
        every_dtype=dtypes == ("all",),
        roots=(0,) if given_root == "all" else (given_root,),
        every_root=given_root == "all",
        in_place=given.get("in_place", False),
        engines=ENGINES if engines == ("all",) else tuple(dict.fromkeys(engines)),
        mode=given["mode"],
        barrier=given["barrier"],
        batch=given["batch"],
        launches=given["launches"],
        target_ci=given["target_ci"],
        max_seconds=given["max_seconds"],
        rotate_nbytes=given.get("rotate_buffers", 0),
        max_memory=given.get("max_memory"),
        guidelines=given.get("guidelines", False),
        fit=given.get("fit", False),
        wide=given["wide"],
        progress=not given["no_progress"],
        predict=given["predict"],
        model=given["model"],
        json=given["json"],
        csv=given["csv"],
        log_dir=given["log_dir"],
        writers=given["writers"],
        max_samples=given["max_samples"],
    )
    _check_combinations(case, options)
    _check_packages(options)
    return options


def _check_combinations(case: Case, options: Options) -> None:
    repeats = options.mode == "pipelined" or (options.batch or 1) > 1
    if repeats and not case.repeatable(options.in_place):
        what = "--mode pipelined" if options.mode == "pipelined" else "--batch"
        raise UsageError(f"{what} repeats a call on its own result; leave out --in-place")
    if options.batch == 1 and options.mode == "pipelined":
        raise UsageError("--mode pipelined needs a --batch of 2 calls or more")
    if options.json == options.csv == "-":
        raise UsageError("--json - and --csv - cannot both have standard output")
    named = [
        Path(path).absolute()
        for path in (options.json, options.csv, options.log_dir)
        if path not in (None, "-")
    ]
    if len(set(named)) < len(named):
        raise UsageError("--json, --csv and --log-dir need different names")
    if "" in (options.json, options.csv, options.log_dir):
        raise UsageError("--json, --csv and --log-dir need a name; it is empty")
    if options.writers == "node" and options.log_dir is None:
        raise UsageError("--writers needs --log-dir")


def _check_packages(options: Options) -> None:
    """An engine that is missing is left out; of the only one that is wanted the reason comes at once."""
    if options.engines == ("torch",) and importlib.util.find_spec("torch") is None:
        raise UsageError("--engine torch needs PyTorch: pip install torch")
    if TORCH_ENGINES & set(options.engines):
        return
    foreign = [dtype.name for dtype in options.dtypes if dtype.needs_ml_dtypes]
    if foreign and not options.every_dtype and importlib.util.find_spec("ml_dtypes") is None:
        raise UsageError(f"--dtype {foreign[0]} needs `pip install ml_dtypes`, or --engine torch")
