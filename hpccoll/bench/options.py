"""The command line that the programs share, parsed before MPI is started and without NumPy or torch."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from hpccoll.bench.case import Case
from hpccoll.bench.dtypes import DTYPES, DType
from hpccoll.environment import is_first_rank
from hpccoll.units import parse_bytes

__all__ = ["OPS", "Options", "Parser", "UsageError", "parse", "parse_sizes", "size_option", "whole"]

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
    buffer : str
        ``numpy`` or ``torch``.
    json : str or None
    progress : bool
    max_memory : int or None
        Bytes that a rank may use for a row.
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
    buffer: str
    json: str | None
    progress: bool
    max_memory: int | None


def size_option(text: str) -> int:
    """argparse type: a number of bytes with K, M or G."""
    try:
        return parse_bytes(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from None


def whole(least: int) -> Callable[[str], int]:
    """argparse type: a whole number of at least `least`."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"a whole number is expected, got {text!r}") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {value}")
        return value

    return convert


def _words(valid: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """argparse type: one or several of `valid`, separated by commas, or ``all``."""

    def convert(text: str) -> tuple[str, ...]:
        words = tuple(text.split(","))
        for word in words:
            if word not in valid and text != "all":
                raise argparse.ArgumentTypeError(f"{word!r} is not one of {', '.join(valid)}")
        return words

    return convert


def _root(text: str) -> int | str:
    return text if text == "all" else whole(0)(text)


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
    add: Any = parser.add_argument
    if case.sized:
        scope = "sent or received per rank" if case.scaled else "of the message"
        add("-b", "--min-bytes", type=size_option, default="8", metavar="SIZE", help=f"smallest, {scope} (8)")
        add("-e", "--max-bytes", type=size_option, default="16M", metavar="SIZE", help="largest (16M)")
        add("-f", "--factor", type=whole(2), default=2, metavar="N", help="from one size to the next (2)")
    add("-n", "--iters", type=whole(1), metavar="N", help="timed calls per row (chosen by size and time)")
    add("-w", "--warmup", type=whole(0), metavar="N", help="calls before them (20, or 5 above 64K)")
    if case.sized:
        several = "one, several with commas, or all, of"
        dtypes = f"{several} {', '.join(DTYPES)} (float32)"
        add("--dtype", type=_words(tuple(DTYPES)), default="float32", metavar="DTYPE", help=dtypes)
    if case.takes_op:
        add("--op", type=_words(OPS), default="sum", metavar="OP", help=f"{several} {', '.join(OPS)} (sum)")
    if case.takes_root:
        add("--root", type=_root, default=0, metavar="RANK", help="root of the collective, or all (0)")
    if case.in_place:
        add("--in-place", action="store_true", help="the result overwrites the input")
    if case.sized:
        add("--buffer", choices=("numpy", "torch"), default="numpy", help="arrays or tensors (numpy)")
        add("--max-memory", type=size_option, metavar="SIZE", help="skip rows that need more per rank")
    add("--json", metavar="FILE", help="also write header and rows as JSON; - is standard output")
    add("--no-progress", action="store_true", help="no progress bar on a terminal")
    return parser


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
    dtypes, ops, root = given.get("dtype", ("uint8",)), given.get("op", (None,)), given.get("root", 0)
    options = Options(
        sizes=tuple(parse_sizes(smallest, largest, given.get("factor", 2))) if case.sized else (0,),
        iters=given["iters"],
        warmup=given["warmup"],
        dtypes=tuple(DTYPES[name] for name in (DTYPES if dtypes == ("all",) else dtypes)),
        ops=OPS if ops == ("all",) else ops,
        every_op=ops == ("all",),
        every_dtype=dtypes == ("all",),
        roots=(0,) if root == "all" else (root,),
        every_root=root == "all",
        in_place=given.get("in_place", False),
        buffer=given.get("buffer", "numpy"),
        json=given["json"],
        progress=not given["no_progress"],
        max_memory=given.get("max_memory"),
    )
    _check_packages(options)
    return options


def _check_packages(options: Options) -> None:
    if options.buffer == "torch":
        if importlib.util.find_spec("torch") is None:
            raise UsageError("--buffer torch needs PyTorch: pip install 'hpccoll[torch]'")
        return
    foreign = [dtype.name for dtype in options.dtypes if dtype.needs_ml_dtypes]
    if foreign and not options.every_dtype and importlib.util.find_spec("ml_dtypes") is None:
        raise UsageError(f"--dtype {foreign[0]} needs `pip install ml_dtypes`, or --buffer torch")
