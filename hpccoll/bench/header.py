"""The conditions of a run, gathered from every rank."""

from __future__ import annotations

import platform
import sys
import time
from typing import Any

import mpi4py
import numpy as np
from mpi4py import MPI

from hpccoll._version import __version__
from hpccoll.bench.clock import resolution_ns
from hpccoll.bench.host import binding, processor
from hpccoll.bench.results import Header

__all__ = ["gather_header"]


def gather_header(collective: str, engine: str, mode: str, control: Any) -> Header | None:
    """Header of a run on rank 0, None elsewhere; collective over the mpi4py communicator `control`."""
    bound = binding()
    places = control.gather((MPI.Get_processor_name(), processor(), bound.cores, bound.allowed))
    if places is None:
        return None
    hosts: dict[str, list[tuple[int, tuple[int, ...]]]] = {}
    kinds: dict[str, str] = {}
    for host, model, cores, allowed in places:
        hosts.setdefault(host, []).append((cores, allowed))
        kinds[host] = model
    usable = [len({core for _, allowed in ranks for core in allowed}) for ranks in hosts.values()]
    per_host = [len(ranks) for ranks in hosts.values()]
    return Header(
        collective=collective,
        engine=engine,
        mode=mode,
        hpccoll=__version__,
        python=platform.python_version(),
        numpy=np.__version__,
        torch=sys.modules["torch"].__version__ if "torch" in sys.modules else None,
        mpi4py=mpi4py.__version__,
        mpi=" ".join(MPI.Get_library_version().strip("\0\n ").splitlines()[0].split()),
        ranks=control.size,
        hosts=list(hosts),
        ranks_per_host=per_host,
        cores_per_host=[ranks[0][0] for ranks in hosts.values()],
        usable_cores_per_host=usable,
        oversubscribed=any(n > cores for n, cores in zip(per_host, usable, strict=True)),
        unbound=any(_unbound([allowed for _, allowed in ranks]) for ranks in hosts.values()),
        mixed_hosts=len(
            set(zip(kinds.values(), (ranks[0][0] for ranks in hosts.values()), usable, strict=True))
        )
        > 1,
        clock_resolution_ns=resolution_ns(),
        started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def _unbound(masks: list[tuple[int, ...]]) -> bool:
    """Whether two of these ranks may run on the same choice of cores, so that the system moves them about."""
    return any(len(mask) > 1 and masks.count(mask) > 1 for mask in set(masks))
