"""Runs the command that starts a job, hears from every rank, and sees to it that the job ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from hpccoll.launch.commands import Command
from hpccoll.launch.monitor import Monitor, Rank
from hpccoll.launch.rank import TERM_S

__all__ = ["LOST", "TIMED_OUT", "run", "stderr_line"]

TIMED_OUT = 124  # as timeout(1) does
LOST = 69  # EX_UNAVAILABLE: ranks that never said how they ended

# How long the launcher may take to notice by itself that a rank is lost.
_NOTICE_S = 5.0
# From asking the ranks to end to asking the launcher, and from there to SIGKILL.
_ASK_S = TERM_S + 1.0
_KILL_S = 3.0
_TICK_S = 0.2
# Lines of each kind about ranks that failed.
_MOST_TOLD = 4


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Signals that come meanwhile, in a list, instead of what they do to this process."""
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(
    command: Command,
    environ: Mapping[str, str],
    monitor: Monitor | None,
    timeout_s: float | None,
    start_timeout_s: float,
    say: Callable[[str], None],
) -> int:
    """Run `command` and return the exit status of the job.

    Parameters
    ----------
    command
        What starts the job.
    environ
        Its environment, before what the command sets.
    monitor
        Entered, and known to the ranks through `environ`; None trusts the launcher's exit status.
    timeout_s, start_timeout_s
        Limits for the whole job, and until every rank is there.
    say
        Prints one line for the user.

    Returns
    -------
    int
        The status of the rank that failed first, else the launcher's; `LOST` if ranks are missing though it exits 0;
        `TIMED_OUT`; 128 + N where signal N ended the job.
    """
    env = command.environment(environ)
    with _signals() as came:
        # A group of its own: Ctrl-C in the terminal comes to us alone, and we can end all of it.
        process = subprocess.Popen(command.argv, env=env, start_new_session=True)
        try:
            forced = _attend(process, monitor, came, timeout_s, start_timeout_s, say)
        finally:
            _end_group(process)
    if monitor is not None:
        _hear_the_rest(monitor)
    return _verdict(process.returncode, monitor, forced, say)


@dataclass
class _Ending:
    """The job has to end: first the ranks are asked, then the launcher, then all are killed."""

    status: int
    began: float
    asked_launcher: bool = False


def _attend(
    process: subprocess.Popen[bytes],
    monitor: Monitor | None,
    came: list[int],
    timeout_s: float | None,
    start_timeout_s: float,
    say: Callable[[str], None],
) -> int | None:
    """Until the launcher has ended; the status, where we had to force it."""
    start = time.monotonic()
    ending: _Ending | None = None
    lost_since: float | None = None
    interrupts = 0
    while process.poll() is None:
        if monitor is not None:
            monitor.listen(_TICK_S)
        else:
            try:
                process.wait(_TICK_S)
            except subprocess.TimeoutExpired:
                pass
        now = time.monotonic()
        while came:
            number = came.pop(0)
            interrupts += number == signal.SIGINT
            if interrupts > 1:
                say("interrupted twice: killing the job")
                return 128 + signal.SIGINT
            _signal(process, monitor, number)
            if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) and ending is None:
                say(f"signal {signal.Signals(number).name} handed on to the ranks")
                ending = _Ending(128 + number, now)
        if ending is not None:
            if not ending.asked_launcher and now - ending.began > _ASK_S:
                ending.asked_launcher = True
                process.terminate()
            if now - ending.began > _ASK_S + _KILL_S:
                return ending.status
            continue
        if timeout_s is not None and now - start > timeout_s:
            say(f"the time limit of {timeout_s:g} s is reached: ending the job")
            ending = _Ending(TIMED_OUT, now)
        elif monitor is not None and len(monitor.ranks) < monitor.size and now - start > start_timeout_s:
            missing = [rank for rank in range(monitor.size) if rank not in monitor.ranks]
            say(
                f"after {start_timeout_s:g} s, {len(missing)} of {monitor.size} ranks have not started "
                f"({_numbers(missing)}): ending the job (--start-timeout)"
            )
            ending = _Ending(LOST, now)
        elif monitor is not None and monitor.lost:
            lost_since = now if lost_since is None else lost_since
            if now - lost_since > _NOTICE_S:
                ending = _Ending(LOST, now)
        if ending is not None:
            _signal(process, monitor, signal.SIGTERM)
    if ending is not None and ending.status in (TIMED_OUT, LOST):
        return ending.status
    return None


def _signal(process: subprocess.Popen[bytes], monitor: Monitor | None, number: int) -> None:
    """To the ranks by our own connections; launchers differ in what they hand on, and how."""
    if monitor is not None:
        monitor.signal(number)
        if len(monitor.ranks) == monitor.size:
            return
        if number in (signal.SIGUSR1, signal.SIGUSR2):
            return  # while it starts, it would end the launcher
    process.send_signal(number)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """The launcher and what it started on this host; its ranks have groups of their own, and hear it from us."""
    try:
        os.killpg(process.pid, signal.SIGKILL if process.poll() is None else signal.SIGTERM)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()


def _hear_the_rest(monitor: Monitor) -> None:
    """What the last ranks said may come after the launcher's end."""
    until = time.monotonic() + 1.0
    while not monitor.complete and not monitor.lost and time.monotonic() < until:
        monitor.listen(0.05)


def _verdict(
    launcher_status: int, monitor: Monitor | None, forced: int | None, say: Callable[[str], None]
) -> int:
    status = launcher_status if launcher_status >= 0 else 128 - launcher_status
    if monitor is None:
        return forced if forced is not None else status
    bad = [rank for rank in monitor.order if rank.status or rank.lost]
    silent = [rank for rank in monitor.ranks.values() if rank.status is None]
    _tell_of(bad, silent, say)
    if forced is not None:
        return forced
    # What the launcher ends after the first failure ends with a signal.
    statuses = [rank.status for rank in bad if rank.status]
    told = next((each for each in statuses if each < 128), statuses[0] if statuses else None)
    if told and (told < 128 or not status):
        return told
    if status:
        if monitor.ranks:
            return status
        say(
            f"no rank has started (the launcher ended with status {status}); `python -m hpccoll.doctor --hosts ...` "
            "says which hosts can be reached"
        )
        return LOST
    if not monitor.complete:
        missing = [
            rank for rank in range(monitor.size) if rank not in monitor.ranks or monitor.ranks[rank] in silent
        ]
        say(
            f"the launcher exits 0, but of {monitor.size} ranks {len(missing)} did not end well: {_numbers(missing)}"
        )
        return LOST
    return 0


def _tell_of(bad: list[Rank], silent: list[Rank], say: Callable[[str], None]) -> None:
    """Name the ranks that failed, first ones first, and those that said nothing.

    Several, since the first to tell need not be the first that failed: a rank that another one broke with may be
    quicker. Those that the launcher has terminated are of interest only where nobody else failed.
    """
    ended = [rank for rank in bad if rank.status and rank.status != 128 + signal.SIGTERM]
    for rank in (ended or [rank for rank in bad if rank.status])[:_MOST_TOLD]:
        say(f"rank {rank.number} on {rank.host} ended with {_in_words(rank.status or 0)}")
    by_time = [*(rank for rank in bad if rank.lost), *silent]
    for host in list(dict.fromkeys(rank.host for rank in by_time))[:_MOST_TOLD]:
        numbers = sorted(rank.number for rank in silent if rank.host == host)
        plural = "s" * (len(numbers) > 1)
        say(f"lost rank{plural} {_numbers(numbers)} on {host}: killed, or the host or its link is down")


def _in_words(status: int) -> str:
    if status > 128:
        try:
            return f"status {status} ({signal.Signals(status - 128).name})"
        except ValueError:
            pass
    return f"status {status}"


def _numbers(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown} and {len(numbers) - 8} more" if len(numbers) > 8 else shown


def stderr_line(text: str) -> None:
    """Print `text` as a line of this program."""
    print(f"hpccoll launch: {text}", file=sys.stderr, flush=True)
