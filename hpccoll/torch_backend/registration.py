"""Telling torch about the backend. Nothing here imports ``mpi4py.MPI``: that happens when a group is made."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from hpccoll import environment, settings
from hpccoll.recorder import sites
from hpccoll.torch_backend import torch_internals

sites.add_inside(torch.__file__)


def register(prefer: bool = False) -> None:
    """Make ``"hpccoll"``, ``"mpi://"`` and, unless torch has its own and `prefer` is false, ``"mpi"`` known."""
    register_own_name()
    torch_internals.register_scheme("mpi", _rendezvous)
    if prefer or not torch_internals.has_native_mpi():
        torch_internals.serve_mpi(_make_world, _after_init)


def register_own_name() -> None:
    """Make ``"hpccoll"`` known."""
    torch_internals.register_own_name(_make_group)


def use() -> None:
    """Take the name ``"mpi"`` also on a torch that was built with its own MPI backend.

    Call it before ``init_process_group``. On any other torch importing this package has done it.
    """
    register(prefer=True)


def _make_group(opts: Any, pg_options: Any = None) -> Any:
    from hpccoll.torch_backend.groups import make_group

    return make_group(opts, pg_options)


def _make_world(timeout: Any) -> Any:
    _yield_on_a_crowded_node()
    from hpccoll.torch_backend.groups import make_world

    return make_world(timeout)


def _yield_on_a_crowded_node() -> None:
    """Let Open MPI give its core away while it waits, where ranks and worker threads share the cores of one node.

    It does so by itself only for more ranks than cores, and counts no threads. Read when MPI starts.
    """
    if "mpi4py.MPI" in sys.modules or settings.TORCH_WAIT.get_or_default() == "sleep":
        return  # too late, or not wanted: each look at a request would give the core away for a time slice
    launch = environment.detect()
    if launch is None or launch.size is None or launch.size != launch.local_size:
        return
    cores, whole = environment.usable_cores(), os.cpu_count() or 1
    share = cores if cores < whole // 2 else cores // launch.size  # a bound rank sees its own cores only
    if share <= torch.get_num_threads():
        os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")


def _rendezvous(url: str, **kwargs: Any) -> Any:
    from hpccoll.torch_backend.rendezvous import rendezvous

    return rendezvous(url, **kwargs)


def _after_init() -> None:
    from hpccoll.torch_backend.ending import end_job_on_exception

    end_job_on_exception()
