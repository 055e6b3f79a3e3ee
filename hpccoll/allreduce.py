"""``mpirun -n 4 python -m hpccoll.allreduce`` measures allreduce and verifies every result.

Every rank has one block; every rank receives the reduction of all of them. S = count * itemsize,
busbw = algbw * 2(n-1)/n.
"""

from collections.abc import Sequence

from hpccoll.aborting import run_program
from hpccoll.bench.case import ALL, Case, Source, one_block
from hpccoll.bench.program import measure_case

CASE = Case(
    name="allreduce",
    summary="Every rank receives the reduction of everybody's block.",
    sends=one_block,
    expects=lambda place: [Source(ALL, 0)],
    busbw=lambda size: 2 * (size - 1) / size,
    takes_op=True,
    in_place="whole",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    return measure_case(CASE, argv)


if __name__ == "__main__":
    run_program(main)
