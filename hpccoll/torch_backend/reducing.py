"""torch's collectives that compute, in terms of :class:`hpccoll.Comm`."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from hpccoll.torch_backend import torch_internals
from hpccoll.torch_backend.arguments import (
    are_alike_and_small,
    flat_target,
    hand_out,
    is_async,
    join,
    list_of,
    one,
    root_of,
)
from hpccoll.torch_backend.issuing import Issuing
from hpccoll.torch_backend.work import DONE


@torch_internals.hide_from_compiler
class Reducing(Issuing):
    """The reductions of a process group."""

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        tensor = one(tensors)
        if self._elsewhere(tensor):
            return super().allreduce([tensor], opts)
        op, factor = self._op(opts)
        if tensor.layout is not torch.strided:
            from hpccoll.torch_backend import sparse

            return sparse.allreduce(self, tensor, op, is_async(opts))
        if factor is not None:
            tensor.mul_(factor)
        return self._issue(
            "all_reduce",
            lambda b: self._comm.allreduce(tensor, op=op, out=tensor, blocking=b),
            is_async(opts),
            [tensor],
        )

    def _op(self, opts: Any) -> tuple[str, Any]:
        code, factor = torch_internals.reduction(opts)
        if code == torch_internals.PREMUL_SUM:
            return "sum", factor
        if code not in torch_internals.OPS:
            raise ValueError(f"{self._backend_name}: unsupported reduction {getattr(opts, 'reduceOp', opts)}")
        return torch_internals.OPS[code], None

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        if not tensors:
            return DONE
        if self._elsewhere(tensors[0]):
            return super().allreduce_coalesced(tensors, opts)
        op, factor = self._op(opts)
        if any(tensor.layout is not torch.strided for tensor in tensors):
            raise ValueError("allreduce_coalesced: tensors must be dense")
        if factor is not None:
            torch._foreach_mul_(list(tensors), factor)
        if are_alike_and_small(tensors):
            joined = join(tensors)
            return self._issue(
                "all_reduce",
                lambda b: self._comm.allreduce(joined, op=op, out=joined, blocking=b),
                is_async(opts),
                tensors,
                finish=lambda: hand_out(joined, tensors),
            )
        return self._issue(
            "all_reduce",
            lambda b: [self._comm.allreduce(tensor, op=op, out=tensor, blocking=b) for tensor in tensors],
            is_async(opts),
            tensors,
        )

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> Any:
        tensor = one(tensors)
        if self._elsewhere(tensor):
            return super().reduce([tensor], opts)
        root = root_of(opts)
        name, factor = self._op(opts if hasattr(opts, "reduceOp") else (op or dist.ReduceOp.SUM))
        source = tensor if factor is None or self.rank() == root else tensor * factor
        if factor is not None and source is tensor:
            tensor.mul_(factor)
        out = tensor if self.rank() == root else None
        return self._issue(
            "reduce",
            lambda b: self._comm.reduce(source, op=name, root=root, out=out, blocking=b),
            is_async(opts),
            [tensor],
        )

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        output = one(outputs)
        blocks = list_of(inputs)
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
        joined = join(blocks)
        if factor is not None:
            joined.mul_(factor)
        target, finish = flat_target(output)
        even = len(set(counts)) == 1
        source = joined.view(self._size, -1) if even else joined
        return self._issue(
            "reduce_scatter",
            lambda b: self._comm.reduce_scatter(
                source, op=op, counts=None if even else counts, out=target, blocking=b
            ),
            is_async(opts),
            blocks,
            [output],
            finish,
        )

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        if self._elsewhere(output):
            return super()._reduce_scatter_base(output, input, opts)
        call, finish = self._reduce_scatter_call(output, input, opts)
        return self._issue("_reduce_scatter_base", call, is_async(opts), [input], [output], finish)

    def _reduce_scatter_call(self, output: Any, input: Any, opts: Any) -> tuple[Any, Any]:
        op, factor = self._op(opts)
        if input.numel() != output.numel() * self._size:
            raise ValueError("input tensor must be the same size as output size times world size")
        if input.dtype != output.dtype:
            raise ValueError("input tensor must be the same type as the output tensor.")
        source = input.detach().reshape(self._size, -1)
        if factor is not None:
            source = source * factor
        target, finish = flat_target(output)
        comm = self._comm
        return (lambda b: comm.reduce_scatter(source, op=op, out=target, blocking=b)), finish

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        if not outputs:
            return DONE
        if self._elsewhere(outputs[0]):
            return super().reduce_scatter_tensor_coalesced(outputs, inputs, opts)
        calls = [self._reduce_scatter_call(*pair, opts) for pair in zip(outputs, inputs, strict=True)]
        return self._issue_all("reduce_scatter_tensor_coalesced", calls, is_async(opts), inputs, outputs)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
