"""Programs started several at a time, because starting a job takes longer than running one."""

from __future__ import annotations

import functools
import re
import subprocess
from pathlib import Path

from conftest import run_mpi

MOVES = ("broadcast", "allgather", "gather", "scatter", "alltoall", "sendrecv")
REDUCTIONS = ("allreduce", "reduce", "reduce_scatter")
VERIFIED = "# every result of every call verified on every rank"
_SEVERAL = Path(__file__).with_name("several.py")


@functools.cache
def run_several(ranks: int, names: tuple[str, ...], args: str, fault: str = "") -> dict[str, tuple[int, str]]:
    """Status and output of each program by its name; the job runs once for all tests that ask for the same."""
    words = fault.split()
    for name in names:
        # One call a sample, so that every call is verified and can be counted, on fast machines too.
        words += ["--", name, "--batch", "1", *args.split()]
        if fault and name in ("reduce", "gather"):
            words += ["--root", "1"]  # the rank on which the faults happen
    done = run_mpi(ranks, _SEVERAL, *words, timeout_s=240, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    sections = re.findall(r"^## (\w+)\n(.*?)^## status (\d+)\n", done.stdout, re.MULTILINE | re.DOTALL)
    assert [name for name, *_ in sections] == list(names), done.stdout + done.stderr
    assert done.returncode == max(int(status) for *_, status in sections)
    return {name: (int(status), text) for name, text, status in sections}


def rows(stdout: str) -> list[dict[str, str]]:
    """The rows of a table by the titles of its columns."""
    titles: list[str] = []
    found = []
    for line in stdout.splitlines():
        words = line.lstrip("#").split()
        if line.startswith("#"):
            titles = words if words[-1:] == ["wrong"] else titles
        elif words:
            found.append(dict(zip(titles, words, strict=False)))
    return found


def table(done: subprocess.CompletedProcess[str]) -> list[dict[str, str]]:
    """Rows of a program that has to have verified everything."""
    assert done.stdout.splitlines()[-1] == VERIFIED, done.stdout
    return rows(done.stdout)
