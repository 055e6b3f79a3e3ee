"""``mpirun -n 4 python -m hpccoll.allgather`` measures allgather and verifies every result.

Every rank has one block; every rank receives all of them. S = n * count * itemsize (received by a rank),
busbw = algbw * (n-1)/n.
"""

from collections.abc import Sequence

from hpccoll.aborting import run_program
from hpccoll.bench.case import Case, Source, one_block
from hpccoll.bench.program import measure_case

CASE = Case(
    name="allgather",
    summary="Every rank receives everybody's block.",
    sends=one_block,
    expects=lambda place: [Source(rank, 0) for rank in range(place.size)],
    stacked_recv=True,
    scaled=True,
    in_place="block",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    return measure_case(CASE, argv)


if __name__ == "__main__":
    run_program(main)
