"""When the recorder's parts begin to work: when the job is known, and when a limit comes into force."""

from __future__ import annotations

from hpccoll.errors import ArgumentError
from hpccoll.recorder import exceptions, job, limits, ring, settings, watchdog

__all__ = ["begin"]


def begin() -> None:
    """Have the parts started when it is time; called once, when the communicators are imported.

    Raises
    ------
    ArgumentError
        ``HPCCOLL_TIMEOUT_S`` is set, and the recorder is off.
    """
    if not ring.RECORDING:
        if settings.timeout_s() is not None:
            raise ArgumentError(f"{settings.TIMEOUT} needs the flight recorder: unset {settings.RECORDER}=0")
        return
    job.when_entered.append(_enter)
    limits.when_first.append(watchdog.start)


def _enter(entered: job.Job) -> None:
    exceptions.install(entered)
    if entered.size > 1 or limits.in_force():
        watchdog.start()
