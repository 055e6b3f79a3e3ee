"""``mpirun -n 4 python -m hpccoll.broadcast`` measures broadcast and verifies every result.

The root's block goes to every rank, in place. S = count * itemsize, busbw = algbw.
"""

from collections.abc import Sequence

from hpccoll.aborting import run_program
from hpccoll.bench.case import Case, Source
from hpccoll.bench.program import measure_case

CASE = Case(
    name="broadcast",
    summary="Every rank receives the root's block.",
    sends=lambda place: int(place.rank == place.root),
    expects=lambda place: [Source(place.root, 0)],
    busbw=lambda size: 1.0,
    takes_root=True,
    always_in_place=True,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    return measure_case(CASE, argv)


if __name__ == "__main__":
    run_program(main)
