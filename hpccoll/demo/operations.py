"""The two operations, made by the calls that are shown, and what every rank held before and after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpccoll.comm import Comm

__all__ = ["COMM_CALLS", "OPERATIONS", "TORCH_CALLS", "Held", "Step", "observe"]

ROOT_VALUE = 123.0


@dataclass(frozen=True)
class Operation:
    """What a rank holds before, by its rank, and what every rank has to hold after, by their number."""

    name: str
    before: Callable[[int], float]
    after: Callable[[int], float]


OPERATIONS = (
    Operation("broadcast", lambda rank: 0.0 if rank else ROOT_VALUE, lambda size: ROOT_VALUE),
    Operation("allreduce", float, lambda size: size * (size - 1) / 2),
)

# What is printed is what is evaluated.
TORCH_CALLS = {
    "broadcast": "dist.broadcast(tensor, src=0)",
    "allreduce": "dist.all_reduce(tensor, op=dist.ReduceOp.SUM)",
}
COMM_CALLS = {
    "broadcast": "comm.broadcast(array, root=0)",
    "allreduce": 'comm.allreduce(array, op="sum", out=array)',
}


@dataclass(frozen=True)
class Held:
    """The value of one rank's object, and the object as Python shows it."""

    value: float
    shown: str


@dataclass(frozen=True)
class Step:
    """One operation as it went.

    Attributes
    ----------
    operation, call : str
        Its name, and the expression that was evaluated.
    before, after : list of Held
        By rank.
    expected : float
        What each rank has to hold after.
    """

    operation: str
    call: str
    before: list[Held]
    after: list[Held]
    expected: float

    def faults(self) -> list[str]:
        """A sentence for each rank that holds a wrong value."""
        return [
            f"{self.call}: rank {rank} holds {held.value}, and should hold {self.expected}"
            for rank, held in enumerate(self.after)
            if held.value != self.expected
        ]


def observe(
    operation: Operation, call: str, comm: Comm, make: Callable[[float], Any], names: Mapping[str, object]
) -> Step:
    """Evaluate `call` on an object of one element; every rank gets what all ranks held.

    `make` gives the object for a value. `names` are the others that `call` uses; the object's own name in it is
    "tensor" or "array".
    """
    held = make(operation.before(comm.rank))
    before = Held(held.item(), repr(held))
    eval(call, {**names, "tensor": held, "array": held})
    after = Held(held.item(), repr(held))
    rows = comm.allgather_object((before, after))
    return Step(
        operation.name, call, [row[0] for row in rows], [row[1] for row in rows], operation.after(comm.size)
    )
