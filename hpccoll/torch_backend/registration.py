"""Telling torch about the backend. Nothing here imports ``mpi4py.MPI``: that happens when a group is made."""

from __future__ import annotations

from typing import Any

from hpccoll.torch_backend import torch_internals


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
    from hpccoll.torch_backend.groups import make_world

    return make_world(timeout)


def _rendezvous(url: str, **kwargs: Any) -> Any:
    from hpccoll.torch_backend.rendezvous import rendezvous

    return rendezvous(url, **kwargs)


def _after_init() -> None:
    from hpccoll.torch_backend.ending import end_job_on_exception

    end_job_on_exception()
