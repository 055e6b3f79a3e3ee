"""torch's collectives that move data without computing, and the barrier, in terms of :class:`hpccoll.Comm`."""

from __future__ import annotations

from typing import Any

from hpccoll.torch_backend.arguments import (
    contiguous_target,
    flat_target,
    hand_out,
    is_async,
    join,
    list_of,
    one,
    root_of,
)
from hpccoll.torch_backend.issuing import Issuing
from hpccoll.torch_backend.torch_internals import hide_from_compiler
from hpccoll.torch_backend.work import DONE


@hide_from_compiler
class Moving(Issuing):
    """The movements of a process group."""

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        tensor = one(tensors)
        if self._elsewhere(tensor):
            return super().broadcast([tensor], opts)
        root = root_of(opts)
        return self._issue(
            "broadcast",
            lambda b: self._comm.broadcast(tensor, root=root, blocking=b),
            is_async(opts),
            [tensor],
        )

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        tensor = one(inputs)
        blocks = list_of(outputs)
        if self._elsewhere(tensor):
            return super().allgather([blocks], [tensor], opts)
        call, finish = self._allgather_call(blocks, tensor)
        return self._issue("all_gather", call, is_async(opts), [tensor], blocks, finish)

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
            lambda: hand_out(joined.view(-1), blocks),
        )

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        # torch's own convention: outputs[rank][i] belongs to inputs[i].
        lists = [[per_rank[index] for per_rank in outputs] for index in range(len(inputs))]
        calls = [self._allgather_call(blocks, tensor) for blocks, tensor in zip(lists, inputs, strict=True)]
        flat = [tensor for per_rank in outputs for tensor in per_rank]
        return self._issue_all("all_gather", calls, is_async(opts), inputs, flat)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        if self._elsewhere(input):
            return super()._allgather_base(output, input, opts)
        call, finish = self._allgather_single_call(output, input)
        return self._issue("_allgather_base", call, is_async(opts), [input], [output], finish)

    def _allgather_single_call(self, output: Any, input: Any) -> tuple[Any, Any]:
        if output.numel() != input.numel() * self._size:
            raise ValueError("output tensor size must be equal to world_size times input tensor size")
        if input.dtype != output.dtype:
            raise ValueError("output tensor must have the same type as input tensor")
        source = input.detach().reshape(-1)
        target, finish = flat_target(output)
        rows = target.view(self._size, -1) if target.numel() else target.view(self._size, 0)
        comm = self._comm
        return (lambda b: comm.allgather(source, out=rows, blocking=b)), finish

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        if not outputs:
            return DONE
        if self._elsewhere(outputs[0]):
            return super().allgather_into_tensor_coalesced(outputs, inputs, opts)
        calls = [self._allgather_single_call(*pair) for pair in zip(outputs, inputs, strict=True)]
        return self._issue_all("all_gather_into_tensor_coalesced", calls, is_async(opts), inputs, outputs)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        tensor = one(inputs)
        root = root_of(opts)
        blocks = list_of(outputs) if self.rank() == root else []
        if self._elsewhere(tensor):
            return super().gather([blocks] if blocks else [], [tensor], opts)
        source = tensor.detach().reshape(-1)
        if self.rank() != root:
            return self._issue(
                "gather",
                lambda b: self._comm.gather(source, root=root, blocking=b),
                is_async(opts),
                [tensor],
            )
        self._check_list("gather", "output", blocks, tensor, same_size=True)
        joined = source.new_empty((self._size, source.numel()))
        return self._issue(
            "gather",
            lambda b: self._comm.gather(source, root=root, out=joined, blocking=b),
            is_async(opts),
            [tensor],
            blocks,
            lambda: hand_out(joined.view(-1), blocks),
        )

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        output = one(outputs)
        root = root_of(opts)
        blocks = list_of(inputs) if self.rank() == root else []
        if self._elsewhere(output):
            return super().scatter([output], [blocks] if blocks else [], opts)
        target, finish = flat_target(output)
        source = None
        if self.rank() == root:
            self._check_list("scatter", "input", blocks, output, same_size=True)
            source = join(blocks).view(self._size, output.numel())
        return self._issue(
            "scatter",
            lambda b: self._comm.scatter(source, root=root, out=target, blocking=b),
            is_async(opts),
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
        source = join(inputs)
        joined = source.new_empty(sum(expected))
        return self._issue(
            "all_to_all",
            lambda b: self._comm.alltoall(
                source, send_counts=sent, recv_counts=expected, out=joined, blocking=b
            ),
            is_async(opts),
            inputs,
            outputs,
            lambda: hand_out(joined, outputs),
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
        target, finish = (output.detach(), None) if output.is_contiguous() else contiguous_target(output)
        if not input_splits and not output_splits:
            source, target = source.view(self._size, -1), target.view(self._size, -1)
            sent = expected = None  # type: ignore[assignment]
        return self._issue(
            "all_to_all",
            lambda b: self._comm.alltoall(
                source, send_counts=sent, recv_counts=expected, out=target, blocking=b
            ),
            is_async(opts),
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
        return self._issue("barrier", lambda b: self._comm.barrier(blocking=b), is_async(opts))
