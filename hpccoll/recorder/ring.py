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

from hpccoll import settings
from hpccoll.recorder import sites

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
BLOCKING, LIMIT_S, WAITING, WRITTEN = 14, 15, 16, 17

COLLECTIVE, MESSAGE = "collective", "p2p"

ENDING = "end of the program"
"""The method of the entry that stands for waiting for the others at the end; dumps leave it out."""

now_ns = time.monotonic_ns
RECORDING = settings.RECORDER.get_or_default() > 0
SIZE = max(1, settings.RECORDER.get_or_default())  # check mode names call sites also with the recorder off

slots: list[list[Any]] = [[None] * ENDED + [1]] * SIZE  # what stands there at first has ended long ago
numbers = itertools.count()
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
    started : int
        Number of the last collective that has been started.
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
    """Put an entry into the ring. (The decorators of :mod:`hpccoll.recorder.seam` do the same in line.)"""
    entry[WRITTEN] = next(numbers)
    slot = entry[WRITTEN] % SIZE
    if not slots[slot][ENDED]:
        keep(slots[slot])
    slots[slot] = entry


def keep(entry: list[Any]) -> None:
    """Keep an operation that is still running when the ring comes round to it."""
    _overtaken[id(entry)] = entry
    for key, other in list(_overtaken.items()):
        if other[ENDED]:
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
        0, 0, False, blocking, limit_s, None, 0,
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
    kept = list(_overtaken.values())
    entries = {id(entry): entry for entry in [*kept, *slots] if entry[METHOD]}
    written = max((entry[WRITTEN] for entry in slots if len(entry) > WRITTEN), default=-1) + 1
    return sorted(entries.values(), key=lambda entry: entry[WRITTEN]), max(0, written - SIZE - len(kept))


def open_entries() -> list[list[Any]]:
    """The operations that have not ended."""
    return [entry for entry in [*list(_overtaken.values()), *slots] if not entry[ENDED]]


def last_change_ns(log: Log) -> int:
    """When a collective of a communicator has last begun or ended."""
    of_log = [entry for entry in [*list(_overtaken.values()), *slots] if entry[LOG] is log]
    return max(
        (max(entry[STARTED], entry[ENDED]) for entry in of_log if entry[KIND] is COLLECTIVE), default=0
    )


def logs() -> list[Log]:
    """The communicators that are still referred to."""
    return list(_logs)
