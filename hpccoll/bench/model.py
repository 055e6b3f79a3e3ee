"""What a fit on a few ranks says about more: a model, never a measurement. Formulas: docs/methods.md.

Hockney's model: a message of S bytes takes a + S*b. `link_of` finds a and b from the measured fit, supposing the
algorithm that MPI libraries use for small and for large messages; `predict_us` puts them into the cost of an
algorithm on N ranks. The arithmetic of reductions is in b, contention is in neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from hpccoll.bench.fit import Fit

__all__ = ["ALGORITHMS", "Link", "link_of", "predict_us"]


class Link(NamedTuple):
    """Cost of one message: `a_us` to begin with, and `b_us` for each byte."""

    a_us: float
    b_us: float


def _log(n: int) -> int:
    return max(0, math.ceil(math.log2(n)))


# Each gives how often (a, S*b) are paid on n ranks; S as in docs/methods.md.
_Cost = Callable[[int], tuple[float, float]]


def _ring(passes: int) -> _Cost:
    return lambda n: (passes * (n - 1), passes * (n - 1) / n)


def _halving(passes: int) -> _Cost:
    return lambda n: (passes * _log(n), passes * (n - 1) / n)


def _tree(passes: int) -> _Cost:
    return lambda n: (passes * _log(n), passes * _log(n))


def _linear(n: int) -> tuple[float, float]:
    return n - 1, (n - 1) / n


def _scatter_ring(n: int) -> tuple[float, float]:
    return _log(n) + n - 1, 2 * (n - 1) / n


ALGORITHMS: dict[str, dict[str, _Cost]] = {
    "allreduce": {"ring": _ring(2), "recursive doubling": _tree(1), "tree": _tree(2)},
    "broadcast": {"tree": _tree(1), "ring": _scatter_ring},
    "reduce": {"tree": _tree(1), "ring": _scatter_ring},
    "allgather": {"ring": _ring(1), "recursive doubling": _halving(1)},
    "reduce_scatter": {"ring": _ring(1), "recursive doubling": _halving(1)},
    "alltoall": {"ring": _ring(1), "recursive doubling": lambda n: (_log(n), _log(n) / 2)},
    "gather": {"tree": _halving(1), "ring": _linear},
    "scatter": {"tree": _halving(1), "ring": _linear},
    "sendrecv": {"ring": lambda n: (1, 1)},
    "barrier": {"recursive doubling": _tree(1), "tree": _tree(2)},
}
"""Per collective the algorithms, as functions of the number of ranks."""

# Collectives that a two-level form exists for: how often the data goes up and down within a node.
_WITHIN_NODE = {"allreduce": 2, "broadcast": 1, "reduce": 1, "barrier": 2}


def link_of(collective: str, ranks: int, fit: Fit) -> Link | None:
    """a and b that explain the fit on `ranks` ranks; None for a single rank, where nothing is sent.

    a comes from the first segment, by the algorithm with the fewest messages; b from the last, by the one that moves
    the fewest bytes.
    """
    if ranks < 2:
        return None
    costs = [cost(ranks) for cost in ALGORITHMS[collective].values()]
    messages, volume = min(messages for messages, _ in costs), min(volume for _, volume in costs)
    return Link(fit.segments[0].alpha_us / messages, fit.segments[-1].us_per_byte / volume)


def predict_us(
    collective: str, link: Link, nbytes: int, ranks: int, ranks_per_node: int = 1
) -> dict[str, float]:
    """Time of each algorithm on `ranks` ranks in microseconds, by name.

    ``two-level`` is there where the collective has such a form and a node has several of the ranks: trees within
    the nodes, and the best of the others between one rank of each.
    """
    found = {name: _time(cost(ranks), link, nbytes) for name, cost in ALGORITHMS[collective].items()}
    passes = _WITHIN_NODE.get(collective)
    nodes = math.ceil(ranks / ranks_per_node)
    if passes and ranks_per_node > 1 and nodes > 1:
        between = min(_time(cost(nodes), link, nbytes) for cost in ALGORITHMS[collective].values())
        found["two-level"] = _time(_tree(passes)(ranks_per_node), link, nbytes) + between
    return found


def _time(cost: tuple[float, float], link: Link, nbytes: int) -> float:
    messages, volume = cost
    return messages * link.a_us + volume * nbytes * link.b_us
