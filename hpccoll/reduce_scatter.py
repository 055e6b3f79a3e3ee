"""``mpirun -n 4 python -m hpccoll.reduce_scatter`` measures reduce_scatter and verifies every result.

Every rank has a block for every rank; each receives the reduction of those meant for it.
S = n * count * itemsize (sent by a rank), busbw = algbw * (n-1)/n.
"""

from collections.abc import Sequence

from hpccoll.aborting import run_program
from hpccoll.bench.case import ALL, Case, Source
from hpccoll.bench.program import measure_case

CASE = Case(
    name="reduce_scatter",
    summary="Every rank receives the reduction of everybody's block for it.",
    sends=lambda place: place.size,
    expects=lambda place: [Source(ALL, place.rank)],
    stacked_send=True,
    scaled=True,
    takes_op=True,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    return measure_case(CASE, argv)


if __name__ == "__main__":
    run_program(main)
