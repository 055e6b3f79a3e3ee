"""``mpirun -n 4 python -m hpccoll.sendrecv`` measures sendrecv round a ring and verifies every result.

Every rank sends its block to the next rank and receives that of the previous one.
S = count * itemsize (sent by a rank), busbw = algbw.
"""

from collections.abc import Sequence

from hpccoll.aborting import run_program
from hpccoll.bench.case import Case, Source, one_block
from hpccoll.bench.program import measure_case

CASE = Case(
    name="sendrecv",
    summary="Every rank sends its block to the next rank and receives that of the previous one.",
    sends=one_block,
    expects=lambda place: [Source((place.rank - 1) % place.size, 0)],
    busbw=lambda size: 1.0,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    return measure_case(CASE, argv)


if __name__ == "__main__":
    run_program(main)
