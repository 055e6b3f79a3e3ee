"""``mpirun -n 2 python -m hpccoll.overhead`` times Comm against raw mpi4py, side by side in one run.

Raw mpi4py with prebuilt buffer specs, `Comm` on NumPy arrays and `Comm` on torch tensors, both with ``out=``,
make the same calls on the same memory. With ``--recorder`` the flight recorder on is timed against off, and
torch.distributed as well. Results: docs/performance.md; method: docs/methods.md.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence

from hpccoll.aborting import run_program
from hpccoll.bench.options import Parser, UsageError, size_option, whole
from hpccoll.bench.program import usage_error
from hpccoll.environment import is_first_rank

COLLECTIVES = (
    "allreduce", "broadcast", "reduce", "allgather", "gather", "scatter", "reduce_scatter", "alltoall",
    "sendrecv", "barrier",
)  # fmt: skip


def _parser() -> Parser:
    parser = Parser(
        prog="hpccoll overhead", description=(__doc__ or "").partition("\n\n")[2], allow_abbrev=False
    )
    parser.add_argument(
        "--collectives",
        nargs="+",
        choices=COLLECTIVES,
        default=COLLECTIVES,
        metavar="NAME",
        help="which (all)",
    )
    parser.add_argument(
        "--sizes",
        nargs="+",
        type=size_option,
        default=[8, 1024, 65536, 2**20],
        metavar="SIZE",
        help="bytes (8 1K 64K 1M)",
    )
    parser.add_argument("--rounds", type=whole(1), default=40, metavar="N", help="blocks of each engine (40)")
    parser.add_argument(
        "--recorder", action="store_true", help="instead: what the flight recorder costs, on against off"
    )
    parser.add_argument("--check", action="store_true", help="instead: what check mode costs, on against off")
    parser.add_argument("--json", metavar="FILE", help="also write the rows as JSON; - is standard output")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    try:
        options = _parser().parse_args(argv)
    except UsageError as exc:
        return usage_error("overhead", str(exc)) if is_first_rank() else 0
    from hpccoll.bench.overhead import run_overhead

    # Looked up by name, as the console script does: programs do not depend on one another.
    cases = [importlib.import_module(f"hpccoll.{name}").CASE for name in options.collectives]
    if options.recorder:
        from hpccoll.bench.recording import run_recording

        return _guarded(lambda: run_recording(cases, options.sizes, options.rounds, options.json))
    if options.check:
        from hpccoll.bench.checked import run_checked_against_not

        return _guarded(lambda: run_checked_against_not(cases, options.sizes, options.rounds, options.json))
    engines = ["mpi4py", "numpy", *(["torch"] if importlib.util.find_spec("torch") else [])]
    return _guarded(lambda: run_overhead(cases, options.sizes, engines, options.rounds, options.json))


def _guarded(run: Callable[[], int]) -> int:
    try:
        return run()
    except UsageError as exc:
        return usage_error("overhead", str(exc)) if is_first_rank() else 2


if __name__ == "__main__":
    run_program(main)
