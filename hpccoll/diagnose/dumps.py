"""One rank's dump, checked and in the form in which ten thousand of them fit into memory."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["SCHEMA", "Call", "Dump", "DumpError", "Frame", "Member", "Operation", "parse"]

SCHEMA = "hpccoll.dump/1"
MOST_RANKS = 10_000_000
_GAP = 10_000
_ENDING = "end of the program"


class DumpError(Exception):
    """A file is no dump that can be read; the message says why."""


class Call(NamedTuple):
    """What an operation is, apart from when it happened. Equal calls of all ranks are one object."""

    comm: str
    kind: str
    method: str
    called_as: str | None
    dtype: str | None
    elements: int | None
    nbytes: int | None
    op: str | None
    root: int | None
    dest: int | None
    source: int | str | None
    tag: int | str | None
    site: str | None
    blocking: bool
    uneven: bool


class Operation(NamedTuple):
    """A call that was made; `state` is issued, running, done or failed, `since_s` is when it began."""

    call: Call
    seq: int
    state: str
    thread: str | None
    since_s: float | None


class Frame(NamedTuple):
    """One line of a Python stack."""

    file: str
    line: int
    function: str
    text: str


@dataclass(slots=True)
class Member:
    """What a rank knows of one of its communicators; `ranks` are world ranks, in the communicator's order."""

    name: str
    ranks: Sequence[int]
    issued: int
    freed: bool


@dataclass(slots=True)
class Dump:
    """One rank's dump.

    Attributes
    ----------
    collectives : dict
        By communicator: the number of the first collective that the ring still has, and the calls from there on.
    strays : dict
        By communicator and number: calls from before that, which were not done when the ring came round.
    messages : dict
        By communicator: the sends and receives that the ring still has.
    open : list of Operation
        What is not done, in the order of issue; `failed` what has ended with an error.
    last : Operation or None
        What was issued last.
    newest_s : float
        When that was.
    late : Operation or None
        The first operation after the time that `parse` was told.
    """

    path: Path
    rank: int
    size: int
    host: str
    pid: int | None
    job: str | None
    run: str | None
    reason: str
    message: str
    exit_status: int | None
    written_s: float
    started_s: float
    dropped: int
    exception: str | None
    hosts: Mapping[str, Sequence[int]]
    neighbours: Mapping[int, str]
    communicators: dict[str, Member] = field(default_factory=dict)
    collectives: dict[str, tuple[int, list[Call | None]]] = field(default_factory=dict)
    strays: dict[tuple[str, int], Call] = field(default_factory=dict)
    messages: dict[str, list[Operation]] = field(default_factory=dict)
    open: list[Operation] = field(default_factory=list)
    failed: list[Operation] = field(default_factory=list)
    last: Operation | None = None
    newest_s: float = 0.0
    late: Operation | None = None
    stacks: dict[str, list[Frame]] = field(default_factory=dict)


_calls: dict[tuple[Any, ...], Call] = {}
_rank_lists: dict[str, Sequence[int]] = {}


def parse(path: Path, until_s: float = math.inf) -> Dump:
    """Read one file; what the rank did after `until_s` (Unix time) counts as not done, and makes its reason ``late``.

    Raises
    ------
    DumpError
        It is torn, foreign, of a newer schema, or cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DumpError(f"cannot be read: {error.strerror or error}") from error
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        state = "is empty" if not data.strip() else "is torn, or no JSON"
        raise DumpError(f"{state} ({len(data)} bytes)") from error
    if not isinstance(document, dict) or not isinstance(document.get("schema"), str):
        raise DumpError("is no dump of hpccoll: it has no schema")
    schema = document["schema"]
    if schema != SCHEMA:
        newer = re.fullmatch(r"hpccoll\.dump/(\d{1,9})", schema)
        if newer and int(newer[1]) > 1:
            raise DumpError(
                f"was written by a newer hpccoll: its schema is {schema}, this program reads {SCHEMA}"
            )
        raise DumpError(f"is no dump of hpccoll: its schema is {schema!r}")
    try:
        return _dump(path, document, until_s)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise DumpError(f"does not keep to the schema {SCHEMA}: {type(error).__name__}: {error}") from error


def _dump(path: Path, document: dict[str, Any], until_s: float) -> Dump:
    rank, size = _whole(document["rank"], "rank"), _whole(document["size"], "size")
    if not rank < size <= MOST_RANKS:
        raise ValueError(f"rank {rank} of {size}")
    dump = Dump(
        path=path,
        rank=rank,
        size=size,
        host=str(document.get("host") or "unknown"),
        pid=document.get("pid"),
        job=None if document.get("job") is None else str(document["job"]),
        run=None if document.get("run") is None else str(document["run"]),
        reason=str(document.get("reason") or "unknown"),
        message=str(document.get("message") or ""),
        exit_status=document.get("exit_status"),
        written_s=float(document.get("written_s") or 0.0),
        started_s=float(document.get("started_s") or 0.0),
        dropped=_whole(document.get("dropped") or 0, "dropped"),
        exception=document.get("exception"),
        hosts={str(host): expand_ranks(text, size) for host, text in (document.get("hosts") or {}).items()},
        neighbours={
            _whole(item["rank"], "neighbours.rank"): str(item["state"])
            for item in document.get("neighbours") or []
        },
    )
    for item in document.get("communicators") or []:
        ranks = expand_ranks(item["ranks"], size)
        dump.communicators[str(item["id"])] = Member(
            str(item.get("name") or item["id"]),
            ranks,
            _whole(item["issued"], "issued"),
            bool(item.get("freed")),
        )
    for item in document.get("stacks") or []:
        dump.stacks[str(item["thread"])] = [
            Frame(
                str(f["file"]),
                int(f["line"] or 0),
                str(f.get("function") or ""),
                str(f.get("text") or "").strip(),
            )
            for f in item["frames"]
        ]
    for item in document.get("operations") or []:
        issued_s = item.get("issued_s") or 0.0
        dump.newest_s = max(dump.newest_s, issued_s)
        if issued_s > until_s:
            _postpone(dump, item)
        elif item["method"] != _ENDING:
            _add(dump, item)
        elif item["state"] in ("issued", "running") and dump.reason not in ("exception", "check"):
            dump.reason = "exit"  # whatever made it dump, it is at its end
    return dump


def _postpone(dump: Dump, item: dict[str, Any]) -> None:
    dump.reason = "late"
    if item["method"] == _ENDING:
        return
    if dump.late is None:
        dump.late = Operation(
            _interned(item), item["seq"], str(item["state"]), item.get("thread"), item["issued_s"]
        )
    member = dump.communicators.get(item["comm"])
    if member is not None and item["kind"] == "collective":
        member.issued = min(member.issued, item["seq"] - 1)


def _add(dump: Dump, item: dict[str, Any]) -> None:
    """Sort one operation in."""
    get = item.get
    call = _interned(item)
    seq, state = _whole(item.get("seq") or 0, "seq"), str(item["state"])
    operation = Operation(call, seq, state, get("thread"), get("started_s") or get("issued_s"))
    if call.kind == "p2p":
        dump.messages.setdefault(call.comm, []).append(operation)
    elif seq:  # without a number it has been issued, and has not begun
        _number(dump, call, seq)
    if state == "failed":
        dump.failed.append(operation)
    elif state != "done":
        dump.open.append(operation)
    dump.last = operation


def _interned(item: dict[str, Any]) -> Call:
    get = item.get
    key = (
        item["comm"], item["kind"], item["method"], get("called_as"), get("dtype"), get("count"), get("nbytes"),
        get("op"), get("root"), get("dest"), get("source"), get("tag"), get("site"), get("blocking", True) is not False,
        get("uneven") is True,
    )  # fmt: skip
    call = _calls.get(key)
    if call is None:
        call = _calls[key] = _call(key)
    return call


def _number(dump: Dump, call: Call, seq: int) -> None:
    known = dump.collectives.get(call.comm)
    if known is None:
        dump.collectives[call.comm] = (seq, [call])
        return
    first, calls = known
    if seq == first + len(calls):
        calls.append(call)
    elif 0 <= seq - first < len(calls):
        calls[seq - first] = call
    elif 0 < seq - first - len(calls) < _GAP:
        calls.extend([None] * (seq - first - len(calls)))
        calls.append(call)
    elif 0 < first - seq < _GAP:  # several threads: issued in an order, and begun in another
        calls[:0] = [call, *[None] * (first - seq - 1)]
        dump.collectives[call.comm] = (seq, calls)
    elif seq < first:  # the ring has gone round, and this one is not done yet
        dump.strays[call.comm, seq] = call
    else:  # the first one was such a stray
        dump.strays.update(((call.comm, first + i), item) for i, item in enumerate(calls) if item is not None)
        dump.collectives[call.comm] = (seq, [call])


def _call(key: tuple[Any, ...]) -> Call:
    call = Call(*key)
    if call.kind not in ("collective", "p2p"):
        raise ValueError(f"kind of an operation: {call.kind!r}")
    for name in ("comm", "method"):
        if not isinstance(getattr(call, name), str):
            raise TypeError(f"{name} of an operation: {getattr(call, name)!r}")
    for name in ("elements", "nbytes", "root", "dest"):
        value = getattr(call, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise TypeError(f"{name} of an operation: {value!r}")
    return call


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} is {value!r}")
    return value


def expand_ranks(text: Any, size: int) -> Sequence[int]:
    """``"0-3,7"`` as numbers, in the order that they stand in; equal texts give one object."""
    known = _rank_lists.get(text) if isinstance(text, str) else None
    if known is None:
        if not isinstance(text, str):
            raise TypeError(f"ranks: {text!r}")
        parts: list[range] = []
        for part in text.strip("[]").split(","):
            match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip())
            if match is None:
                raise ValueError(f"ranks: {text!r}")
            parts.append(range(int(match[1]), int(match[2] or match[1]) + 1))
        if sum(map(len, parts)) > MOST_RANKS:
            raise ValueError(f"ranks: {text!r}")
        known = parts[0] if len(parts) == 1 else tuple(rank for part in parts for rank in part)
        _rank_lists[text] = known
    if known and max(known[-1], known[0]) >= size:
        raise ValueError(f"ranks {text!r} of {size}")
    return known
