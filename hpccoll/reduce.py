"""``mpirun -n 4 python -m hpccoll.reduce`` measures reduce and verifies every result.

Every rank has one block; the root receives the reduction of all of them. S = count * itemsize, busbw = algbw.
"""

from collections.abc import Sequence

from hpccoll.aborting import run_program
from hpccoll.bench.case import ALL, Case, Source, one_block
from hpccoll.bench.program import measure_case

CASE = Case(
    name="reduce",
    summary="The root receives the reduction of everybody's block.",
    sends=one_block,
    expects=lambda place: [Source(ALL, 0)] if place.rank == place.root else [],
    busbw=lambda size: 1.0,
    takes_op=True,
    takes_root=True,
    in_place="whole",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    return measure_case(CASE, argv)


if __name__ == "__main__":
    run_program(main)
