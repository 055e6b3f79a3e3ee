"""``mpirun -n 4 python -m hpccoll.alltoall`` measures alltoall and verifies every result.

Every rank has a block for every rank. S = n * count * itemsize (sent by a rank), busbw = algbw * (n-1)/n.
"""

from collections.abc import Sequence

from hpccoll.aborting import run_program
from hpccoll.bench.case import Case, Source
from hpccoll.bench.program import measure_case

CASE = Case(
    name="alltoall",
    summary="Every rank receives everybody's block for it.",
    sends=lambda place: place.size,
    expects=lambda place: [Source(rank, place.rank) for rank in range(place.size)],
    stacked_send=True,
    stacked_recv=True,
    scaled=True,
    in_place="whole",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    return measure_case(CASE, argv)


if __name__ == "__main__":
    run_program(main)
