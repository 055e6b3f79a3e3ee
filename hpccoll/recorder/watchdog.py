"""The watchdog: a thread that looks whether an operation is over its limit, and listens to signals and other ranks.

It makes no MPI call and waits for nothing without a limit. What it needs is the GIL, which hpccoll, mpi4py and torch
let go of while they are inside MPI.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import select
import sys
import threading
import time
import traceback
from typing import Any

from hpccoll.recorder import dump, exceptions, limits, ring, seam, signals
from hpccoll.recorder.job import Job, known
from hpccoll.recorder.peers import Peers

__all__ = ["attend", "over_limit", "start"]

_SHORTEST_LOOK_S, _LONGEST_LOOK_S = 0.02, 0.5
# Longer between two looks than was asked for: the process was stopped, or could not run. That is nobody's limit.
_STALL_S = 2.0
EXIT_STATUS = 76
"""With this the watchdog ends a process whose operation is over its limit, and the launcher with it the job."""

_END_LIMIT_S = 15.0
_LONGEST_TIMER_S = 1e8  # the timer is set anew at each look; much more than this is an error of its own

_started_in = 0
_wake: tuple[int, int] = (-1, -1)
_stalls: list[tuple[int, int]] = []
_standing_by = False
_attends = False


def start() -> None:
    """Start the thread if it does not run; else have it look at once."""
    global _started_in, _wake
    job = known()
    if job is None or not ring.RECORDING:
        return
    if _started_in == os.getpid():
        with contextlib.suppress(BlockingIOError):  # it has not even read what woke it before
            os.write(_wake[1], b"\0")
        return
    _started_in = os.getpid()
    _wake = os.pipe()
    for end in _wake:
        os.set_blocking(end, False)
    signals.listen(_wake[1])
    threading.Thread(target=_watch, name="hpccoll watchdog", daemon=True).start()


def attend() -> None:
    """Dump when another rank asks for it, also while no limit is in force here."""
    global _attends
    if not _attends:
        _attends = True
        start()


def _watch() -> None:
    dump.hidden_threads.add(threading.get_ident())
    peers: Peers | None = None
    while (job := known()) is not None:
        try:
            peers = _look(job, peers)
        except Exception:  # it must neither end nor end the job by a fault of its own
            dump.say("hpccoll: the watchdog goes on after a fault of its own:\n" + traceback.format_exc())
            time.sleep(1.0)


def _look(job: Job, peers: Peers | None) -> Peers | None:
    limit_s = min(limits.in_force(), default=None)
    look_s = _LONGEST_LOOK_S if _attends else None
    if limit_s is not None:
        look_s = min(max(limit_s / 10, _SHORTEST_LOOK_S), _LONGEST_LOOK_S)
    _stand_by(limit_s)
    before = ring.now_ns()
    received = _wait(look_s)
    _note_stall(before, look_s)
    signals.act(received)
    if limit_s is not None:
        attend()  # from now on: others may be over a limit that this rank has behind it
    if not _attends:
        return None
    if peers is None or peers.job is not job:
        peers = Peers(job)
    entry = _first_over_limit()
    if entry is not None:
        _end(job, peers, *entry)
    asked_by = peers.asked()
    if asked_by:
        _answer(asked_by)
    return peers


def _wait(timeout_s: float | None) -> bytes:
    poll = select.poll()  # select() itself ends at descriptor 1023
    poll.register(_wake[0], select.POLLIN)
    ready = poll.poll(None if timeout_s is None else timeout_s * 1e3)
    return os.read(_wake[0], 4096) if ready else b""


def _stand_by(limit_s: float | None) -> None:
    """Where C code keeps the GIL this thread cannot run either. Then the stacks alone go to standard error."""
    global _standing_by
    if limit_s is not None:
        faulthandler.dump_traceback_later(min(limit_s + _STALL_S, _LONGEST_TIMER_S), file=2)
    elif _standing_by:  # only then: the timer may be the user's
        faulthandler.cancel_dump_traceback_later()
    _standing_by = limit_s is not None


def _note_stall(before_ns: int, look_s: float | None) -> None:
    now_ns = ring.now_ns()
    if look_s is not None and now_ns - before_ns > (look_s + _STALL_S) * 1e9:
        _stalls.append((before_ns, now_ns))
        del _stalls[:-100]


def _elapsed_s(since_ns: int) -> float:
    """How long ago that was, without the time in which this process could not run."""
    stalled = sum(max(0, until - max(since_ns, begun)) for begun, until in _stalls)
    return (ring.now_ns() - since_ns - stalled) / 1e9


def _first_over_limit() -> tuple[list[Any], float, float] | None:
    """The operation that is over its limit for longest, the time that it has taken, and the limit."""
    worst = None
    for entry in ring.open_entries():
        since_ns, limit_s = _measure(entry)
        if not since_ns or limit_s is None:
            continue
        took_s = _elapsed_s(since_ns)
        if took_s > limit_s and (worst is None or took_s - limit_s > worst[1] - worst[2]):
            worst = entry, took_s, limit_s
    return worst


def _measure(entry: list[Any]) -> tuple[int, float | None]:
    if entry[ring.BLOCKING]:
        since_ns = entry[ring.STARTED] or max(entry[ring.ISSUED], ring.last_change_ns(entry[ring.LOG]))
        return since_ns, limits.of_thread(entry[ring.THREAD])
    if entry[ring.KIND] is ring.MESSAGE:
        # One that nobody waits for may stay open for as long as it likes: a receive that is posted ahead.
        return entry[ring.WAITING] or (0, None)
    return entry[ring.STARTED], entry[ring.LIMIT_S]


def over_limit(entry: list[Any], took_s: float, limit_s: float) -> str:
    """The sentence about an operation that takes too long."""
    job = known()
    place = "" if job is None else f"rank {job.rank} of {job.size}: "
    site, function = seam.site(entry)
    method = entry[ring.LOG].names.get(entry[ring.METHOD], entry[ring.METHOD])
    number = f"number {entry[ring.SEQ]} of" if entry[ring.KIND] is ring.COLLECTIVE else "on"
    if not entry[ring.STARTED]:
        number = "waiting for its turn on"
    if entry[ring.METHOD] == ring.ENDING:
        return f"{place}has come to its end and waited {took_s:.1f} s for the others (limit {limit_s:g} s)"
    return (
        f"{place}{method} ({number} {entry[ring.LOG].id}) at {site} in {function} is not complete after {took_s:.1f} s "
        f"(limit {limit_s:g} s)"
    )


def _end(job: Job, peers: Peers, entry: list[Any], took_s: float, limit_s: float) -> None:
    last_resort = threading.Timer(_END_LIMIT_S, os._exit, [EXIT_STATUS])  # a file system may hang as well
    last_resort.daemon = True
    last_resort.start()
    _stand_by(None)
    message = over_limit(entry, took_s, limit_s)
    reason = "exit" if entry[ring.METHOD] == ring.ENDING else "timeout"
    directory = None if exceptions.write_held() else dump.write(reason, message, EXIT_STATUS)
    found = directory or reason == "exit"
    dump.say(
        f"hpccoll: {message}; " + (dump.whereabouts(job.directory) if found else "no dump could be written")
    )
    peers.ask(reason, message)
    peers.await_dumps()
    flush()
    os._exit(EXIT_STATUS)


def _answer(asked_by: str) -> None:
    if exceptions.write_held():
        return
    ending = [entry for entry in ring.open_entries() if entry[ring.METHOD] == ring.ENDING]
    if ending:
        dump.write("exit", f"has come to its end; {asked_by}")
    else:
        dump.write("peer", asked_by)


def flush(limit_s: float = 0.5) -> None:
    """Flush Python's streams; another thread may hold them for ever."""

    def both() -> None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (AttributeError, OSError, ValueError):
                pass

    helper = threading.Thread(target=both, daemon=True)
    helper.start()
    helper.join(limit_s)


@atexit.register
def _stop_standing_by() -> None:
    if _standing_by:
        faulthandler.cancel_dump_traceback_later()
