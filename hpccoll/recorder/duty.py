"""When the recorder's parts begin to work: when the job is known, and when a limit comes into force."""

from __future__ import annotations

import warnings

from hpccoll import settings
from hpccoll.environment import is_first_rank
from hpccoll.recorder import exceptions, job, limits, ring, watchdog

__all__ = ["begin"]


def begin() -> None:
    """Have the parts started when it is time; called once, when the communicators are imported."""
    for sentence in settings.doubtful() if is_first_rank() else ():
        warnings.warn(sentence, RuntimeWarning, stacklevel=2)
    if not ring.RECORDING:
        return
    job.when_entered.append(_enter)
    limits.when_first.append(watchdog.start)


def _enter(entered: job.Job) -> None:
    exceptions.install(entered)
    if entered.size > 1 or limits.in_force():
        watchdog.start()
