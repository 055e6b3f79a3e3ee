"""The same collective on every rank, side by side: which ranks called something else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpccoll.diagnose.dumps import Call, Dump
from hpccoll.diagnose.reading import Job

__all__ = ["Communicators", "Mismatch", "mismatches"]

# Where every rank must pass as many elements as the others, unless it says that the blocks are uneven.
_EVEN = {"allreduce", "reduce", "broadcast", "scan", "exscan", "reduce_scatter", "allgather", "alltoall"}
# In torch these take tensors of different lengths without a word.
_UNEVEN_IN_TORCH = {"reduce_scatter", "allgather", "alltoall", "gather"}
# Here the root passes another object than the others.
_ROOTED = {"gather", "scatter"}
_REDUCTIONS = {"allreduce", "reduce", "scan", "exscan", "reduce_scatter"}


@dataclass
class Mismatch:
    """Ranks called one collective of a communicator differently.

    Attributes
    ----------
    what : str
        ``operation``, ``root``, ``op``, ``dtype`` or ``count``.
    sides : list of tuple
        A call and the ranks that made it; the largest side first.
    guilty : list of int
        The ranks outside the largest side; all of them if there is no largest.
    aside : str
        What else the rest of the calls says, such as that the guilty have left one out.
    """

    comm: str
    seq: int
    what: str
    sides: list[tuple[Call, list[int]]]
    guilty: list[int]
    aside: str = ""


class Communicators:
    """Who is a member of which communicator, and how far each has come there."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.ranks: dict[str, Sequence[int]] = {}
        for dump in job.dumps.values():
            for name, member in dump.communicators.items():
                self.ranks.setdefault(name, member.ranks)
        for dump in job.dumps.values():  # a dump that lists an operation, but no communicator
            for name in (*dump.collectives, *dump.messages):
                self.ranks.setdefault(name, range(job.size))

    def issued(self, rank: int, comm: str) -> int:
        """Number of the last collective that a rank with a dump has issued."""
        dump = self.job.dumps[rank]
        first, calls = dump.collectives.get(comm, (1, []))
        last = first + len(calls) - 1
        member = dump.communicators.get(comm)
        # A rank that goes on while its dump is written counts further than its operations do.
        return last if member is None or not dump.dropped else max(member.issued, last)

    def call(self, rank: int, comm: str, seq: int) -> Call | None:
        """A rank's collective of that number; None if it made none, or the ring has lost it."""
        return call_of(self.job.dumps[rank], comm, seq)

    def world_rank(self, comm: str, rank: object) -> int | None:
        """World rank of a communicator's rank."""
        ranks = self.ranks.get(comm, ())
        return ranks[rank] if isinstance(rank, int) and 0 <= rank < len(ranks) else None


def call_of(dump: Dump, comm: str, seq: int) -> Call | None:
    first, calls = dump.collectives.get(comm, (1, []))
    return calls[seq - first] if 0 <= seq - first < len(calls) else dump.strays.get((comm, seq))


def mismatches(comms: Communicators) -> Iterator[Mismatch]:
    """The first mismatch on each communicator; the later ones follow from it."""
    for comm in comms.ranks:
        found = _first_on(comms, comm)
        if found is not None:
            yield found


def _first_on(comms: Communicators, comm: str) -> Mismatch | None:
    # Ranks with the very same history are compared once.
    by_calls: dict[tuple[int, ...], tuple[int, list[Call | None], list[int]]] = {}
    for rank, dump in sorted(comms.job.dumps.items()):
        if comm in dump.collectives:
            first, calls = dump.collectives[comm]
            key = (first, *map(id, calls))  # equal calls are one object
            by_calls.setdefault(key, (first, calls, []))[2].append(rank)
    stories = list(by_calls.values())
    if len(stories) < 2:
        return None
    begin = min(first for first, _, _ in stories)
    end = max(first + len(calls) for first, calls, _ in stories)
    for seq in range(begin, end):
        sides: dict[Call, list[int]] = {}
        for first, calls, ranks in stories:
            call = calls[seq - first] if 0 <= seq - first < len(calls) else None
            if call is not None:
                sides.setdefault(call, []).extend(ranks)
        if len(sides) > 1:
            found = _compare(comms, comm, seq, sides)
            if found is not None:
                return found
    return None


def _compare(comms: Communicators, comm: str, seq: int, calls: dict[Call, list[int]]) -> Mismatch | None:
    for what in ("operation", "root", "op", "dtype", "count"):
        groups: dict[object, list[tuple[Call, list[int]]]] = {}
        for call, ranks in calls.items():
            for value, part in _values(comms, comm, call, ranks, what):
                groups.setdefault(value, []).append((call, part))
        if len(groups) > 1:
            return _mismatch(comms, comm, seq, what, list(groups.values()))
    return None


def _values(
    comms: Communicators, comm: str, call: Call, ranks: list[int], what: str
) -> Iterator[tuple[object, list[int]]]:
    """What has to be alike, if this call has it, and for which of its ranks."""
    if what == "operation":
        yield call.method, ranks
    elif what == "root" and call.root is not None:
        yield call.root, ranks
    elif what == "op" and call.op is not None and call.method in _REDUCTIONS:
        yield call.op, ranks
    elif what in ("dtype", "count") and not call.method.endswith("_object"):
        value = call.dtype if what == "dtype" else call.elements
        uneven = call.uneven or (call.comm.startswith("torch:") and call.method in _UNEVEN_IN_TORCH)
        if value is None or (what == "count" and uneven):
            return
        if call.method in _ROOTED:
            root = comms.world_rank(comm, call.root)
            ranks = [rank for rank in ranks if rank != root]
            if call.method == "scatter" or not ranks:
                return  # what is not the root brings nothing
        elif what == "count" and call.method not in _EVEN:
            return
        yield value, ranks


def _mismatch(
    comms: Communicators, comm: str, seq: int, what: str, groups: list[list[tuple[Call, list[int]]]]
) -> Mismatch:
    sizes = [sum(len(ranks) for _, ranks in group) for group in groups]
    order = sorted(range(len(groups)), key=lambda i: (-sizes[i], min(groups[i][0][1])))
    sides = []
    for i in order:
        # Of the calls on one side the most frequent speaks.
        call = max(groups[i], key=lambda entry: len(entry[1]))[0]
        sides.append((call, sorted(rank for _, ranks in groups[i] for rank in ranks)))
    largest = sizes[order[0]]
    odd = sides[1:] if sizes.count(largest) == 1 else sides
    guilty = sorted(rank for _, ranks in odd for rank in ranks)
    found = Mismatch(comm, seq, what, sides, guilty)
    if len(odd) < len(sides):
        found.aside = shift(comms.job.dumps[sides[0][1][0]], comms.job.dumps[guilty[0]], comm, seq)
    return found


def shift(usual: Dump, odd: Dump, comm: str, seq: int) -> str:
    """Whether from `seq` on the odd rank's calls are the usual ones, one early or one late."""
    first = _first_difference(usual, odd, comm, seq)

    def matches(skip_usual: int, skip_odd: int) -> int:
        count = 0
        while True:
            left = _call_or_repeat(usual, comm, first + skip_usual + count, first)
            right = _call_or_repeat(odd, comm, first + skip_odd + count, first)
            if left is None or right is None:
                return count
            if _place(left) != _place(right):
                return 0
            count += 1

    early, late = matches(1, 0), matches(0, 1)
    left, right = call_of(usual, comm, first), call_of(odd, comm, first)
    if early > late and left:
        return f"left out {left.method} #{first} at {left.site}"
    if late > early and right:
        return f"made one call too many: {right.method} #{first} at {right.site}"
    return ""


def _place(call: Call) -> tuple[str, str | None]:
    return call.method, call.site


def _call_or_repeat(dump: Dump, comm: str, seq: int, stuck: int) -> Call | None:
    """The call after the one that the rank is stuck in is not known: take what followed there the last time."""
    call = call_of(dump, comm, seq)
    here = call_of(dump, comm, stuck)
    if call is not None or seq != stuck + 1 or here is None:
        return call
    before = stuck - 1
    while (earlier := call_of(dump, comm, before)) is not None and _place(earlier) != _place(here):
        before -= 1
    return call_of(dump, comm, before + 1) if earlier is not None else None


def _first_difference(usual: Dump, odd: Dump, comm: str, seq: int) -> int:
    """Go back to where the call sites begin to differ: same calls from other lines hide a call left out."""
    while True:
        left, right = call_of(usual, comm, seq - 1), call_of(odd, comm, seq - 1)
        if left is None or right is None or (left.method, left.site) == (right.method, right.site):
            return seq
        seq -= 1
