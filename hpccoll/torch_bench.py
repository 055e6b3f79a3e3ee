"""``mpirun -n 2 python -m hpccoll.torch_bench``: times torch.distributed over mpi and over gloo, side by side.

Compares the collectives over a range of sizes and training steps with DDP, and shows what the backend costs on top of
mpi4py, how the half types do, and whether gradients travel while others are computed. See docs/torch.md.
"""

import argparse
import importlib.util
import sys
from collections.abc import Sequence

from hpccoll.aborting import run_program
from hpccoll.environment import is_first_rank
from hpccoll.units import parse_bytes

_PARTS = ("collectives", "overhead", "half", "ddp", "overlap")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; `argv` as on the command line."""
    parser = argparse.ArgumentParser(prog="hpccoll torch_bench", description=__doc__)
    parser.add_argument("--part", action="append", choices=_PARTS, help="only this part; may be repeated")
    parser.add_argument("-b", "--min-bytes", default="4", help="smallest message of the collectives (4)")
    parser.add_argument("-e", "--max-bytes", default="16M", help="largest message (16M)")
    parser.add_argument("-f", "--factor", type=int, default=16, help="from one size to the next (16)")
    parser.add_argument("-r", "--rounds", type=int, default=9, help="rounds of each comparison (9)")
    parser.add_argument("--json", metavar="FILE", help="write all numbers to this file")
    options = parser.parse_args(argv)
    if importlib.util.find_spec("torch") is None:
        if is_first_rank():
            print("torch_bench: needs PyTorch: pip install torch", file=sys.stderr)
        return 2
    try:
        least, most = parse_bytes(options.min_bytes), parse_bytes(options.max_bytes)
        if least < 4 or most < least or options.factor < 2 or options.rounds < 1:
            raise ValueError("sizes must be 4 bytes or more, --factor 2 or more and --rounds 1 or more")
    except ValueError as error:
        if is_first_rank():
            print(f"torch_bench: {error}", file=sys.stderr)
        return 2
    sizes = [least]
    while sizes[-1] * options.factor <= most:
        sizes.append(sizes[-1] * options.factor)
    import torch.distributed as dist

    import hpccoll.torch_backend  # noqa: F401  # where hpccoll is not installed

    dist.init_process_group("mpi")
    from hpccoll.bench.torch_compare import run_comparison, silence

    silence()
    status = run_comparison(options.part or _PARTS, sizes, options.rounds, options.json)
    dist.destroy_process_group()
    return status


if __name__ == "__main__":
    run_program(main)
