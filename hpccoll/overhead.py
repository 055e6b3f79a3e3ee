"""``mpirun -n 2 python -m hpccoll.overhead`` times Comm against raw mpi4py, side by side in one run.

Raw mpi4py with prebuilt buffer specs, `Comm` on NumPy arrays and `Comm` on torch tensors, both with ``out=``, make
the same calls on the same memory. Results: docs/performance.md; method: docs/methods.md.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

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
    parser.add_argument("--json", action="store_true", help="JSON Lines instead of a table")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status: 0, or 2 for a bad option (on rank 0)."""
    try:
        options = _parser().parse_args(argv)
    except UsageError as exc:
        return usage_error("overhead", str(exc)) if is_first_rank() else 0
    from hpccoll.bench.overhead import compare
    from hpccoll.comm import world

    comm = world()
    # Looked up by name, as the console script does: programs do not depend on one another.
    cases = [importlib.import_module(f"hpccoll.{name}").CASE for name in options.collectives]
    engines = ["mpi4py", "numpy", *(["torch"] if importlib.util.find_spec("torch") else [])]
    if comm.rank == 0 and not options.json:
        print(f"# float32, {comm.size} ranks, mode pipelined, median of {options.rounds} interleaved blocks")
        print("# extra and ratio: against mpi4py, block by block, and once more between the least times")
        print(f"#{'collective':>14} {'bytes':>9} {'engine':>8} {'median':>10} {'extra':>8} {'ratio':>7}", end="")
        print(f" {'least':>10} {'extra':>8} {'ratio':>7}")
        print(f"#{'':>33} {'us':>10} {'us':>8} {'':>7} {'us':>10} {'us':>8}", flush=True)
    for item in compare(cases, options.sizes, engines, options.rounds, comm):
        if comm.rank != 0:
            continue
        if options.json:
            print(json.dumps(asdict(item)), flush=True)
            continue
        numbers = f"{item.time_us:>10.2f} {item.extra_us:>8.2f} {item.ratio:>7.3f}"
        numbers += f" {item.least_us:>10.2f} {item.least_extra_us:>8.2f} {item.least_ratio:>7.3f}"
        print(f"{item.collective:>15} {item.nbytes:>9} {item.engine:>8} {numbers}", flush=True)
    return 0


if __name__ == "__main__":
    run_program(main)
