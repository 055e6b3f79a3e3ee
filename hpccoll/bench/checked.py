"""What check mode costs: the same calls with it and without it, in one process, in turns."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence

from hpccoll import settings
from hpccoll.bench.case import Buffers, Case
from hpccoll.bench.engines import Bound, Engine
from hpccoll.bench.engines.comm_engine import CommEngine
from hpccoll.bench.in_place import DistributedInPlace, start
from hpccoll.bench.options import UsageError
from hpccoll.bench.overhead import compare_engines
from hpccoll.comm import Comm
from hpccoll.recorder import ring

__all__ = ["run_checked_against_not"]

MODES: dict[str, bool | str] = {"off": False, "check": True, "check nan": "nan"}


class _Comm(CommEngine):
    def __init__(self, kind: str, mode: str):
        super().__init__(kind)
        self.name = f"{kind}, {mode}"
        self._mode = MODES[mode]
        self._made: Comm | None = None

    def refuses(self, collective: str, dtype: str, buffers: Buffers) -> str | None:
        return "a message, which is not checked" if collective == "sendrecv" else None

    def bind(self, collective: str, comm: Comm, buffers: Buffers) -> Bound:
        if self._made is None:
            self._made = Comm(comm.mpi, check=self._mode)
        return super().bind(collective, self._made, buffers)


def _distributed(mode: str) -> Engine:
    """A process group takes its mode from the environment in which it is made."""
    start()
    before = os.environ.get(settings.CHECK.name)
    os.environ[settings.CHECK.name] = {False: "0", True: "1", "nan": "nan"}[MODES[mode]]
    try:
        return DistributedInPlace(f"dist, {mode}")
    finally:
        if before is None:
            del os.environ[settings.CHECK.name]
        else:
            os.environ[settings.CHECK.name] = before


def run_checked_against_not(
    cases: Sequence[Case], sizes: Sequence[int], rounds: int, json_target: str | None
) -> int:
    """Time check mode against none, print the table on rank 0, and return the exit status.

    Raises
    ------
    UsageError
        The recorder is off, with which check mode goes.
    """
    if not ring.RECORDING:
        raise UsageError("--check: the flight recorder is off (HPCCOLL_RECORDER=0)")
    sets: list[list[Engine]] = [[_Comm("numpy", mode) for mode in MODES]]
    if importlib.util.find_spec("torch"):
        sets.append([_distributed(mode) for mode in MODES])
    return compare_engines(cases, sizes, sets, rounds, json_target, "the same without check mode")
