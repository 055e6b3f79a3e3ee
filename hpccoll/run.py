"""``mpirun -n 4 python -m hpccoll.run script.py ARG ...`` runs a script; if one of its ranks fails, the job ends.

An exception on any rank and in any thread, ``sys.exit``, ``raise SystemExit`` and ``os._exit`` end all ranks, with
the traceback and the status of the one that failed, and the end of MPI has a limit: what `hpccoll.run_checked` does,
for a script as it is. ``-m MODULE`` and ``-c CODE`` work as Python's own. Details: docs/hangs.md.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Sequence

from hpccoll.aborting import run_program
from hpccoll.environment import is_first_rank

_USAGE = "usage: hpccoll run [-h] (SCRIPT | -m MODULE | -c CODE) [ARG ...]"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] in (["-h"], ["--help"]):
        if is_first_rank():
            print(f"{_USAGE}\n\n{(__doc__ or '').strip()}")
        return 0
    run, problem = _chosen(given)
    if run is None:
        if is_first_rank():
            print(f"{_USAGE}\nhpccoll run: error: {problem}", file=sys.stderr)
        return 2
    run()
    return 0


def _chosen(given: list[str]) -> tuple[Callable[[], object] | None, str]:
    """What to run, with `sys.argv` and `sys.path` as Python would set them; or what is wrong."""
    if not given:
        return None, "what to run is missing"
    first, rest = given[0], given[1:]
    if first in ("-m", "-c"):
        if not rest:
            return None, f"{first} needs an argument"
        sys.argv[:] = [first, *rest[1:]]
        sys.path[0] = os.getcwd() if first == "-m" else ""
        if first == "-m":
            return (lambda: runpy.run_module(rest[0], run_name="__main__", alter_sys=True)), ""
        return (lambda: exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})), ""
    if first.startswith("-"):
        return None, f"{first} is no option"
    if not os.path.exists(first):
        return None, f"there is no {first!r} here ({os.getcwd()})"
    sys.argv[:] = given
    sys.path[0] = os.path.dirname(os.path.abspath(first))
    return (lambda: runpy.run_path(first, run_name="__main__")), ""


if __name__ == "__main__":
    run_program(main)
