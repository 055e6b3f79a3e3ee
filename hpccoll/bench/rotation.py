"""One set of buffers after the other, so that a call finds its own no longer in the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpccoll.bench.storage import RowData, Wrong

__all__ = ["Rotation", "sets_for"]


def sets_for(rotate_nbytes: int, set_nbytes: int, limit_nbytes: int | None) -> int:
    """How many sets of `set_nbytes` make `rotate_nbytes`; as many as the limit allows, and one at least."""
    wanted = -(-rotate_nbytes // max(1, set_nbytes))
    if limit_nbytes is not None:
        wanted = min(wanted, limit_nbytes // max(1, set_nbytes))
    return max(1, wanted)


class Rotation:
    """Several `RowData` that take turns; call i uses set i modulo their number.

    With one set it is that set. With more, a set is made ready for its next turn right after it was checked, and the
    turns of the others drive it out of the cache again.

    Parameters
    ----------
    make
        Makes a set.
    number
        How many.
    """

    def __init__(self, make: Callable[[], RowData], number: int) -> None:
        self.sets = [make() for _ in range(number)]
        self._ready = 0

    @property
    def in_place(self) -> bool:
        """Whether calls work in place on this rank."""
        return self.sets[0].in_place

    def windows(self, kind: str) -> list[tuple[Any, Any]]:
        """(send, recv) of call i at i modulo the length, as `RowData.windows` has them for one set."""
        each = [data.windows(kind) for data in self.sets]
        number = len(each)
        return [each[i % number][i % len(each[0])] for i in range(number * len(each[0]))]

    def prepare(self, iteration: int) -> None:
        """Make the buffers of this call ready."""
        number = len(self.sets)
        if number == 1:
            self.sets[0].prepare(iteration)
        elif self._ready <= iteration:
            for ahead in range(iteration, iteration + number):
                self.sets[ahead % number].prepare(ahead)
            self._ready = iteration + number

    def check(self, iteration: int) -> Wrong | None:
        """Compare what was received; get the set ready for its next turn."""
        number = len(self.sets)
        wrong = self.sets[iteration % number].check(iteration)
        if number > 1:
            self.sets[iteration % number].prepare(iteration + number)
            self._ready = iteration + number + 1
        return wrong

    def check_rest(self) -> list[Wrong]:
        """Inputs and canaries of every set."""
        return [wrong for data in self.sets for wrong in data.check_rest()]
