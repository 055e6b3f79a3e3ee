"""From the command line of a program to its exit status."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from hpccoll.bench.case import Case
from hpccoll.bench.options import UsageError, parse
from hpccoll.environment import is_first_rank
from hpccoll.records import git_state

__all__ = ["measure_case", "usage_error"]

_OK, _USAGE = 0, 2


def measure_case(case: Case, argv: Sequence[str] | None = None) -> int:
    """Run one program: parse, then start MPI, sweep, verify, report.

    Returns
    -------
    int
        0 if every result was right, 1 if one was wrong, 2 for a bad option. The same on every rank, except
        that a bad option that is found before MPI starts is 2 on rank 0 and 0 elsewhere: launchers end a job
        at the first non-zero status, and the message comes from rank 0.
    """
    try:
        options = parse(case, argv)
    except UsageError as exc:
        return usage_error(case.name, str(exc)) if is_first_rank() else _OK
    # git is a process of its own, and some networks of MPI suffer none after MPI has started.
    git = git_state(Path(__file__).parent) if options.log_dir and is_first_rank() else None
    # Only now, so that --help and bad options need no MPI.
    from hpccoll.bench.session import Session
    from hpccoll.comm import world

    comm = world()
    try:
        return Session(case, options, comm, git).run()
    except UsageError as exc:
        # Raised alike on every rank, and the communicator is intact: all end in the ordinary way.
        return usage_error(case.name, str(exc)) if comm.rank == 0 else _USAGE


def usage_error(name: str, message: str) -> int:
    """Print the one line that a bad option deserves; returns the status 2."""
    print(f"hpccoll {name}: error: {message} (see --help)", file=sys.stderr, flush=True)
    return _USAGE
