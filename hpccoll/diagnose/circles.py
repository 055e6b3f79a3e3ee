"""Ranks that wait for one another in a circle: of collectives, of messages, or of both."""

from __future__ import annotations

from collections.abc import Sequence

from hpccoll.diagnose import words
from hpccoll.diagnose.dumps import Call, Operation
from hpccoll.diagnose.findings import MOST_STORIES, Finding
from hpccoll.diagnose.waiting import Graph, Node, connected
from hpccoll.diagnose.words import ranks_of

__all__ = ["cycle"]

_MOST_TRIED = 50


def cycle(graph: Graph, part: Sequence[Node], ranks: list[int]) -> Finding:
    """The finding about ranks that wait for one another: a strongly connected part of the graph."""
    inside = set(ranks)
    groups: dict[tuple[Call, int], list[int]] = {}
    for rank in ranks:
        for item in graph.waiting.get(rank, ()):
            groups.setdefault((item.call, item.seq), []).append(rank)
    collective = all(call.kind == "collective" for call, _ in groups)
    kind = "order-swapped" if collective else "cycle"
    lines: list[str] = []
    if collective:
        operations: dict[tuple[str, int], list[int]] = {}
        for (call, seq), members in groups.items():
            operations.setdefault((call.comm, seq), []).extend(members)
        for (call, seq), members in list(groups.items())[:MOST_STORIES]:
            node = ("op", call.comm, seq)
            missed = [rank for rank in graph.ranks_from(node) if rank in inside]
            verb = "wait" if len(members) > 1 else "waits"
            lines.append(f"{ranks_of(members)} {verb} in {words.called(call, seq)} for {ranks_of(missed)}")
        sizes = sorted((len(set(members)) for members in operations.values()), reverse=True)
        guilty = ranks
        if len(sizes) > 1 and sizes[0] > sizes[1]:
            most = max(operations.values(), key=lambda members: len(set(members)))
            guilty = sorted(inside - set(most))
    elif any(call.kind == "collective" for call, _ in groups):
        kind, guilty, lines = _left_alone(graph, part, ranks)
    else:
        guilty = circle = _circle(graph, part, ranks)
        for rank, target in list(zip(circle, [*circle[1:], circle[0]], strict=True))[:20]:
            item = _leading(graph, rank, target)
            lines.append(f"rank {rank} waits in {words.operation(item)} for rank {target}")
        if len(circle) > 20:
            lines.append(f"and so on, through {len(circle)} ranks, back to rank {circle[0]}")
        if len(ranks) > len(circle):
            lines.append(f"{ranks_of(ranks)} are in such circles")
    sites = {item.call.site for rank in guilty for item in graph.waiting.get(rank, ()) if item.call.site}
    return Finding(
        kind,
        list(guilty) if collective else sorted(guilty),
        lines,
        sorted(set(graph.waits_for(part)) | (inside - set(guilty))),
        sites=sorted(sites),
    )


def _left_alone(graph: Graph, part: Sequence[Node], ranks: list[int]) -> tuple[str, list[int], list[str]]:
    """Messages and collectives in one circle: a message is missing whose other side has gone on."""
    waits: list[tuple[int, Operation, int, Operation]] = []
    for rank in ranks:
        for item in graph.waiting.get(rank, ()):
            for partner in _partners(graph, item):
                if partner in ranks and partner in graph.edges[rank]:
                    on = [other for other in graph.waiting[partner] if other.call.kind == "collective"]
                    waits += [(rank, item, partner, on[0])] if on else []
    # Of several the one without which nobody would wait: the others are messages that are still to come.
    if len(waits) < _MOST_TRIED:
        waits = [wait for wait in waits if not _turns(graph, part, wait[0], wait[2])] or waits
    lines: list[str] = []
    for rank, item, partner, on_now in waits[:MOST_STORIES]:
        lines.append(f"rank {rank} waits in {words.operation(item)} for rank {partner}")
        lines.append(f"rank {partner} has no such message under way: it is in {words.operation(on_now)}")
    guilty = {rank for wait in waits for rank in (wait[0], wait[2])}
    return "unmatched-message", sorted(guilty or ranks), lines


def _turns(graph: Graph, part: Sequence[Node], rank: int, partner: int) -> bool:
    """Whether there is still a circle in this part of the graph when one rank does not wait for another."""
    inside = set(part)
    edges = {node: [target for target in graph.edges.get(node, ()) if target in inside] for node in part}
    edges[rank] = [target for target in edges[rank] if target != partner]
    return any(len(found) > 1 for found in connected(part, edges))


def _partners(graph: Graph, item: Operation) -> list[int]:
    call = item.call
    if call.kind != "p2p":
        return []
    found = (graph.comms.world_rank(call.comm, rank) for rank in (call.dest, call.source))
    return [rank for rank in found if rank is not None]


def _circle(graph: Graph, part: Sequence[Node], ranks: list[int]) -> list[int]:
    inside = set(part)
    way = [ranks[0]]
    while True:
        following = min(rank for rank in graph.ranks_from(way[-1]) if rank in inside)
        if following in way:
            return way[way.index(following) :]
        way.append(following)


def _leading(graph: Graph, rank: int, target: int) -> Operation:
    """The operation of a rank that waits for another one."""
    operations = graph.waiting[rank]
    for item in operations:
        if target in _partners(graph, item):
            return item
    return operations[0]
