"""Self-consistency of an MPI: a collective should not be slower than others that do the same together.

Each composition gives the same result as the collective, so it is verified in the same way, and timed in the same
blocks. After J. L. Traeff, W. D. Gropp and R. Thakur, Self-consistent MPI performance guidelines, 2010.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpccoll.units import format_bytes

if TYPE_CHECKING:
    from hpccoll.bench.results import Row

__all__ = ["COMPOSITIONS", "find_violations"]

COMPOSITIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "allreduce": (("reduce", "broadcast"), ("reduce_scatter", "allgather")),
    "allgather": (("gather", "broadcast"),),
}
"""What together gives the result of a collective."""

_TOLERANCE = 0.05


def find_violations(collective: str, rows: list[Row]) -> list[str]:
    """Hints for those who tune the MPI: where a composition beat the collective beyond the noise, and by how much.

    It has to be faster by more than 5 %, with the whole 95 % interval of the ratio below 1.
    """
    hints = []
    for row in rows:
        engine, _, parts = row.engine.partition(":")
        if not parts or row.ratio is None or row.ratio_high is None:
            continue
        if row.ratio < 1 - _TOLERANCE and row.ratio_high < 1:
            what = " + ".join(parts.split("+"))
            hints.append(
                f"tuning hint: {collective} of {format_bytes(row.nbytes)} through {engine} takes {1 / row.ratio:.2f}"
                f" times as long as {what}; another algorithm for this size may help"
            )
    return hints
