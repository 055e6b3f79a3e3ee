"""CUDA memory and MPI: an opt-in start-up self-test decides whether MPI may be handed device pointers.

An MPI that is not CUDA-aware crashes on them, or reads garbage. So tensors go through pinned host memory
unless ``HPCCOLL_CUDA_AWARE=1`` asks for the test, the library itself says that it can, and the test passes on
every rank. Then data movement takes device pointers; reductions go through host memory all the same, as half
precision, NaN-safe minima and averages are computed there.
"""

from __future__ import annotations

import sys
from typing import Any

from mpi4py import MPI

from hpccoll import settings
from hpccoll.errors import CommunicatorError
from hpccoll.gate import cuda_support

VARIABLE = settings.CUDA_AWARE.name

_passed = False


def enabled() -> bool:
    """Tell whether CUDA memory goes to MPI directly in this process."""
    return _passed


def self_test(mpi: Any) -> bool:
    """Find out, all ranks together, whether this MPI moves CUDA memory correctly.

    Does nothing and returns False unless ``HPCCOLL_CUDA_AWARE=1`` is set on every rank. Every rank of `mpi`
    has to call it.

    Parameters
    ----------
    mpi : mpi4py.MPI.Intracomm

    Raises
    ------
    CommunicatorError
        It was asked for on some ranks only, or asked for and failed: on every rank, with the reason.
    """
    global _passed
    wishes = mpi.allgather(settings.CUDA_AWARE.get())
    if not any(wishes):
        return False
    if not all(wishes):
        raise CommunicatorError(
            f"{VARIABLE} is set on some ranks only (not on rank {wishes.index(False)}); export it to all"
        )
    # Two steps: a device pointer must not be tried where any rank already knows that it would crash.
    for step in (_obstacle, _try):
        reasons = mpi.allgather(step(mpi))
        for rank, reason in enumerate(reasons):
            if reason:
                raise CommunicatorError(
                    f"{VARIABLE}=1, but rank {rank}: {reason}; unset it to go through host memory"
                )
    _passed = True
    return True


def _obstacle(_: Any) -> str:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return "torch is not imported or sees no CUDA device"
    support = cuda_support()
    if support is None:
        return "this MPI has no MPIX_Query_cuda_support()"
    return "" if support else "this MPI says that it was built without CUDA support"


def _try(mpi: Any) -> str:
    import torch

    count = 4096  # beyond the eager limit of some transports, below that of others
    index = torch.arange(count, device="cuda", dtype=torch.float32)
    mine, all_of_them = index + mpi.rank, torch.zeros(mpi.size, count, device="cuda")
    torch.cuda.synchronize()

    def specification(tensor: Any) -> list[Any]:
        return [MPI.memory.fromaddress(tensor.data_ptr(), tensor.nbytes), mine.nbytes, MPI.BYTE]

    mpi.Allgather(specification(mine), specification(all_of_them))
    mpi.Sendrecv(
        specification(mine), (mpi.rank + 1) % mpi.size, 0, specification(index), (mpi.rank - 1) % mpi.size, 0
    )
    torch.cuda.synchronize()
    first = torch.arange(count, dtype=torch.float32)
    if not torch.equal(all_of_them.cpu(), first + torch.arange(mpi.size)[:, None]):
        return "an allgather of CUDA memory gave wrong values"
    right = torch.equal(index.cpu(), first + (mpi.rank - 1) % mpi.size)
    return "" if right else "a sendrecv of CUDA memory gave wrong values"
