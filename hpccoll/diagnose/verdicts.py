"""What happened, and who: the findings of a job, the most likely cause first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hpccoll.diagnose import words
from hpccoll.diagnose.aligning import Communicators, Mismatch, mismatches, shift
from hpccoll.diagnose.circles import cycle
from hpccoll.diagnose.dumps import Call, Dump
from hpccoll.diagnose.findings import KINDS, MOST_STORIES, ORDER, Finding
from hpccoll.diagnose.lost import lost
from hpccoll.diagnose.reading import Job
from hpccoll.diagnose.waiting import Graph, Node, Unmatched, user_frame
from hpccoll.diagnose.words import ranks_of

__all__ = ["Diagnosis", "diagnose"]


@dataclass
class Diagnosis:
    """The findings of a job; its status is that of the first."""

    job: Job
    comms: Communicators
    graph: Graph
    findings: list[Finding]

    @property
    def kind(self) -> str:
        return self.findings[0].kind if self.findings else "nothing"

    @property
    def status(self) -> int:
        return KINDS[self.kind][0]


def diagnose(job: Job) -> Diagnosis:
    """Find out what is wrong with a job."""
    comms = Communicators(job)
    graph = Graph(comms)
    findings = list(_Detective(job, comms, graph).findings())
    findings.sort(key=lambda item: (item.minor, ORDER.index(item.kind), -len(item.waiting), item.ranks[:1]))
    return Diagnosis(job, comms, graph, findings)


class _Detective:
    def __init__(self, job: Job, comms: Communicators, graph: Graph) -> None:
        self.job, self.comms, self.graph = job, comms, graph

    def findings(self) -> Iterator[Finding]:
        explained: set[Node] = set()
        refused = False
        for found in mismatches(self.comms):
            refused = refused or self._refused(found)
            explained |= {
                ("op", found.comm, seq) for _, comm, seq in self._operations() if comm == found.comm
            }
            yield self._mismatch(found)
        for message in self.graph.unmatched:
            pair = (min(message.sender, message.receiver), max(message.sender, message.receiver))
            explained.add(("pair", *pair))
            yield self._unmatched(message)
        yield from self._raised(refused)
        roots: dict[str, list[int]] = {}
        for part in self.graph.sinks:
            ranks = sorted(node for node in part if isinstance(node, int))
            if len(part) > 1 and ranks:
                if not explained & set(part):
                    yield cycle(self.graph, part, ranks)
            elif ranks:
                roots.setdefault(self._state(ranks[0]), []).append(ranks[0])
            elif part[0] not in explained and isinstance(part[0], tuple):
                yield from self._inside(part[0])
        yield from self._roots(roots)

    def _operations(self) -> list[tuple[object, ...]]:
        return [node for node in self.graph.edges if isinstance(node, tuple) and node[0] == "op"]

    def _state(self, rank: int) -> str:
        dump = self.job.dumps.get(rank)
        if dump is None:
            return "absent"
        return {"exception": "raised", "check": "raised", "exit": "exited"}.get(dump.reason, "outside")

    # ---- collectives called differently

    def _mismatch(self, found: Mismatch) -> Finding:
        node: Node = ("op", found.comm, found.seq)
        kind = "operation-mismatch" if found.what == "operation" else "argument-mismatch"
        verb = "are in" if node in self.graph.edges else "called"
        lines = [
            f"{ranks_of(ranks)} {verb if len(ranks) > 1 or verb == 'called' else 'is in'} "
            f"{words.called(call, found.seq)}"
            for call, ranks in found.sides[:MOST_STORIES]
        ]
        if len(found.sides) > MOST_STORIES:
            lines.append(f"and {len(found.sides) - MOST_STORIES} more sides")
        if found.what != "operation":
            lines.append(f"the {found.what} differs")
        if found.aside:
            kind = "skipped-collective"
            lines.append(f"from there on its calls are those of the others, shifted: it {found.aside}")
        hung = any(
            item.call.comm == found.comm and item.seq >= found.seq
            for operations in self.graph.waiting.values()
            for item in operations
        )
        passed = not self._refused(found) and node not in self.graph.edges
        if passed and kind == "argument-mismatch":
            lines.append("MPI let it pass: the data of this operation may be wrong")
        guilty_calls = {call for call, ranks in found.sides if set(ranks) & set(found.guilty)}
        return Finding(
            kind,
            found.guilty,
            lines,
            waiting=sorted(rank for rank in self.graph.waiting if rank not in found.guilty) if hung else [],
            comm=found.comm,
            seq=found.seq,
            sites=sorted(call.site for call in guilty_calls if call.site),
            minor=passed and kind == "argument-mismatch",
        )

    def _refused(self, found: Mismatch) -> bool:
        """Whether the operation failed on some rank: MPI noticed, or check mode did."""
        return any(
            item.call.comm == found.comm and item.seq == found.seq
            for _, ranks in found.sides
            for rank in ranks
            for item in self.job.dumps[rank].failed
        )

    # ---- messages

    def _unmatched(self, found: Unmatched) -> Finding:
        pair = ("pair", min(found.sender, found.receiver), max(found.sender, found.receiver))
        state = "has made" if found.sending.state == "done" else "is in"
        lines = [
            f"rank {found.sender} {state} {words.operation(found.sending)}",
            f"rank {found.receiver} is in {words.operation(found.receiving)}"
            if found.receiving.state != "done"
            else f"rank {found.receiver} has made {words.operation(found.receiving)}",
            "their tags differ"
            if found.what == "tag"
            else f"{found.sending.call.nbytes} bytes are sent, room is for {found.receiving.call.nbytes}",
        ]
        ranks = sorted((found.sender, found.receiver))
        sites = [item.call.site for item in (found.sending, found.receiving) if item.call.site]
        waiting = [rank for rank in self.graph.waits_for([pair]) if rank not in ranks]
        return Finding("unmatched-message", ranks, lines, waiting, found.sending.call.comm, None, sites)

    # ---- everybody is there

    def _inside(self, node: tuple[object, ...]) -> Iterator[Finding]:
        if node[0] == "pair":
            ranks = [rank for rank in node[1:] if isinstance(rank, int)]
            lines = [
                f"rank {rank} is in {words.operation(item)}"
                for rank in ranks
                for item in self.graph.waiting.get(rank, ())
            ]
            lines.append("the two fit together: the network, or one of the ranks is frozen in it")
            yield Finding("all-inside", ranks, lines, self._others(node, ranks), sites=self._sites(ranks))
            return
        if node[0] != "op":
            return
        comm, seq = str(node[1]), node[2]
        assert isinstance(seq, int)
        inside = [
            rank
            for rank, operations in self.graph.waiting.items()
            if any(item.call.comm == comm and item.seq == seq for item in operations)
        ]
        inside.sort()
        members = self.comms.ranks.get(comm, ())
        calls = {
            item.call
            for rank in inside
            for item in self.graph.waiting[rank]
            if (item.call.comm, item.seq) == (comm, seq)
        }
        call = min(calls, key=repr)
        lost_calls = [
            rank for rank in members if rank in self.job.dumps and self.comms.call(rank, comm, seq) is None
        ]
        left = [rank for rank in members if rank not in inside and rank not in lost_calls]
        lines = [f"{ranks_of(inside)} {'are' if len(inside) > 1 else 'is'} in {words.called(call, seq)}"]
        if left:
            lines.append(f"{ranks_of(left)} {'have' if len(left) > 1 else 'has'} been there and gone on")
        if lost_calls:
            lines.append(
                f"{ranks_of(lost_calls)} went past that number, but what they called is no more in the ring of "
                "operations; set HPCCOLL_RECORDER to a larger number"
            )
            yield Finding("unknown", lost_calls, lines, self._others(node, lost_calls), comm, seq)
            return
        lines.append("all have come, and called it alike: the network, or a rank is frozen inside")
        sites = sorted({item.site for item in calls if item.site})
        yield Finding("all-inside", inside, lines, self._others(node, inside), comm, seq, sites)

    def _others(self, node: Node, ranks: Iterable[int]) -> list[int]:
        known = set(ranks)
        return [rank for rank in self.graph.waits_for([node]) if rank not in known]

    def _sites(self, ranks: Iterable[int]) -> list[str]:
        found = {item.call.site for rank in ranks for item in self.graph.waiting.get(rank, ())}
        return sorted(site for site in found if site)

    # ---- a rank that raised

    def _raised(self, refused: bool) -> Iterator[Finding]:
        """Exceptions, without those of check mode that a mismatch has told already."""
        groups: dict[tuple[str, str, str], list[Dump]] = {}
        for rank, dump in sorted(self.job.dumps.items()):
            if (
                dump.reason in ("exception", "check")
                and rank not in self.graph.waiting
                and not (refused and dump.reason == "check")
            ):
                groups.setdefault((dump.reason, *words.raised(dump)), []).append(dump)
        ordered = sorted(groups.items(), key=lambda entry: min(dump.written_s for dump in entry[1]))
        for (reason, line, where), dumps in ordered[:MOST_STORIES]:
            ranks = [dump.rank for dump in dumps]
            if reason == "check":
                text = [dumps[0].message or line, f"raised on {ranks_of(ranks)} at {where}"]
            else:
                text = [f"{ranks_of(ranks)} raised {line}", f"at {where}"]
                if "TransferError" in line:
                    text.append("if MPI complains of a size, ranks differ in it: HPCCOLL_CHECK=1 says which")
            text += self._waiters(ranks)
            site = where.partition(" in ")[0]
            kind = "check" if reason == "check" else "rank-raised"
            yield Finding(kind, ranks, text, self.graph.waits_for(ranks), sites=[site])
        if len(ordered) > MOST_STORIES:
            rest = sorted(dump.rank for _, dumps in ordered[MOST_STORIES:] for dump in dumps)
            yield Finding("rank-raised", rest, [f"{ranks_of(rest)} raised other exceptions, later"])

    # ---- ranks that wait for nobody

    def _roots(self, roots: dict[str, list[int]]) -> Iterator[Finding]:
        dumps = self.job.dumps
        absent = self.job.missing
        if absent:
            yield self._absent(absent, roots.get("absent", []))
        if "exited" in roots:
            yield from self._exited(roots["exited"])
        if "outside" in roots:
            yield from self._outside(roots["outside"])
        if self.graph.waiting:
            return
        ended = [rank for rank, dump in dumps.items() if dump.reason == "exit"]
        others = sorted(
            rank for rank, dump in dumps.items() if dump.reason not in ("exit", "exception", "check")
        )
        if not others or any(dump.reason in ("exception", "check") for dump in dumps.values()):
            return
        if ended:
            yield from self._outside(
                others, f"{ranks_of(ended)} came to the end of the program and wait there"
            )
        elif any(dumps[rank].reason in ("timeout", "peer") for rank in others):
            late = [rank for rank in others if dumps[rank].reason == "timeout"] or others
            yield Finding(
                "unknown",
                late,
                [
                    *{dumps[rank].message for rank in late[:MOST_STORIES]},
                    *self._stories(late),
                    "no operation of theirs is under way",
                ],
            )
        elif any(dumps[rank].reason == "terminated" for rank in others):
            yield Finding(
                "terminated",
                others,
                [f"{ranks_of(others)} got SIGTERM; no rank waited for another", *self._stories(others)],
            )

    def _absent(self, absent: list[int], waited_for: list[int]) -> Finding:
        raised = [rank for rank, dump in self.job.dumps.items() if dump.reason in ("exception", "check")]
        if raised and not waited_for:
            line = f"{ranks_of(absent)} left no dump: ended with the job, before they could write one"
            return Finding("no-dump", absent, [line], minor=True)
        lines = [f"{ranks_of(absent)} left no dump", *lost(self.job, absent), *self._waiters(waited_for)]
        waiting = self.graph.waits_for(waited_for)
        kind = (
            "no-dump"
            if waiting or any(d.reason not in ("signal", "exit") for d in self.job.dumps.values())
            else "unknown"
        )
        return Finding(kind, absent, lines, waiting)

    def _exited(self, ranks: list[int]) -> Iterator[Finding]:
        for stories, group in self._grouped(ranks):
            lines = [f"{ranks_of(group)} came to {'its' if len(group) == 1 else 'their'} end"]
            lines += [*stories, *self._waiters(group), *self._hints(group)]
            yield Finding(
                "rank-exited", group, lines, self.graph.waits_for(group), sites=self._last_sites(group)
            )

    def _outside(self, ranks: list[int], why: str = "") -> Iterator[Finding]:
        for stories, group in self._grouped(ranks):
            lines = [why] if why else self._waiters(group)
            verb = "has" if len(group) == 1 else "have"
            lines.append(
                f"{ranks_of(group)} {verb} not come there: {words.last_operation(self.job.dumps[group[0]])}"
            )
            late = self.job.dumps[group[0]].late
            if late is not None:
                after_s = (late.since_s or 0.0) - (self.job.given_up_s or 0.0)
                lines += [
                    f"it came to {words.operation(late)} {words.seconds(after_s)} after the first rank had given up",
                    "its process was stopped when others gave up (SIGSTOP or a debugger)"
                    if any(dump.neighbours.get(group[0]) in ("T", "t") for dump in self.job.dumps.values())
                    else "it was stopped (SIGSTOP, a debugger), got no CPU, or is too slow for the limit",
                ]
            else:
                lines += [*stories, *self._hints(group)]
            yield Finding(
                "missing-rank",
                group,
                lines,
                self.graph.waits_for(group),
                *self._missed(group),
                sites=self._last_sites(group),
            )

    def _grouped(self, ranks: Iterable[int]) -> Iterator[tuple[list[str], list[int]]]:
        """Ranks that waited for nobody by where they are; what does not fit on a screen is one group at the end."""
        groups: dict[tuple[str, str], list[int]] = {}
        for rank in sorted(ranks):
            dump = self.job.dumps[rank]
            groups.setdefault((words.doing(dump), words.last_operation(dump)), []).append(rank)
        ordered = sorted(groups.items(), key=lambda entry: (len(entry[1]), entry[1]))
        for (doing, last), group in ordered[:MOST_STORIES]:
            dump = self.job.dumps[group[0]]
            if dump.reason == "exit":
                yield [last], group
            else:
                yield (
                    [
                        f"its main thread is at {doing}"
                        if len(group) == 1
                        else f"their main threads are at {doing}"
                    ],
                    group,
                )
        rest = sorted(rank for _, group in ordered[MOST_STORIES:] for rank in group)
        if rest:
            yield ["each at another place"], rest

    def _stories(self, ranks: Iterable[int]) -> list[str]:
        return [f"{ranks_of(group)}: {text}" for texts, group in self._grouped(ranks) for text in texts]

    def _waiters(self, ranks: Sequence[int]) -> list[str]:
        """Who waits for these ranks directly, and in what."""
        near = self._near(ranks)
        groups: dict[tuple[Call, int], list[int]] = {}
        for rank, operations in self.graph.waiting.items():
            for item in operations:
                collective = item.call.kind == "collective"
                if (("op", item.call.comm, item.seq) if collective else rank) in near:
                    groups.setdefault((item.call, item.seq if collective else 0), []).append(rank)
        ordered = sorted(groups.items(), key=lambda entry: (-len(entry[1]), entry[1]))
        lines = [
            f"{ranks_of(members)} {'wait' if len(members) > 1 else 'waits'} in {words.called(call, seq or None)} "
            f"for {ranks_of(ranks)}"
            for (call, seq), members in ordered[:MOST_STORIES]
        ]
        if len(ordered) > MOST_STORIES:
            lines.append(f"and others in {len(ordered) - MOST_STORIES} more operations")
        return lines

    def _near(self, ranks: Iterable[int]) -> set[Node]:
        """Nodes that lead to these ranks without another rank between."""
        seen: set[Node] = set()
        todo: list[Node] = list(ranks)
        while todo:
            for before in self.graph.before(todo.pop()):
                if before not in seen:
                    seen.add(before)
                    if not isinstance(before, int):
                        todo.append(before)
        return seen

    def _missed(self, ranks: Sequence[int]) -> tuple[str | None, int | None]:
        nodes = [node for node in self._near(ranks) if isinstance(node, tuple) and node[0] == "op"]
        first = min(nodes, key=repr, default=None)
        return (str(first[1]), int(str(first[2]))) if first else (None, None)

    def _hints(self, ranks: Sequence[int]) -> list[str]:
        """Whether the rank left a collective out earlier, so that it came to the end of its calls too soon."""
        rank = ranks[0]
        hints = []
        for comm, (first, calls) in self.job.dumps[rank].collectives.items():
            usual = next((r for r in self.graph.waiting if comm in self.job.dumps[r].collectives), None)
            if usual is None or rank == usual:
                continue
            aside = shift(self.job.dumps[usual], self.job.dumps[rank], comm, first + len(calls) - 1)
            if aside:
                hints.append(f"on {comm} its calls are those of rank {usual}, shifted: it {aside}")
        return hints

    def _last_sites(self, ranks: Sequence[int]) -> list[str]:
        dump = self.job.dumps[ranks[0]]
        if dump.late is not None:
            return [dump.late.call.site] if dump.late.call.site else []
        frame = user_frame(dump.stacks.get("MainThread", ()))
        sites = [f"{frame.file}:{frame.line}"] if frame else []
        return sites + ([dump.last.call.site] if dump.last and dump.last.call.site else [])
