"""MPI collectives on NumPy arrays and torch tensors, and programs that measure and check a cluster.

Importing this package starts no MPI and loads neither NumPy nor torch: the names below are resolved when they
are first used. The programs are modules (``python -m hpccoll.allreduce``); the collectives are methods of
`Comm`::

    import hpccoll as hc

    comm = hc.world()
    total = comm.allreduce(x)
"""

import importlib as _importlib
import typing as _typing

from hpccoll._version import __version__

if _typing.TYPE_CHECKING:
    from hpccoll.aborting import abort_on_exception, run_checked
    from hpccoll.comm import Comm, world
    from hpccoll.errors import (
        ArgumentError,
        CheckError,
        CommunicatorError,
        HpccollError,
        LaunchError,
        MismatchError,
        NotFiniteError,
        ProcessFailedError,
        TransferError,
        UnsupportedError,
        VerificationError,
        WaitTimeout,
    )
    from hpccoll.recorder.limits import timeout
    from hpccoll.work import Work

__all__ = [
    "ArgumentError",
    "CheckError",
    "Comm",
    "CommunicatorError",
    "HpccollError",
    "LaunchError",
    "MismatchError",
    "NotFiniteError",
    "ProcessFailedError",
    "TransferError",
    "UnsupportedError",
    "VerificationError",
    "WaitTimeout",
    "Work",
    "__version__",
    "abort_on_exception",
    "run_checked",
    "timeout",
    "world",
]

_MODULE_OF = {
    "ArgumentError": "hpccoll.errors",
    "CheckError": "hpccoll.errors",
    "Comm": "hpccoll.comm",
    "CommunicatorError": "hpccoll.errors",
    "HpccollError": "hpccoll.errors",
    "MismatchError": "hpccoll.errors",
    "NotFiniteError": "hpccoll.errors",
    "LaunchError": "hpccoll.errors",
    "ProcessFailedError": "hpccoll.errors",
    "TransferError": "hpccoll.errors",
    "UnsupportedError": "hpccoll.errors",
    "VerificationError": "hpccoll.errors",
    "WaitTimeout": "hpccoll.errors",
    "Work": "hpccoll.work",
    "abort_on_exception": "hpccoll.aborting",
    "run_checked": "hpccoll.aborting",
    "timeout": "hpccoll.recorder.limits",
    "world": "hpccoll.comm",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value  # the next look-up does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})  # so that completion shows what is not loaded yet
