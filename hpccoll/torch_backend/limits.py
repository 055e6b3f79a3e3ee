"""How long an operation may take.

A blocking MPI call cannot be called off. So a group whose user gave a ``timeout`` lets nobody into a collective before
all are there: a non-blocking barrier is polled first, and if it is not over in time the operation raises, with nothing
sent and no thread stuck. That costs a few microseconds for each operation. Groups with torch's own default (30
minutes) do without: a watcher thread looks now and then whether an operation has been running for longer than that,
and then ends the job with a sentence, as nothing else can be done for it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from hpccoll.comm import Comm
from hpccoll.recorder import dump
from hpccoll.recorder.job import known
from hpccoll.recorder.peers import Peers

_SPINS = 200
_LONGEST_PAUSE_S = 1e-3


class LimitedComm(Comm):
    """A communicator whose collectives raise when the other ranks do not come in time.

    Parameters
    ----------
    mpi
        The mpi4py communicator.
    limit_s
        The limit, the same on every rank.
    number
        Gives the sequence number of the operation that is being issued.
    on_timeout
        Called with an operation's name and number; returns the exception to raise. No operation may follow.
    log
        The recorder's record of the communicator.
    """

    def __init__(
        self,
        mpi: Any,
        limit_s: float,
        number: Callable[[], int],
        on_timeout: Callable[[str, int], BaseException],
        log: Any = None,
    ):
        super().__init__(mpi, log)
        self.limit_s = limit_s
        self._number = number
        self._on_timeout = on_timeout
        self._failed: BaseException | None = None
        self._inside = threading.local()

    @property
    def _free_to_go(self) -> bool:
        """Never: the short cuts of :class:`Comm` do not come through `_run`."""
        return False

    def _run(self, method: str, operation: Callable[[], Any], blocking: bool = True) -> Any:
        """As in :class:`Comm`; the operation starts when every rank is there."""
        if getattr(self._inside, "now", False):
            return operation()  # part of an operation that has passed
        number = self._number()

        def after_all_have_come() -> Any:
            self._meet(method, number)
            self._inside.now = True
            try:
                return operation()
            finally:
                self._inside.now = False

        return super()._run(method, after_all_have_come, blocking)

    def _meet(self, method: str, number: int) -> None:
        if self._failed is not None:
            raise self._failed
        request = self.mpi.Ibarrier()
        for _ in range(_SPINS):
            if request.Test():
                return
        deadline = time.monotonic() + self.limit_s
        pause_s = 1e-5
        while not request.Test():
            if time.monotonic() > deadline:
                self._failed = self._on_timeout(method, number)
                raise self._failed
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)


class _Watched:
    """What the watcher remembers of one group: since when it has seen the same operation running."""

    def __init__(self) -> None:
        self.sequence = -1
        self.since = 0.0


_groups: weakref.WeakKeyDictionary[Any, _Watched] = weakref.WeakKeyDictionary()
_started = False


def watch(group: Any) -> None:
    """Have the watcher end the job when an operation of `group` runs for longer than ``group.limit_s``.

    The group gives ``running()``: the sequence number of what it is doing, or None; and ``describe()``.
    """
    global _started
    _groups[group] = _Watched()
    if not _started:
        _started = True
        threading.Thread(target=_watch, name="hpccoll watcher", daemon=True).start()


def unwatch(group: Any) -> None:
    """Forget the group."""
    _groups.pop(group, None)


def _watch() -> None:
    while True:
        limits = [group.limit_s for group in list(_groups)]
        time.sleep(min([5.0, *(limit / 4 for limit in limits)]))
        now = time.monotonic()
        for group, seen in list(_groups.items()):
            running = group.running()
            if running is None or running != seen.sequence:
                seen.sequence, seen.since = (-1 if running is None else running), now
            elif now - seen.since > group.limit_s:
                _end_job(f"{group.describe()} has been running for more than {group.limit_s:g} s")


def _end_job(sentence: str) -> None:
    from mpi4py import MPI

    dump_for_all(sentence, 1)
    print(
        f"hpccoll: {sentence} (the timeout of the process group); ending the job. With a `timeout` of your own, "
        "init_process_group(timeout=...), operations raise instead.",
        file=sys.stderr,
        flush=True,
    )
    time.sleep(0.2)  # the launcher may drop what is still in its pipe
    MPI.COMM_WORLD.Abort(1)
    os._exit(1)


def dump_for_all(sentence: str, exit_status: int | None) -> None:
    """Dump, and have the other ranks dump too as far as their watchdogs run."""
    job = known()
    if job is None:
        return
    directory = dump.write("timeout", f"rank {job.rank} of {job.size}: {sentence}", exit_status)
    if directory is not None:
        dump.say(f"hpccoll: rank {job.rank} of {job.size}: {sentence}; {dump.whereabouts(directory)}")
        peers = Peers(job)
        peers.ask("timeout", f"rank {job.rank} of {job.size}: {sentence}")
        if exit_status is not None:
            peers.await_dumps()


def timeout_error(operation: str, limit_s: float) -> BaseException:
    """The exception of an operation over its limit."""
    return dist.DistBackendError(
        f"{operation}: Timed out after {limit_s:g} s, since not every rank of the group has called it. Nothing was "
        "sent, and the process group cannot be used any more"
    )
