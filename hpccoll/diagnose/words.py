"""Operations, places and ranks in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hpccoll.diagnose.dumps import Call, Dump, Frame, Operation
from hpccoll.diagnose.waiting import last_line, user_frame
from hpccoll.runs.nodeset import fold_ranks

__all__ = ["called", "doing", "last_operation", "operation", "raised", "ranks_of", "seconds"]

_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)$')
_LOOP = re.compile(r"(while|for)\b")


def ranks_of(ranks: Iterable[int]) -> str:
    """``rank 3`` or ``ranks [0-2,5]``."""
    text = fold_ranks(ranks)
    return f"ranks {text}" if "[" in text else f"rank {text}"


def called(call: Call, seq: int | None = None) -> str:
    """``allreduce #17 of world at train.py:88 (float32, 1024 elements, sum)``."""
    number = f" #{seq}" if seq is not None and call.kind == "collective" else ""
    partners = "" if call.dest is None else f" to rank {call.dest}"
    if call.source is not None:
        partners += " from any rank" if call.source == "any" else f" from rank {call.source}"
    if call.kind == "p2p" and call.tag is not None:
        partners += " with any tag" if call.tag == "any" else f" with tag {call.tag}"
    site = f" at {call.site}" if call.site else ""
    elements = None if call.elements is None else f"{call.elements} element{'s' * (call.elements != 1)}"
    root = None if call.root is None else f"root {call.root}"
    shown = ", ".join(text for text in (call.dtype, elements, call.op, root) if text)
    name = call.called_as or call.method
    return f"{name}{number}{partners} of {call.comm}{site}" + (f" ({shown})" if shown else "")


def operation(item: Operation) -> str:
    """As `called`, of an operation."""
    return called(item.call, item.seq)


def last_operation(dump: Dump) -> str:
    """What a rank issued last, and how it stands."""
    if dump.last is None:
        return "it has made no operation" if not dump.dropped else "its operations are not in the dump"
    state = "done" if dump.last.state == "done" else "failed" if dump.last.state == "failed" else "not done"
    return f"its last operation was {operation(dump.last)}, {state}"


def doing(dump: Dump) -> str:
    """Where the main thread is, from its stack."""
    frame = user_frame(dump.stacks.get("MainThread", ()))
    return (
        place(frame)
        if frame
        else "nowhere in Python (its stack is empty)"
        if dump.stacks
        else "unknown (no stack)"
    )


def place(frame: Frame) -> str:
    """``train.py:61 in step, sleeping: time.sleep(1000)``."""
    manner = ""
    if re.search(r"\bsleep\(", frame.text):
        manner = ", sleeping"
    elif _LOOP.match(frame.text):
        manner = ", in a loop"
    text = f": {frame.text}" if frame.text else ""
    return f"{frame.file}:{frame.line} in {frame.function}{manner}{text}"


def raised(dump: Dump) -> tuple[str, str]:
    """The last line of what a rank raised, and where in the user's code."""
    frames = [
        Frame(match[1], int(match[2]), match[3], "")
        for match in map(_FRAME.match, (dump.exception or "").splitlines())
        if match
    ]
    frame = user_frame(frames)
    where = f"{frame.file}:{frame.line} in {frame.function}" if frame else "an unknown place"
    line = last_line(dump.exception) or dump.message or "an exception"
    return line.partition(". Nothing has been sent")[
        0
    ], where  # of check mode; what follows takes several lines


def seconds(value: float) -> str:
    """A duration, short."""
    return f"{value:.1f} s" if value < 100 else f"{value:.0f} s"


def listed(items: Sequence[str]) -> str:
    """``a, b and c``."""
    return ", ".join(items[:-1]) + (" and " if len(items) > 1 else "") + items[-1] if items else ""
