"""Which rows a run has, and how much memory each may take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.bench.case import Case
from hpccoll.bench.dtypes import DType, numpy_dtype, torch_dtype
from hpccoll.bench.host import available_nbytes
from hpccoll.bench.options import Options, UsageError
from hpccoll.comm import Comm
from hpccoll.errors import ArgumentError

__all__ = ["Plan", "make_plans", "memory_limit"]

_MEMORY_SHARE = 0.8


@dataclass(frozen=True)
class Plan:
    """The independent variables of one row, except for the engine."""

    number: int
    dtype: DType
    op: str | None
    root: int
    count: int
    nbytes: int


def make_plans(case: Case, options: Options, kind: str, size: int) -> Iterator[Plan]:
    """The rows of a run on `size` ranks, in the order of the table; `kind` is ``torch`` if any engine takes tensors.

    Raises
    ------
    UsageError
        The root is no rank, or op and dtype do not go together.
    """
    if options.roots[0] >= size:
        raise UsageError(
            f"argument --root: must be below the number of ranks, {size}; got {options.roots[0]}"
        )
    number = 0
    for dtype in options.dtypes:
        for op in options.ops:
            if not _has_meaning(options, kind, dtype, op):
                continue
            for root in range(size) if options.every_root else options.roots:
                # Two sizes that round to the same count are one row.
                counts = {case.count(nbytes, dtype.itemsize, size): None for nbytes in options.sizes}
                for count in counts:
                    yield Plan(number, dtype, op, root, count, case.nbytes(count, dtype.itemsize, size))
                    number += 1


def _has_meaning(options: Options, kind: str, dtype: DType, op: str | None) -> bool:
    """Ask `Comm` itself, on a communicator of one rank."""
    try:
        if kind == "torch":
            import torch

            example: Any = torch.zeros(1, dtype=torch_dtype(dtype))
        else:
            example = np.zeros(1, numpy_dtype(dtype))
        if op is not None:
            Comm(MPI.COMM_SELF).allreduce(example, op=op)
    except (ArgumentError, ImportError, AttributeError) as exc:
        if options.every_dtype or (options.every_op and isinstance(exc, ArgumentError)):
            return False
        text = str(exc).partition(": ")[2] if isinstance(exc, ArgumentError) else str(exc)
        raise UsageError(f"argument --{'op' if op else 'dtype'}: {text}") from None
    return True


def memory_limit(options: Options, control: Any, node: Any) -> int | None:
    """Bytes that one rank may use, the same on all ranks; None where no host says. Collective."""
    here = node.bcast(available_nbytes() if node.rank == 0 else None)
    limits = [int(here * _MEMORY_SHARE) // node.size] if here is not None else []
    if options.max_memory is not None:
        limits.append(options.max_memory)
    known = [limit for limit in control.allgather(min(limits, default=None)) if limit is not None]
    return min(known, default=None)
