"""Who waits for whom, and where the waiting begins.

The graph has a node for each rank that waits, for each collective that is waited for, and for those who have not
come to it. Whatever has no edge out of it is where the waiting begins: a rank that waits for nobody (it computes,
has ended, or left no dump), a circle of ranks, or an operation that all its ranks are in.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from hpccoll.diagnose.aligning import Communicators
from hpccoll.diagnose.dumps import Call, Dump, Frame, Operation

__all__ = ["Graph", "Node", "Unmatched", "connected", "inside_hpccoll", "user_frame", "waits_in"]

Node = int | tuple[object, ...]
"""A rank, ``("op", comm, seq)``, ``("behind", comm, issued)``, ``("any", comm)`` or ``("pair", lower, higher)``."""

_PACKAGE = Path(__file__).parents[1]
# Python calls C++ there, which may wait for a collective: loss.backward() in DDP.
_TORCH = ("/torch/distributed/", "/torch/autograd/")
_OWN = {str(path.relative_to(_PACKAGE.parent)) for path in _PACKAGE.rglob("*.py")}


@dataclass(frozen=True)
class Unmatched:
    """A message that one side has, and the other has otherwise: `what` is ``tag`` or ``size``."""

    what: str
    sender: int
    sending: Operation
    receiver: int
    receiving: Operation


def inside_hpccoll(frame: Frame) -> bool:
    """Whether the frame is one of this package (and not of a user whose directory is called hpccoll)."""
    if frame.file.startswith("<hpccoll "):
        return True  # made at run time
    before, found, after = frame.file.rpartition("hpccoll/")
    return bool(found) and (not before or before.endswith("/")) and f"hpccoll/{after}" in _OWN


def _library(frame: Frame) -> bool:
    parts = PurePath(frame.file).parts
    return frame.file.startswith("<frozen") or any(
        part in ("site-packages", "dist-packages") or part.startswith("python3") for part in parts[:-1]
    )


def user_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the user's code; of any code if there is none of theirs."""
    own = [frame for frame in frames if not inside_hpccoll(frame) and not _library(frame)]
    known = own or frames
    return known[-1] if known else None


def waits_in(dump: Dump) -> list[Operation]:
    """The operations that keep this rank from going on: per communicator the first that is not done.

    A rank waits in its blocking operations; in the others if it is inside hpccoll or torch now, else it computes
    while they are under way.
    """
    begun = [operation for operation in dump.open if operation.seq]
    blocking = [operation for operation in dump.open if operation.call.blocking]
    chosen: dict[object, Operation] = {}
    for operation in blocking or (begun if _inside(dump) else []):
        if operation.call.kind == "collective":
            # Those of one communicator run one after the other; an earlier one may have been issued without waiting.
            comm = operation.call.comm
            earlier = (item for item in begun if item.call.kind == "collective" and item.call.comm == comm)
            chosen.setdefault(comm, next(earlier, operation))
        else:
            chosen[id(operation)] = operation
    if dump.reason == "exception" and "Timeout" in last_line(dump.exception):
        for operation in dump.failed[-1:]:
            chosen.setdefault(operation.call.comm, operation)
    return list(chosen.values())


def last_line(text: str | None) -> str:
    """The first line of a traceback that says what was raised."""
    lines = [line for line in (text or "").strip().splitlines() if line.strip()]
    # The message may have several lines; the first follows the last place of the stack and its source.
    last = max((i for i, line in enumerate(lines) if line.startswith('  File "')), default=-1)
    after = [line for line in lines[last + 1 :] if not line.startswith("    ")] or lines[-1:]
    return after[0].strip() if after else ""


def _inside(dump: Dump) -> bool:
    if not dump.stacks:
        return True
    threads = {item.thread for item in dump.open if item.thread in dump.stacks} or {"MainThread"}
    for name in threads:
        for frame in reversed(dump.stacks.get(name or "MainThread", ())):
            if inside_hpccoll(frame) or any(part in frame.file for part in _TORCH):
                return True
            if not _library(frame):
                break  # the user's own code
    return False


@dataclass
class Graph:
    """The waits-for graph of a job.

    Attributes
    ----------
    waiting : dict
        The operations that each waiting rank waits in.
    edges : dict
    unmatched : list of Unmatched
    sinks : list of list of node
        The parts of the graph that nothing leads out of.
    """

    comms: Communicators
    waiting: dict[int, list[Operation]] = field(default_factory=dict)
    edges: dict[Node, list[Node]] = field(default_factory=dict)
    unmatched: list[Unmatched] = field(default_factory=list)
    sinks: list[list[Node]] = field(default_factory=list)

    def __post_init__(self) -> None:
        job = self.comms.job
        self._levels: dict[str, list[int]] = {}
        self._failed: dict[tuple[str, int], list[int]] = defaultdict(list)
        for rank, dump in job.dumps.items():
            operations = waits_in(dump) if dump.reason not in ("exit", "check") else []
            raised = dump.reason == "exception" and "Timeout" not in last_line(dump.exception)
            if operations and not raised:
                self.waiting[rank] = operations
            for operation in dump.failed:
                if operation.call.kind == "collective":
                    self._failed[operation.call.comm, operation.seq].append(rank)
        for rank, operations in self.waiting.items():
            targets: list[Node] = []
            for operation in operations:
                if operation.call.kind == "collective":
                    targets.append(self._collective(operation))
                else:
                    targets += self._message(rank, operation)
            self.edges[rank] = targets
        self.sinks = _sinks(self.waiting, self.edges)
        self._backwards: dict[Node, list[Node]] = defaultdict(list)
        for node, targets in self.edges.items():
            for target in targets:
                self._backwards[target].append(node)

    # ---- what an operation waits for

    def _collective(self, operation: Operation) -> Node:
        comm, seq = operation.call.comm, operation.seq
        node: Node = ("op", comm, seq)
        if node not in self.edges:
            behind = [level for level in self._chain(comm) if level < seq]
            self.edges[node] = [("behind", comm, behind[-1])] if behind else []
            self.edges[node] += self._failed.get((comm, seq), [])
        return node

    def _chain(self, comm: str) -> list[int]:
        """Nodes of the members by how far they are; each leads to the next that is further behind."""
        if comm not in self._levels:
            members: dict[int, list[Node]] = defaultdict(list)
            dumps = self.comms.job.dumps
            for rank in self.comms.ranks.get(comm, ()):
                members[self.comms.issued(rank, comm) if rank in dumps else -1].append(rank)
            levels = self._levels[comm] = sorted(members)
            for before, level in zip([None, *levels], levels, strict=False):
                self.edges["behind", comm, level] = members[level] + (
                    [] if before is None else [("behind", comm, before)]
                )
        return self._levels[comm]

    def _message(self, rank: int, operation: Operation) -> list[Node]:
        call = operation.call
        targets: list[Node] = []
        halves = 0
        if call.dest is not None:
            halves += 1
            targets += self._half(rank, operation, self.comms.world_rank(call.comm, call.dest), sending=True)
        if call.source is not None:
            halves += 1
            if isinstance(call.source, int):
                source = self.comms.world_rank(call.comm, call.source)
                targets += self._half(rank, operation, source, sending=False)
            else:
                targets += self._from_any(rank, operation)
        pairs: list[Node] = [
            target for target in targets if isinstance(target, tuple) and target[0] == "pair"
        ]
        # A half that has met its partner holds nobody up, as long as the other half waits.
        return pairs if len(pairs) == len(targets) else [target for target in targets if target not in pairs]

    def _from_any(self, rank: int, operation: Operation) -> list[Node]:
        comm = operation.call.comm
        dumps = self.comms.job.dumps
        members = self.comms.ranks.get(comm, ())
        for other in members:
            if other != rank and other in dumps:
                for sending in _halves(dumps[other].open, comm, self.comms, rank, sending=True):
                    if _tags_agree(sending, operation):
                        return [_pair(rank, other)]
        node: Node = ("any", comm)
        if node not in self.edges:
            # Anybody may send: those who wait for nobody first; if all wait, they wait for one another.
            free = [other for other in members if other not in self.waiting]
            self.edges[node] = list(free or members)
        return [node]

    def _half(self, rank: int, operation: Operation, partner: int | None, sending: bool) -> list[Node]:
        """What a send waits for at its receiver, or a receive at its sender."""
        if partner is None:
            return []
        other = self.comms.job.dumps.get(partner)
        if other is None or partner == rank:
            return [partner]
        comm = operation.call.comm
        waiting = list(_halves(other.open, comm, self.comms, rank, sending=not sending))
        if any(_tags_agree(item, operation) for item in waiting):
            fitting = next(item for item in waiting if _tags_agree(item, operation))
            found = self._pairing("size", rank, operation, partner, fitting, sending)
            if _too_large(found.sending.call, found.receiving.call):
                self._note(found)
            return [_pair(rank, partner)]
        own = self.comms.job.dumps[rank]
        surplus = self._surplus(own, other, comm, sending)
        if surplus is not None and surplus.get(operation.call.tag, 0) > 0:
            return [_pair(rank, partner)]  # on its way
        wrong = [
            item
            for item in waiting
            if not any(
                _tags_agree(item, mine) for mine in _halves(own.open, comm, self.comms, partner, sending)
            )
        ]
        if not wrong and surplus:
            late = {tag for tag, number in surplus.items() if number > 0}
            candidates = _halves(other.messages.get(comm, ()), comm, self.comms, rank, not sending)
            wrong = [item for item in candidates if item.state == "done" and item.call.tag in late]
        if wrong:
            self._note(self._pairing("tag", rank, operation, partner, wrong[-1], sending))
            return [_pair(rank, partner)]
        return [partner]

    def _surplus(self, own: Dump, other: Dump, comm: str, sending: bool) -> dict[object, int] | None:
        """By tag, how many more of `other`'s messages are done than this rank has taken; None if the ring lost some."""
        if own.dropped or other.dropped:
            return None
        theirs = _halves(other.messages.get(comm, ()), comm, self.comms, own.rank, not sending)
        mine = _halves(own.messages.get(comm, ()), comm, self.comms, other.rank, sending)
        counts: Counter[object] = Counter(item.call.tag for item in theirs if item.state == "done")
        for item in mine:
            if item.state == "done":
                if not isinstance(item.call.tag, int):
                    return None
                counts[item.call.tag] -= 1
        if any(
            item.call.source == "any"
            for item in own.messages.get(comm, ())
            if item.state == "done" and not sending
        ):
            return None
        return dict(counts)

    @staticmethod
    def _pairing(
        what: str, rank: int, own: Operation, partner: int, other: Operation, sending: bool
    ) -> Unmatched:
        return (
            Unmatched(what, rank, own, partner, other)
            if sending
            else Unmatched(what, partner, other, rank, own)
        )

    def _note(self, found: Unmatched) -> None:
        if found not in self.unmatched:
            self.unmatched.append(found)

    # ---- reading it

    def waits_for(self, nodes: Iterable[Node]) -> list[int]:
        """Ranks from which the waiting leads to one of `nodes`, without those in it."""
        inside = set(nodes)
        seen, todo = set(inside), list(inside)
        while todo:
            for before in self.before(todo.pop()):
                if before not in seen:
                    seen.add(before)
                    todo.append(before)
        return sorted(node for node in seen - inside if isinstance(node, int))

    def before(self, node: Node) -> Sequence[Node]:
        """Nodes with an edge to this one."""
        return self._backwards.get(node, ())

    def ranks_from(self, node: Node) -> Iterator[int]:
        """The ranks that a node leads to, through nodes that are no ranks."""
        seen, todo = {node}, [node]
        while todo:
            for target in self.edges.get(todo.pop(), ()):
                if target in seen:
                    continue
                seen.add(target)
                if isinstance(target, int):
                    yield target
                else:
                    todo.append(target)


def _too_large(sending: Call, receiving: Call) -> bool:
    """Whether more is sent than there is room for (of a sendrecv, the dump has the size of what it sends)."""
    if receiving.dest is not None or sending.nbytes is None or receiving.nbytes is None:
        return False
    return sending.nbytes > receiving.nbytes


def _pair(one: int, other: int) -> Node:
    return ("pair", min(one, other), max(one, other))


def _halves(
    operations: Iterable[Operation], comm: str, comms: Communicators, partner: int, sending: bool
) -> Iterator[Operation]:
    """The sends to `partner` of these operations, or the receives from it."""
    for operation in operations:
        call = operation.call
        if call.kind != "p2p" or call.comm != comm:
            continue
        rank = call.dest if sending else call.source
        if rank == "any" or (rank is not None and comms.world_rank(comm, rank) == partner):
            yield operation


def _tags_agree(one: Operation, other: Operation) -> bool:
    left, right = one.call.tag, other.call.tag
    return left == right or "any" in (left, right) or None in (left, right)


def connected(starts: Iterable[Node], edges: dict[Node, list[Node]]) -> list[list[Node]]:
    """Strongly connected parts of what can be reached (Tarjan's algorithm, without recursion)."""
    index: dict[Node, int] = {}
    low: dict[Node, int] = {}
    on_stack: set[Node] = set()
    stack: list[Node] = []
    parts: list[list[Node]] = []
    for start in starts:
        if start in index:
            continue
        path: list[tuple[Node, Iterator[Node]]] = []

        def enter(node: Node, path: list[tuple[Node, Iterator[Node]]] = path) -> None:
            index[node] = low[node] = len(index)
            stack.append(node)
            on_stack.add(node)
            path.append((node, iter(edges.get(node, ()))))

        enter(start)
        while path:
            node, targets = path[-1]
            for target in targets:
                if target not in index:
                    enter(target)
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == index[node]:
                    part: list[Node] = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        part.append(member)
                        if member == node:
                            break
                    parts.append(part)
    return parts


def _sinks(starts: Iterable[Node], edges: dict[Node, list[Node]]) -> list[list[Node]]:
    """The parts that have no edge out of them."""
    parts = connected(starts, edges)
    part_of = {node: number for number, part in enumerate(parts) for node in part}
    leaves = {part_of[n] for n in part_of for t in edges.get(n, ()) if part_of[t] != part_of[n]}
    return [part for number, part in enumerate(parts) if number not in leaves]
