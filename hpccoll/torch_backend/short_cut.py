"""The one path that is worth microseconds: ``dist.all_reduce`` of a plain tensor, straight to MPI."""

from __future__ import annotations

import inspect
import sys
import threading
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from hpccoll import reductions
from hpccoll.buffers import dtype_of
from hpccoll.failures import transfer_error
from hpccoll.recorder import ring, seam, sites
from hpccoll.torch_backend.reducing import Reducing
from hpccoll.torch_backend.torch_internals import OPS, hide_from_compiler, number_of, profiler_enabled
from hpccoll.torch_backend.work import DONE

_AllreduceOptions = dist.AllreduceOptions
_strided = torch.strided
_memory = MPI.memory.fromaddress
_IN_PLACE = MPI.IN_PLACE
_LARGEST_COUNT = 2**31 - 1
_PLAIN_CLASSES = (torch.Tensor, torch.nn.Parameter)
_DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64
]  # fmt: skip

_COLLECTIVE, _ENDED, _now_ns = ring.COLLECTIVE, ring.ENDED, ring.now_ns
_getframe, _get_ident, _next_of, _slots = (
    sys._getframe,
    threading.get_ident,
    ring.numbers.__next__,
    ring.slots,
)
_SIZE, _INSIDE = ring.SIZE, sites.inside()
_ALL_REDUCE = inspect.unwrap(dist.all_reduce).__code__


@hide_from_compiler
class ShortCut(Reducing):
    """The reductions, of which the most frequent takes the shortest way where nothing is special about the group."""

    _mpi: Any
    _log: ring.Log
    _records: bool = seam.ACTIVE
    """Whether the flight recorder sees it; a benchmark turns that off."""

    _plain: dict[Any, tuple[int, Any, Any]] = {}
    """(dtype, number of the reduction) -> item size, MPI's datatype and operation, where MPI does it as it is."""

    def _tabulate(self) -> None:
        """Fill `_plain` from the tables of :class:`Comm`, so that there is no second one."""
        self._plain = {
            (dtype, number): (dtype.itemsize, dtype_of(dtype).mpi, operation)
            for dtype in _DTYPES
            for number, name in OPS.items()
            if (operation := reductions.alone(name, dtype_of(dtype).name)) is not None
        }

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        # The one path that is worth microseconds: plain tensors, synchronous, and nothing special about the group.
        if opts.__class__ is _AllreduceOptions and len(tensors) == 1:
            tensor = tensors[0]
            number = number_of(opts.reduceOp)
            dtype = tensor.dtype
            kind = self._plain.get((dtype, number))
            if (
                kind is not None
                and not opts.asyncOp
                and tensor.layout is _strided
                and tensor.__class__ in _PLAIN_CLASSES
                and tensor.is_cpu
                and tensor.is_contiguous()
                and not tensor.is_neg()
                and not self._comm.pending
                and not profiler_enabled()
            ):
                itemsize, datatype, operation = kind
                count = tensor.numel()
                if count <= _LARGEST_COUNT:
                    self._sequence += 1
                    self._inside = "all_reduce"
                    entry = _begin(self._log, dtype, count, OPS[number]) if self._records else []
                    try:
                        memory = _memory(tensor.data_ptr(), count * itemsize)
                        self._mpi.Allreduce(_IN_PLACE, [memory, count, datatype], operation)
                    except BaseException as error:
                        if self._records:
                            ring.fail(entry)
                        if isinstance(error, MPI.Exception):
                            raise transfer_error(self.describe(), error, self._mpi) from error
                        raise
                    finally:
                        self._inside = None
                    if self._records:
                        entry[_ENDED] = _now_ns()
                    return DONE
        return super().allreduce(tensors, opts)


def _begin(log: Any, dtype: Any, count: int, op: str) -> list[Any]:
    """Record the short cut of `allreduce`, which does not come through a method of Comm."""
    frame: Any = _getframe(2)
    if frame.f_code is _ALL_REDUCE:
        frame = frame.f_back.f_back  # past torch's decorator
    code = frame.f_code
    if code.co_filename.startswith(_INSIDE):
        frame = sites.outside(frame)
        code = frame.f_code
    log.started = number = log.started + 1
    written = _next_of()
    begun = _now_ns()
    entry = [log, _COLLECTIVE, number, "allreduce", dtype, count, op, code, frame.f_lasti,
             _get_ident(), begun, begun, 0, False, True, None, None, written]  # fmt: skip
    slot = written % _SIZE
    if not _slots[slot][_ENDED]:
        ring.keep(_slots[slot])
    _slots[slot] = entry
    return entry
