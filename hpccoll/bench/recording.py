"""What the flight recorder costs: the same calls with it and without it, in one process, in turns."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from types import MethodType
from typing import Any

from hpccoll.bench.case import Buffers, Case
from hpccoll.bench.engines import Bound, Engine
from hpccoll.bench.engines.comm_engine import CommEngine
from hpccoll.bench.in_place import DistributedInPlace
from hpccoll.bench.options import UsageError
from hpccoll.bench.overhead import compare_engines
from hpccoll.comm import Comm
from hpccoll.recorder import ring

__all__ = ["run_recording"]


class _WithoutRecorder:
    """A communicator whose methods are those beneath the recorder."""

    def __init__(self, comm: Comm):
        self._comm = comm

    def __getattr__(self, name: str) -> Any:
        return MethodType(getattr(Comm, name).__wrapped__, self._comm)


class _Comm(CommEngine):
    def __init__(self, kind: str, recorded: bool):
        super().__init__(kind)
        self.name = f"{kind}{'' if recorded else ', off'}"
        self._recorded = recorded

    def bind(self, collective: str, comm: Comm, buffers: Buffers) -> Bound:
        return super().bind(collective, comm if self._recorded else _WithoutRecorder(comm), buffers)  # type: ignore[arg-type]


def _distributed(recorded: bool) -> Engine:
    engine = DistributedInPlace(f"dist{'' if recorded else ', off'}")
    engine.group._records = recorded
    return engine


def run_recording(cases: Sequence[Case], sizes: Sequence[int], rounds: int, json_target: str | None) -> int:
    """Time recorder on against off, print the table on rank 0, and return the exit status.

    Raises
    ------
    UsageError
        The recorder is off.
    """
    if not ring.RECORDING:
        raise UsageError("--recorder: the flight recorder is off (HPCCOLL_RECORDER=0)")
    sets: list[list[Engine]] = [[_Comm("numpy", recorded) for recorded in (False, True)]]
    if importlib.util.find_spec("torch"):
        sets.append([_Comm("torch", recorded) for recorded in (False, True)])
        sets.append([_distributed(recorded) for recorded in (False, True)])
    return compare_engines(cases, sizes, sets, rounds, json_target, "the same without the recorder")
