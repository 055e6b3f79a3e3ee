"""The process group: torch's calls in terms of :class:`hpccoll.Comm`.

Synchronous calls run on the caller's thread. Asynchronous ones are checked there and run on the communicator's own
thread; where an operation takes more than one step, the last ones are done there as well.
"""

from __future__ import annotations

import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from hpccoll import reductions
from hpccoll.buffers import dtype_of
from hpccoll.comm import Comm, identity
from hpccoll.failures import transfer_error
from hpccoll.recorder import exceptions, ring, seam, sites, watchdog
from hpccoll.torch_backend import ending, limits, torch_internals
from hpccoll.torch_backend.work import DONE, DoneWork, PendingWork
from hpccoll.work import Work

_OPS = torch_internals.OPS
_profiling = torch_internals.profiler_enabled

_COALESCE_BELOW_BYTES = 1 << 20
"""Up to here it is faster to join the tensors of a coalesced operation than to send each (see docs/torch.md)."""


class _Unusable:
    """Stands where the communicator was. Costs nothing while there is one."""

    def __init__(self, reason: str, kind: type[BaseException] = RuntimeError):
        self._reason = reason
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        raise self._kind(self._reason)


@torch_internals.hide_from_compiler
class MpiProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A torch process group over an MPI communicator.

    Parameters
    ----------
    store
        The store of the group, for those who ask ``get_group_store()``.
    mpi
        The mpi4py communicator, this group's own; freed by ``shutdown``.
    ranks
        The members' ranks in the default group.
    timeout
        The limit of every operation; see :mod:`hpccoll.torch_backend.limits`.
    """

    def __init__(self, store: Any, mpi: Any, ranks: Sequence[int], timeout: timedelta):
        torch_internals.init_base(self, store, mpi.rank, mpi.size)
        self._ranks = list(ranks)
        self._size: int = mpi.size
        self._mpi = mpi
        self._name = ""
        self._desc = ""
        self._backend_name = torch_internals.OWN
        self._other_backends: dict[str, Any] = {}
        self._coalesced: list[Any] | None = None
        self._sequence = 0
        self._inside: str | None = None
        self._last: Work | None = None
        self._timed_out = False
        self._log = identity.of_group(self._mpi)
        self._log.names = _NAMES
        self._records = seam.ACTIVE  # of the short cut of allreduce; a benchmark turns it off
        self._comm: Any
        self._agree_on_limit(timeout)
        _live.add(self)
        ending.guard_forks()

    # ---- Construction and end

    _plain: dict[Any, tuple[int, Any, Any]] = {}
    """(dtype, number of the reduction) -> item size, MPI's datatype and operation, where MPI does it as it is."""

    def _tabulate(self) -> None:
        """Fill `_plain` from the tables of :class:`Comm`, so that there is no second one."""
        self._plain = {
            (dtype, number): (dtype.itemsize, dtype_of(dtype).mpi, operation)
            for dtype in _DTYPES
            for number, name in _OPS.items()
            if (operation := reductions.alone(name, dtype_of(dtype).name)) is not None
        }

    def _agree_on_limit(self, timeout: timedelta) -> None:
        """The smallest limit that any rank was given holds for all: they have to act alike."""
        default_s = torch_internals.default_timeout().total_seconds()
        own_s = timeout.total_seconds() if timeout is not None else default_s
        lowest_s, highest_s = self._mpi.allreduce(own_s, MPI.MIN), -self._mpi.allreduce(-own_s, MPI.MIN)
        self.limit_s: float = lowest_s
        self._is_limited = lowest_s != default_s or highest_s != default_s
        if self._is_limited:
            watchdog.attend()
            self._comm = limits.LimitedComm(
                self._mpi, lowest_s, self._get_sequence_number_for_group, self._on_timeout, self._log
            )
        else:
            self._comm = Comm(self._mpi, self._log)
            if self._comm._check is None:  # check mode has to see every call
                self._tabulate()
            limits.watch(self)
        if self._comm._agreement is not None:
            self._comm._agreement.when_missing = lambda: ending.after_timeout(0.0)

    def adopt(self, name: str, devices: Sequence[str], backends: dict[str, Any]) -> None:
        """Take the name that the user asked for, and the backends of other devices."""
        self._backend_name = torch_internals.MPI if torch_internals.MPI in name else torch_internals.OWN
        self._other_backends = backends
        if backends:
            self._plain = {}
        torch_internals.declare_devices(self, devices, backends)

    @property
    def base_communicator(self) -> Any:
        """The mpi4py communicator that subgroups are made from."""
        return self._mpi

    def forbid(self, reason: str) -> None:
        """Let every further operation raise."""
        self._comm = _Unusable(reason)
        self._plain = {}

    def own_part(self, parts: Any) -> list[int] | None:
        """The list of ranks among `parts` that holds this rank, sorted; None if none does."""
        if parts is None or len(parts) == 0:
            raise ValueError("split_ranks cannot be None or empty")
        flat = [rank for part in parts for rank in part]
        if any(len(part) == 0 for part in parts):
            raise ValueError("the split group cannot be empty")
        if len(set(flat)) != len(flat):
            raise ValueError("the split group cannot have duplicate ranks")
        if any(not 0 <= rank < self._size for rank in flat):
            raise ValueError(
                "the split group's size should be less or equal to the world_size set by init_process_group; "
                f"its ranks must be from 0 to {self._size - 1}, got {parts}"
            )
        return next((sorted(part) for part in parts if self.rank() in part), None)

    def shutdown(self) -> None:
        """Give the communicator back; called by ``destroy_process_group``.

        What is still pending goes on, and the communicator is freed after it: this does not wait for other ranks.
        """
        comm = self._comm
        self._log.freed = True
        self.forbid("Invalid process group specified: it has been destroyed")
        limits.unwatch(self)
        _live.discard(self)
        for backend in self._other_backends.values():
            if hasattr(backend, "shutdown"):
                backend.shutdown()
        if isinstance(comm, _Unusable) or self._timed_out:
            return  # requests that will never be complete still use it
        mpi = self._mpi

        def free() -> None:
            comm.free()
            mpi.Free()

        if comm.pending:
            comm._run("destroy_process_group", free, blocking=False)
        else:
            free()

    def abort(self) -> None:
        """Make the group unusable without a word to the others."""
        self._timed_out = True
        self.shutdown()

    def _on_timeout(self, method: str, number: int) -> BaseException:
        error = limits.timeout_error(self.describe(method, number), self.limit_s)
        limits.dump_for_all(str(error), None)
        exceptions.remember(error, "timeout", str(error))
        self._timed_out = True
        ending.after_timeout(self.limit_s)
        self._comm = _Unusable(str(error), dist.DistBackendError)
        return error

    # ---- What torch and the watcher ask

    def describe(self, name: str | None = None, number: int | None = None) -> str:
        """Name an operation (the present one), its sequence number and the ranks, for a message."""
        if name is None:
            name = self._inside or (self._last.method if self._last is not None else "an operation")
        number = self._sequence if number is None else number
        where = f"process group {self._desc or self._name or 'unnamed'} (ranks {_short(self._ranks)})"
        return f"{_NAMES.get(name, name)}, sequence number {number}, on rank {self.rank()} of {where}"

    def running(self) -> int | None:
        """A number that stays the same while one operation runs; None while none does."""
        if self._inside is not None:
            return self._sequence
        if getattr(self._comm, "pending", False):
            return -2 - self._comm._worker.completed
        return None

    def getBackendName(self) -> str:
        return self._backend_name

    _get_backend_name = name = getBackendName

    def setGroupName(self, name: str) -> None:
        self._name = name
        self._log.id = f"torch:{name}"
        self._log.name = self._desc or name

    def getGroupName(self) -> str:
        return self._name

    def setGroupDesc(self, desc: str) -> None:
        self._desc = desc
        self._log.name = desc or self._name

    def getGroupDesc(self) -> str:
        return self._desc

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def _get_backend(self, device: Any) -> Any:
        return self._other_backends.get(torch.device(device).type, self)

    supports_splitting = supports_coalescing = supports_time_estimate = False

    def supports_tensor_alloc(self, device: Any) -> bool:
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the limit on this rank; whether operations raise or the job ends was settled when it was made."""
        self.limit_s = timeout.total_seconds()
        if self._is_limited:
            self._comm.limit_s = self.limit_s

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    # ---- How every operation runs

    def _elsewhere(self, tensor: Any) -> bool:
        """Whether the tensor belongs to a backend of torch's own ("cuda:nccl")."""
        return bool(self._other_backends) and tensor.device.type in self._other_backends

    def _issue(
        self,
        name: str,
        call: Callable[[bool], Any],
        is_async: bool,
        inputs: Sequence[torch.Tensor] = (),
        outputs: Sequence[torch.Tensor] = (),
        finish: Callable[[], Any] | None = None,
    ) -> Any:
        """Run ``call(blocking)``, which makes one call of a Comm method or a list of them, and `finish` after it."""
        self._sequence += 1
        if _profiling():
            finish = self._then_end_range(name, inputs, finish)
        if is_async:
            return self._pending(name, call(False), outputs or inputs, finish)
        self._inside = name
        try:
            call(True)
        finally:
            self._inside = None
        if finish is not None:
            finish()
        return DONE

    def _then_end_range(self, name: str, inputs: Any, finish: Callable[[], Any] | None) -> Callable[[], Any]:
        end = torch_internals.begin_range(f"{self._backend_name}:{name}", inputs)

        def finish_and_end() -> None:
            if finish is not None:
                finish()
            end()

        return finish_and_end

    def _pending(
        self, name: str, works: Any, tensors: Any, finish: Any, limit_s: float | None = None
    ) -> PendingWork:
        works = works if isinstance(works, list) else [works]
        self._last = works[-1]
        sequence = self._sequence

        def describe() -> str:
            return self.describe(name, sequence)

        made = PendingWork(works, tensors, finish, describe, limit_s)
        if self._coalesced is not None:
            self._coalesced.append(made)
        return made

    # ---- Reductions

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        # The one path that is worth microseconds: plain tensors, synchronous, and nothing special about the group.
        if opts.__class__ is _AllreduceOptions and len(tensors) == 1:
            tensor = tensors[0]
            number = _number_of(opts.reduceOp)
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
                and not _profiling()
            ):
                itemsize, datatype, operation = kind
                count = tensor.numel()
                if count <= _LARGEST_COUNT:
                    self._sequence += 1
                    self._inside = "all_reduce"
                    entry = _begin(self._log, dtype, count, _OPS[number]) if self._records else []
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
        return self._allreduce(_one(tensors), opts)

    def _allreduce(self, tensor: Any, opts: Any) -> Any:
        if self._elsewhere(tensor):
            return super().allreduce([tensor], opts)
        op, factor = self._op(opts)
        if tensor.layout is not _strided:
            from hpccoll.torch_backend.sparse import allreduce

            return allreduce(self, tensor, op, _is_async(opts))
        if factor is not None:
            tensor.mul_(factor)
        return self._issue(
            "all_reduce",
            lambda b: self._comm.allreduce(tensor, op=op, out=tensor, blocking=b),
            _is_async(opts),
            [tensor],
        )

    def _op(self, opts: Any) -> tuple[str, Any]:
        code, factor = torch_internals.reduction(opts)
        if code == torch_internals.PREMUL_SUM:
            return "sum", factor
        if code not in _OPS:
            raise ValueError(f"{self._backend_name}: unsupported reduction {getattr(opts, 'reduceOp', opts)}")
        return _OPS[code], None

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        if not tensors:
            return DONE
        if self._elsewhere(tensors[0]):
            return super().allreduce_coalesced(tensors, opts)
        op, factor = self._op(opts)
        if any(tensor.layout is not _strided for tensor in tensors):
            raise ValueError("allreduce_coalesced: tensors must be dense")
        if factor is not None:
            torch._foreach_mul_(list(tensors), factor)
        if _are_alike_and_small(tensors):
            joined = _join(tensors)
            return self._issue(
                "all_reduce",
                lambda b: self._comm.allreduce(joined, op=op, out=joined, blocking=b),
                _is_async(opts),
                tensors,
                finish=lambda: _hand_out(joined, tensors),
            )
        return self._issue(
            "all_reduce",
            lambda b: [self._comm.allreduce(tensor, op=op, out=tensor, blocking=b) for tensor in tensors],
            _is_async(opts),
            tensors,
        )

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> Any:
        tensor = _one(tensors)
        if self._elsewhere(tensor):
            return super().reduce([tensor], opts)
        root = _root(opts)
        name, factor = self._op(opts if hasattr(opts, "reduceOp") else (op or dist.ReduceOp.SUM))
        source = tensor if factor is None or self.rank() == root else tensor * factor
        if factor is not None and source is tensor:
            tensor.mul_(factor)
        out = tensor if self.rank() == root else None
        return self._issue(
            "reduce",
            lambda b: self._comm.reduce(source, op=name, root=root, out=out, blocking=b),
            _is_async(opts),
            [tensor],
        )

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        output = _one(outputs)
        blocks = _list_of(inputs)
        if self._elsewhere(output):
            return super().reduce_scatter([output], [blocks], opts)
        self._check_list("reduce_scatter", "input", blocks, output)
        op, factor = self._op(opts)
        counts = [block.numel() for block in blocks]
        if counts[self.rank()] != output.numel():
            raise ValueError(
                f"reduce_scatter: the output has {output.numel()} elements, but input tensor {self.rank()} has "
                f"{counts[self.rank()]}"
            )
        joined = _join(blocks)
        if factor is not None:
            joined.mul_(factor)
        target, finish = _flat_target(output)
        even = len(set(counts)) == 1
        source = joined.view(self._size, -1) if even else joined
        return self._issue(
            "reduce_scatter",
            lambda b: self._comm.reduce_scatter(
                source, op=op, counts=None if even else counts, out=target, blocking=b
            ),
            _is_async(opts),
            blocks,
            [output],
            finish,
        )

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        if self._elsewhere(output):
            return super()._reduce_scatter_base(output, input, opts)
        call, finish = self._reduce_scatter_call(output, input, opts)
        return self._issue("_reduce_scatter_base", call, _is_async(opts), [input], [output], finish)

    def _reduce_scatter_call(self, output: Any, input: Any, opts: Any) -> tuple[Any, Any]:
        op, factor = self._op(opts)
        if input.numel() != output.numel() * self._size:
            raise ValueError("input tensor must be the same size as output size times world size")
        if input.dtype != output.dtype:
            raise ValueError("input tensor must be the same type as the output tensor.")
        source = input.detach().reshape(self._size, -1)
        if factor is not None:
            source = source * factor
        target, finish = _flat_target(output)
        comm = self._comm
        return (lambda b: comm.reduce_scatter(source, op=op, out=target, blocking=b)), finish

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        if not outputs:
            return DONE
        if self._elsewhere(outputs[0]):
            return super().reduce_scatter_tensor_coalesced(outputs, inputs, opts)
        calls = [self._reduce_scatter_call(*pair, opts) for pair in zip(outputs, inputs, strict=True)]
        return self._issue_all("reduce_scatter_tensor_coalesced", calls, _is_async(opts), inputs, outputs)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _issue_all(
        self, name: str, calls: list[tuple[Any, Any]], is_async: bool, inputs: Any, outputs: Any
    ) -> Any:
        finishes = [finish for _, finish in calls if finish is not None]
        return self._issue(
            name,
            lambda b: [call(b) for call, _ in calls],
            is_async,
            inputs,
            outputs,
            (lambda: [finish() for finish in finishes]) if finishes else None,
        )

    # ---- Movements

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        tensor = _one(tensors)
        if self._elsewhere(tensor):
            return super().broadcast([tensor], opts)
        root = _root(opts)
        return self._issue(
            "broadcast",
            lambda b: self._comm.broadcast(tensor, root=root, blocking=b),
            _is_async(opts),
            [tensor],
        )

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        tensor = _one(inputs)
        blocks = _list_of(outputs)
        if self._elsewhere(tensor):
            return super().allgather([blocks], [tensor], opts)
        call, finish = self._allgather_call(blocks, tensor)
        return self._issue("all_gather", call, _is_async(opts), [tensor], blocks, finish)

    def _allgather_call(self, blocks: Any, tensor: Any) -> tuple[Any, Any]:
        self._check_list("all_gather", "output", blocks, tensor)
        counts = [block.numel() for block in blocks]
        if counts[self.rank()] != tensor.numel():
            raise ValueError(
                f"all_gather: the input has {tensor.numel()} elements, but output tensor {self.rank()} has "
                f"{counts[self.rank()]}"
            )
        even = len(set(counts)) == 1
        source = tensor.detach().reshape(-1)
        joined = source.new_empty((self._size, counts[0]) if even else sum(counts))
        comm = self._comm
        return (
            lambda b: comm.allgather(source, counts=None if even else counts, out=joined, blocking=b),
            lambda: _hand_out(joined.view(-1), blocks),
        )

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        # torch's own convention: outputs[rank][i] belongs to inputs[i].
        lists = [[per_rank[index] for per_rank in outputs] for index in range(len(inputs))]
        calls = [self._allgather_call(blocks, tensor) for blocks, tensor in zip(lists, inputs, strict=True)]
        flat = [tensor for per_rank in outputs for tensor in per_rank]
        return self._issue_all("all_gather", calls, _is_async(opts), inputs, flat)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        if self._elsewhere(input):
            return super()._allgather_base(output, input, opts)
        call, finish = self._allgather_single_call(output, input)
        return self._issue("_allgather_base", call, _is_async(opts), [input], [output], finish)

    def _allgather_single_call(self, output: Any, input: Any) -> tuple[Any, Any]:
        if output.numel() != input.numel() * self._size:
            raise ValueError("output tensor size must be equal to world_size times input tensor size")
        if input.dtype != output.dtype:
            raise ValueError("output tensor must have the same type as input tensor")
        source = input.detach().reshape(-1)
        target, finish = _flat_target(output)
        rows = target.view(self._size, -1) if target.numel() else target.view(self._size, 0)
        comm = self._comm
        return (lambda b: comm.allgather(source, out=rows, blocking=b)), finish

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        if not outputs:
            return DONE
        if self._elsewhere(outputs[0]):
            return super().allgather_into_tensor_coalesced(outputs, inputs, opts)
        calls = [self._allgather_single_call(*pair) for pair in zip(outputs, inputs, strict=True)]
        return self._issue_all("all_gather_into_tensor_coalesced", calls, _is_async(opts), inputs, outputs)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        tensor = _one(inputs)
        root = _root(opts)
        blocks = _list_of(outputs) if self.rank() == root else []
        if self._elsewhere(tensor):
            return super().gather([blocks] if blocks else [], [tensor], opts)
        source = tensor.detach().reshape(-1)
        if self.rank() != root:
            return self._issue(
                "gather",
                lambda b: self._comm.gather(source, root=root, blocking=b),
                _is_async(opts),
                [tensor],
            )
        self._check_list("gather", "output", blocks, tensor, same_size=True)
        joined = source.new_empty((self._size, source.numel()))
        return self._issue(
            "gather",
            lambda b: self._comm.gather(source, root=root, out=joined, blocking=b),
            _is_async(opts),
            [tensor],
            blocks,
            lambda: _hand_out(joined.view(-1), blocks),
        )

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        output = _one(outputs)
        root = _root(opts)
        blocks = _list_of(inputs) if self.rank() == root else []
        if self._elsewhere(output):
            return super().scatter([output], [blocks] if blocks else [], opts)
        target, finish = _flat_target(output)
        source = None
        if self.rank() == root:
            self._check_list("scatter", "input", blocks, output, same_size=True)
            source = _join(blocks).view(self._size, output.numel())
        return self._issue(
            "scatter",
            lambda b: self._comm.scatter(source, root=root, out=target, blocking=b),
            _is_async(opts),
            blocks,
            [output],
            finish,
        )

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        if inputs and self._elsewhere(inputs[0]):
            return super().alltoall(outputs, inputs, opts)
        if len(inputs) != self._size or len(outputs) != self._size:
            raise ValueError("Number of input tensors are not equal to group size")
        self._check_list("all_to_all", "output", outputs, inputs[0])
        self._check_list("all_to_all", "input", inputs, inputs[0])
        sent, expected = [t.numel() for t in inputs], [t.numel() for t in outputs]
        source = _join(inputs)
        joined = source.new_empty(sum(expected))
        return self._issue(
            "all_to_all",
            lambda b: self._comm.alltoall(
                source, send_counts=sent, recv_counts=expected, out=joined, blocking=b
            ),
            _is_async(opts),
            inputs,
            outputs,
            lambda: _hand_out(joined, outputs),
        )

    def all_to_all_single(
        self, output: Any, input: Any, output_splits: Any = None, input_splits: Any = None, opts: Any = None
    ) -> Any:
        if self._elsewhere(input):
            return super().alltoall_base(output, input, output_splits, input_splits, opts)
        if input.dtype != output.dtype:
            raise ValueError("Tensors are not equal in data type")
        sent = self._splits("input", input, input_splits)
        expected = self._splits("output", output, output_splits)
        source = input.detach().contiguous()
        target, finish = (output.detach(), None) if output.is_contiguous() else _contiguous_target(output)
        if not input_splits and not output_splits:
            source, target = source.view(self._size, -1), target.view(self._size, -1)
            sent = expected = None  # type: ignore[assignment]
        return self._issue(
            "all_to_all",
            lambda b: self._comm.alltoall(
                source, send_counts=sent, recv_counts=expected, out=target, blocking=b
            ),
            _is_async(opts),
            [input],
            [output],
            finish,
        )

    alltoall_base = all_to_all_single

    def _splits(self, which: str, tensor: Any, splits: Any) -> list[int]:
        if not splits:
            length = tensor.shape[0] if tensor.dim() else 0
            if length % self._size:
                raise ValueError("Tensor's dim 0 does not divide equally across group size")
            return [length // self._size] * self._size
        if len(splits) != self._size:
            raise ValueError("Number of tensor splits not equal to group size")
        if sum(splits) != tensor.shape[0]:
            raise ValueError("Split sizes doesn't match total dim 0 size")
        return list(splits)

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        return self._issue("barrier", lambda b: self._comm.barrier(blocking=b), _is_async(opts))

    # ---- Point to point

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        tensor = _one(tensors)
        if self._elsewhere(tensor):
            return super().send([tensor], dst, tag)
        return self._message(
            "send", lambda: self._comm.send(tensor.detach(), dest=dst, tag=tag, blocking=False), tensor
        )

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        tensor = _one(tensors)
        if self._elsewhere(tensor):
            return super().recv([tensor], src, tag)
        return self._message(
            "recv", lambda: self._comm.recv(tensor.detach(), source=src, tag=tag, blocking=False), tensor
        )

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        tensor = _one(tensors)
        return self._message(
            "recvAnySource", lambda: self._comm.recv(tensor.detach(), tag=tag, blocking=False), tensor
        )

    def _message(self, name: str, call: Callable[[], Work], tensor: Any) -> PendingWork:
        self._sequence += 1
        finish = self._then_end_range(name, [tensor], None) if _profiling() else None
        # A wait for a message can always give up: nothing is stuck inside MPI.
        return self._pending(name, call(), [tensor], finish, self.limit_s)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier that says which ranks did not come; after gloo's."""
        from hpccoll.torch_backend.monitored import monitored_barrier

        if timeout is None:
            limit_s = self.limit_s
        else:
            limit_s = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
        self._comm.recorded(
            "monitored_barrier", lambda: monitored_barrier(self._comm, limit_s, wait_all_ranks)
        )()

    # ---- Coalescing

    def _start_coalescing(self, device: Any = None) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: Any = None) -> Any:
        works, self._coalesced = self._coalesced or [], None
        return CoalescedWork(works)

    # ---- Checks

    def _check_list(self, name: str, which: str, tensors: Any, like: Any, same_size: bool = False) -> None:
        if len(tensors) != self._size:
            raise ValueError(
                f"{name}: invalid {which} tensor list size, must be world size ({self._size}), got {len(tensors)}"
            )
        for tensor in tensors:
            if tensor.dtype != like.dtype or tensor.device != like.device:
                raise ValueError(
                    f"{name}: invalid tensor type in the {which} list: expected {like.dtype} on {like.device}, "
                    f"got {tensor.dtype} on {tensor.device}"
                )
            if same_size and tensor.numel() != like.numel():
                raise ValueError(
                    f"{name}: invalid tensor size in the {which} list: expected {like.numel()} elements "
                    f"(shape {list(like.shape)}), got {tensor.numel()} (shape {list(tensor.shape)})"
                )


@torch_internals.hide_from_compiler
class CoalescedWork(DoneWork):
    """The operations between ``_start_coalescing`` and ``_end_coalescing``."""

    def __init__(self, works: Sequence[Any]):
        super().__init__([tensor for work in works for tensor in work._tensors])
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def get_future(self) -> Any:
        return torch.futures.collect_all([work.get_future() for work in self._works]).then(
            lambda _: list(self._tensors)
        )


# ---- Arguments. torch hands over tensors bare or in lists, and options or the ops themselves.

_AllreduceOptions = dist.AllreduceOptions
_strided = torch.strided
_number_of = torch_internals.number_of
_memory = MPI.memory.fromaddress
_IN_PLACE = MPI.IN_PLACE
_LARGEST_COUNT = 2**31 - 1
_PLAIN_CLASSES = (torch.Tensor, torch.nn.Parameter)
_DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64
]  # fmt: skip


_NAMES = {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all"}
"""hpccoll's name of an operation -> torch's, where they differ."""


_COLLECTIVE, _ENDED, _now_ns = ring.COLLECTIVE, ring.ENDED, ring.now_ns
_getframe, _get_ident, _next_of, _slots = (
    sys._getframe,
    threading.get_ident,
    ring.numbers.__next__,
    ring.slots,
)
_SIZE, _INSIDE = ring.SIZE, sites.inside()
_ALL_REDUCE = inspect.unwrap(dist.all_reduce).__code__


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


def _one(tensors: Any) -> Any:
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError("MPI process group does not support multi-GPU collectives")
    return tensors[0]


def _list_of(tensors: Any) -> list[Any]:
    """The inner list of a list of one list; a plain list is taken as that."""
    if tensors and not isinstance(tensors[0], torch.Tensor):
        if len(tensors) != 1:
            raise ValueError("MPI process group does not support multi-GPU collectives")
        return list(tensors[0])
    return list(tensors)


def _is_async(opts: Any) -> bool:
    return bool(getattr(opts, "asyncOp", True))  # torch's default; its synchronous functions say so


def _root(opts: Any) -> int:
    return int(getattr(opts, "rootRank", opts if isinstance(opts, int) else 0))


def _are_alike_and_small(tensors: Sequence[Any]) -> bool:
    return (
        len(tensors) > 1
        and sum(tensor.nbytes for tensor in tensors) <= _COALESCE_BELOW_BYTES
        and len({(tensor.dtype, tensor.device) for tensor in tensors}) == 1
    )


def _join(tensors: Sequence[Any]) -> Any:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def _hand_out(joined: Any, tensors: Sequence[Any]) -> None:
    """Copy consecutive parts of a flat tensor to where they belong."""
    parts = joined.split([tensor.numel() for tensor in tensors])
    with torch.no_grad():
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part if tensor.dim() == 1 else part.view(tensor.shape))


def _flat_target(output: Any) -> tuple[Any, Any]:
    """A flat tensor to receive into, and what brings it to `output` afterwards (None where it is the same memory)."""
    if output.is_contiguous():
        return output.detach().view(-1), None
    target, finish = _contiguous_target(output)
    return target.view(-1), finish


def _contiguous_target(output: Any) -> tuple[Any, Callable[[], Any]]:
    target = torch.empty(output.shape, dtype=output.dtype, device=output.device)
    return target, lambda: output.detach().copy_(target)


def _short(ranks: Sequence[int]) -> str:
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks))


_live: weakref.WeakSet[MpiProcessGroup] = weakref.WeakSet()


def live_groups() -> list[MpiProcessGroup]:
    """The process groups of this process that have not been destroyed."""
    return list(_live)
