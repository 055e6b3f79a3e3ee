"""``mpirun -n 4 python -m hpccoll.scatter`` measures scatter and verifies every result.

The root has a block for every rank. S = n * count * itemsize (sent by the root), busbw = algbw * (n-1)/n.
"""

from collections.abc import Sequence

from hpccoll.aborting import run_program
from hpccoll.bench.case import Case, Source
from hpccoll.bench.program import measure_case

CASE = Case(
    name="scatter",
    summary="Every rank receives its block of the root's.",
    sends=lambda place: place.size if place.rank == place.root else 0,
    expects=lambda place: [Source(place.root, place.rank)],
    stacked_send=True,
    scaled=True,
    takes_root=True,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    return measure_case(CASE, argv)


if __name__ == "__main__":
    run_program(main)
