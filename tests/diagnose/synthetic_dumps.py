"""Jobs that never ran: a small model of MPI carries out each rank's calls as far as they get, and dumps the ranks.

A collective is complete when all members have come to it by the same name, a send at once (or, with ``eager=False``,
when its receive has come), a receive when its message is there.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

BEGIN_S = 1_900_000_000.0


@dataclass(frozen=True)
class Call:
    """One call of a rank."""

    method: str = "allreduce"
    comm: str = "world"
    dtype: str | None = "float32"
    count: int | None = 4
    op: str | None = None
    root: int | None = None
    dest: int | None = None
    source: int | str | None = None
    tag: int | str | None = None
    line: int = 10
    blocking: bool = True
    extra: tuple[tuple[str, Any], ...] = ()

    @property
    def is_message(self) -> bool:
        return self.dest is not None or self.source is not None

    def at(self, line: int) -> Call:
        return replace(self, line=line)


@dataclass(frozen=True)
class End:
    """How a rank ends: ``computing``, ``raised``, ``exited``, ``killed``."""

    how: str
    text: str = "while True:"
    line: int = 61


def allreduce(line: int = 10, **changes: Any) -> Call:
    return Call(**{"op": "sum", "line": line, **changes})


def broadcast(line: int = 11, root: int = 0, **changes: Any) -> Call:
    return Call(**{"method": "broadcast", "root": root, "line": line, **changes})


def barrier(line: int = 12, **changes: Any) -> Call:
    return Call(**{"method": "barrier", "dtype": None, "count": None, "line": line, **changes})


def send(dest: int, tag: int = 0, line: int = 13, **changes: Any) -> Call:
    return Call(**{"method": "send", "dest": dest, "tag": tag, "line": line, **changes})


def recv(source: int | str, tag: int | str = 0, line: int = 14, **changes: Any) -> Call:
    return Call(**{"method": "recv", "source": source, "tag": tag, "line": line, **changes})


@dataclass
class Job:
    """Programs of all ranks, and what came of them.

    Attributes
    ----------
    programs : dict
        By rank: calls, at the end perhaps an `End`. Without one the rank has come to the end of its program.
    comms : dict
        Communicators besides world: the ranks of each.
    ring : int
        Operations that the recorder keeps.
    """

    programs: Mapping[int, Sequence[Call | End]]
    comms: Mapping[str, Sequence[int]] = field(default_factory=dict)
    eager: bool = True
    ring: int = 1024
    per_host: int = 2
    reason: str = "timeout"

    def __post_init__(self) -> None:
        self.size = len(self.programs)
        self.members = {"world": range(self.size), **self.comms}
        self.done: dict[int, int] = dict.fromkeys(range(self.size), 0)
        self._come: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
        self._numbers = {rank: self._number(rank) for rank in self.programs}
        while sum(self._step(rank) for rank in self.programs):
            pass

    def _number(self, rank: int) -> list[int]:
        counts: dict[object, int] = defaultdict(int)
        numbers = []
        for call in self.programs[rank]:
            key = None if isinstance(call, End) else (call.comm, call.is_message)
            counts[key] += 1
            numbers.append(counts[key])
        return numbers

    def _step(self, rank: int) -> bool:
        """Go on with this rank as far as it gets; whether it got anywhere."""
        began = self.done[rank]
        program = self.programs[rank]
        while self.done[rank] < len(program):
            call = program[self.done[rank]]
            if isinstance(call, End) or not self._completes(rank, call, self._numbers[rank][self.done[rank]]):
                break
            self.done[rank] += 1
        return self.done[rank] > began

    def _completes(self, rank: int, call: Call, seq: int) -> bool:
        if not call.is_message:
            come = self._come[call.comm, seq]
            come[rank] = call.method
            return len(come) == len(self.members[call.comm]) and len(set(come.values())) == 1
        sent = call.dest is None or self.eager or self._has_partner(rank, call, sending=True)
        return sent and (call.source is None or self._has_partner(rank, call, sending=False))

    def _has_partner(self, rank: int, call: Call, sending: bool) -> bool:
        """Whether the n-th message of its kind has its n-th partner."""
        ranks = self.members[call.comm]
        partner = ranks[call.dest if sending else call.source]  # type: ignore[index]
        mine = self._halves(rank, call, partner, sending, self.done[rank] + 1)
        theirs = self._halves(partner, call, rank, not sending, self.done[partner] + 1)
        return theirs >= mine

    def _halves(self, rank: int, like: Call, partner: int, sending: bool, until: int) -> int:
        number = 0
        for call in self.programs[rank][:until]:
            if isinstance(call, End) or call.comm != like.comm or call.tag != like.tag:
                continue
            half = call.dest if sending else call.source
            number += half is not None and self.members[call.comm][half] == partner  # type: ignore[index]
        return number

    def document(self, rank: int) -> dict[str, Any] | None:
        """The dump of a rank; None if it left none."""
        program = self.programs[rank]
        at = self.done[rank]
        ended = program[at] if at < len(program) and isinstance(program[at], End) else None
        now = None if at == len(program) else program[at]
        how = ended.how if isinstance(ended, End) else "exited" if now is None else "waiting"
        if how == "killed":
            return None
        operations = [
            self._operation(rank, call, self._numbers[rank][i], i < at)
            for i, call in enumerate(program[: at + 1])
            if isinstance(call, Call)
        ]
        issued: dict[str, int] = defaultdict(int)
        for item in operations:
            if item["kind"] == "collective":
                issued[item["comm"]] = item["seq"]
        frames = [{"file": "train.py", "line": 5, "function": "<module>", "text": "main()"}]
        exception = None
        if how == "waiting":
            assert isinstance(now, Call)
            frames += [
                {"file": "train.py", "line": now.line, "function": "step", "text": f"comm.{now.method}(x)"},
                {"file": "/opt/hpccoll/comm/reducing.py", "line": 61, "function": now.method, "text": ""},
            ]
        elif isinstance(ended, End):
            frames.append({"file": "train.py", "line": ended.line, "function": "work", "text": ended.text})
            if how == "raised":
                exception = (
                    "Traceback (most recent call last):\n"
                    '  File "train.py", line 5, in <module>\n    main()\n'
                    f'  File "train.py", line {ended.line}, in work\n    raise it\n{ended.text}\n'
                )
        reason = {"raised": "exception", "exited": "exit"}.get(how, self.reason)
        return {
            "schema": "hpccoll.dump/1", "rank": rank, "size": self.size, "local_rank": rank % self.per_host,
            "host": f"node{rank // self.per_host + 1}", "pid": 1000 + rank, "job": "4711", "reason": reason,
            "message": "over its limit", "exit_status": 76, "written_s": BEGIN_S + 60 + rank * 1e-3,
            "started_s": BEGIN_S, "argv": ["train.py"], "versions": {"hpccoll": "0.1.0"},
            "communicators": [
                {"id": name, "name": name, "rank": list(ranks).index(rank), "ranks": ",".join(map(str, ranks))
                 if not isinstance(ranks, range) else f"0-{self.size - 1}", "size": len(ranks),
                 "issued": issued[name], "completed": issued[name], "freed": False}
                for name, ranks in self.members.items() if rank in ranks
            ],
            "operations": operations[-self.ring :], "dropped": max(0, len(operations) - self.ring),
            "stacks": [{"thread": "MainThread", "frames": [] if how == "exited" else frames}],
            "exception": exception,
        }  # fmt: skip

    @staticmethod
    def _operation(rank: int, call: Call, seq: int, done: bool) -> dict[str, Any]:
        return {
            "comm": call.comm, "seq": seq, "kind": "p2p" if call.is_message else "collective", "method": call.method,
            "dtype": call.dtype, "count": call.count, "nbytes": None if call.count is None else 4 * call.count,
            "op": call.op, "root": call.root, "dest": call.dest, "source": call.source, "tag": call.tag,
            "site": f"train.py:{call.line}", "function": "step", "issued_s": BEGIN_S + 1, "started_s": BEGIN_S + 1,
            "ended_s": BEGIN_S + 2 if done else None, "state": "done" if done else "running", "blocking": call.blocking,
            "thread": "MainThread", **dict(call.extra),
        }  # fmt: skip

    def write(self, directory: Path) -> Path:
        """One file for each rank that left a dump."""
        directory.mkdir(parents=True, exist_ok=True)
        for rank in self.programs:
            document = self.document(rank)
            if document is not None:
                write_document(directory, document)
        return directory


def write_document(directory: Path, document: Mapping[str, Any]) -> Path:
    path = directory / f"rank{document['rank']:06d}.json"
    path.write_text(json.dumps(document))
    return path
