"""Sums of sparse tensors, done as gloo does them: everybody gets all entries and adds them up."""

from __future__ import annotations

from typing import Any

import torch


def allreduce(group: Any, tensor: Any, op: str, is_async: bool) -> Any:
    """Sum a sparse COO tensor over the ranks, in place; the ranks may have different numbers of entries."""
    if tensor.layout is not torch.sparse_coo:
        raise ValueError(
            f"all_reduce: unsupported layout {tensor.layout}; convert the tensor with to_sparse_coo()"
        )
    if op != "sum":
        raise ValueError("all_reduce: Sparse allreduce only works with ReduceOp.SUM.")
    own = tensor.detach().coalesce()
    comm = group._comm

    def run() -> None:
        kinds = comm.allgather_object((tuple(own.shape), own.sparse_dim(), own.dtype, own._nnz()))
        if len({kind[:3] for kind in kinds}) != 1:
            raise ValueError(
                f"all_reduce: the sparse tensors must be alike in shape, sparse dimensions and dtype, got {kinds}"
            )
        counts = [kind[3] for kind in kinds]
        indices = comm.allgather(own.indices().t().contiguous(), counts=counts)
        values = comm.allgather(own.values().contiguous(), counts=counts)
        total = torch.sparse_coo_tensor(indices.t(), values, own.shape, check_invariants=False).coalesce()
        with torch.no_grad():
            tensor.copy_(total)

    return group._issue(
        "all_reduce", lambda blocking: comm.run("allreduce", run, blocking), is_async, [tensor]
    )
