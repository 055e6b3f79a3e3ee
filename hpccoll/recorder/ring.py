"""The flight recorder: the last operations of this process, on every communicator.

One list per operation goes into a ring; what costs time (file and line, names of dtypes, number of elements) is worked
out when somebody reads it. Nothing here keeps a buffer alive, waits, or calls MPI.

The numbers of collectives are given when they start, not when they are issued: callbacks of a Work start their
collectives in an order that all ranks share, whenever the program may have issued others meanwhile.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Sequence
from types import FrameType
from typing import Any

from hpccoll.recorder import settings, sites

__all__ = [
    "Log",
    "RECORDING",
    "fail",
    "finish",
    "issue",
    "open_entries",
    "reject",
    "snapshot",
    "start",
]

# The fields of an entry. ISSUED, STARTED and ENDED are times of `now_ns`, 0 while it has not come to that.
LOG, KIND, SEQ, METHOD, DTYPE, SHAPE, DETAIL, CODE, INSTRUCTION, THREAD, ISSUED, STARTED, ENDED, FAILED = (
    range(14)
)
BLOCKING, LIMIT_S, WAITING = 14, 15, 16

COLLECTIVE, MESSAGE = "collective", "p2p"

now_ns = time.monotonic_ns
RECORDING = settings.operations() > 0
SIZE = max(1, settings.operations())  # check mode names call sites also with the recorder off

_slots: list[Any] = [None] * SIZE
_next = itertools.count()
_written = 0  # read by the dump only: how far `_next` has come
_overtaken: dict[int, list[Any]] = {}
"""Operations that were still running when the ring came round to them."""

current = threading.local()
"""``current.entry``: the operation that this thread carries out; ``current.handed``: the one that it has issued."""


class Log:
    """What the recorder knows of one communicator. Its members agree on `id` and on the numbers.

    Attributes
    ----------
    id, name : str
    rank, size : int
    ranks : sequence of int
        The members' ranks in the world, in the order of the communicator.
    started, completed : int
        Numbers of the last collective that has been started, and ended.
    messages : int
        Sends and receives so far.
    limit_s : float or None
        The limit of its operations where it has one of its own.
    names : dict
        Hpccoll's word for a method -> the user's, where they differ.
    """

    def __init__(self, id: str, name: str, rank: int, ranks: Sequence[int]):
        self.id = id
        self.name = name
        self.rank = rank
        self.size = len(ranks)
        self.ranks = ranks
        self.started = 0
        self.completed = 0
        self.messages = 0
        self.freed = False
        self.names: dict[str, str] = {}
        _logs.add(self)


_logs: weakref.WeakSet[Log] = weakref.WeakSet()


def shape_of(x: Any) -> tuple[Any, Any]:
    """dtype and shape of a buffer as they are; a Python number's class and ()."""
    try:
        return x.dtype, x.shape
    except AttributeError:
        return (None, None) if x is None else (x.__class__, ())


def put(entry: list[Any]) -> None:
    """Put an entry into the ring."""
    global _written
    number = next(_next)
    slot = number % SIZE
    old = _slots[slot]
    if old is not None and not old[ENDED]:
        _overtaken[id(old)] = old
        _forget_ended()
    _slots[slot] = entry
    _written = number + 1


def _forget_ended() -> None:
    for key, entry in list(_overtaken.items()):
        if entry[ENDED]:
            _overtaken.pop(key, None)


def issue(
    log: Log,
    kind: str,
    method: str,
    x: Any,
    detail: Any,
    frame: FrameType,
    blocking: bool,
    limit_s: float | None,
) -> list[Any]:
    """Record an operation that has been asked for and not yet begun."""
    dtype, shape = shape_of(x)
    frame = sites.outside(frame)
    entry = [
        log, kind, 0, method, dtype, shape, detail, frame.f_code, frame.f_lasti, threading.get_ident(), now_ns(),
        0, 0, False, blocking, limit_s, 0,
    ]  # fmt: skip
    outer = getattr(current, "entry", None)
    if outer is not None and sites.is_inside(entry[CODE]):
        entry[CODE], entry[INSTRUCTION] = (
            outer[CODE],
            outer[INSTRUCTION],
        )  # on a thread of ours: where that was called
    put(entry)
    return entry


def start(entry: list[Any]) -> None:
    """Note that an operation begins, and give it its number."""
    log = entry[LOG]
    if entry[KIND] is COLLECTIVE:
        log.started = entry[SEQ] = log.started + 1
    else:
        log.messages = entry[SEQ] = log.messages + 1
    entry[STARTED] = now_ns()


def finish(entry: list[Any]) -> None:
    """Note that an operation is complete."""
    entry[ENDED] = now_ns()
    if entry[KIND] is COLLECTIVE:
        entry[LOG].completed = entry[SEQ]


def fail(entry: list[Any]) -> None:
    """Note that an operation has raised."""
    entry[FAILED] = True
    entry[ENDED] = now_ns()


def reject(entry: list[Any]) -> None:
    """Take an operation back: its arguments were wrong, nothing has been sent, and it must not count."""
    log = entry[LOG]
    if entry[STARTED]:
        if entry[KIND] is COLLECTIVE and log.started == entry[SEQ]:
            log.started -= 1
        elif entry[KIND] is MESSAGE and log.messages == entry[SEQ]:
            log.messages -= 1
    entry[METHOD] = None
    entry[ENDED] = now_ns()


def snapshot() -> tuple[list[list[Any]], int]:
    """The entries, oldest first, and the number of older ones that the ring has lost."""
    written = _written
    first = max(0, written - SIZE)
    entries = [*_overtaken.values(), *(_slots[number % SIZE] for number in range(first, written))]
    seen: dict[int, list[Any]] = {
        id(entry): entry for entry in entries if entry is not None and entry[METHOD]
    }
    return sorted(seen.values(), key=lambda entry: entry[ISSUED]), max(0, first - len(_overtaken))


def open_entries() -> list[list[Any]]:
    """The operations that have not ended."""
    entries = [*_overtaken.values(), *_slots]
    return [entry for entry in entries if entry is not None and not entry[ENDED]]


def logs() -> list[Log]:
    """The communicators that are still referred to."""
    return list(_logs)
