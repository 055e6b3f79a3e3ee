"""``mpirun -n 4 python -m hpccoll.barrier`` measures the barrier and proves that it waits.

Nobody may leave before everybody has entered: checked for each timed call on the ranks of a host, which share
a clock, and with ranks that come late on purpose across hosts.
"""

from collections.abc import Sequence

from hpccoll.aborting import run_program
from hpccoll.bench.case import Case
from hpccoll.bench.program import measure_case

CASE = Case(
    name="barrier",
    summary="No rank leaves before all have entered.",
    sends=lambda place: 0,
    expects=lambda place: [],
    busbw=lambda size: 1.0,
    sized=False,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    return measure_case(CASE, argv)


if __name__ == "__main__":
    run_program(main)
