"""The ``mpi`` backend of ``torch.distributed`` for a torch without MPI built in.

After ``pip install hpccoll`` this works under any MPI launcher, with no address, port or rank given::

    import torch.distributed as dist

    dist.init_process_group("mpi")

torch loads the backend by itself. With ``TORCH_DEVICE_BACKEND_AUTOLOAD=0``, ``import hpccoll.torch_backend`` does it.
The name ``"hpccoll"`` stands for the same backend and works on any torch, and ``init_method="mpi://"`` lets gloo and
nccl meet over MPI too. docs/torch.md tells the rest.
"""

import sys

try:
    from hpccoll.torch_backend.registration import register, use

    register()
except Exception as error:  # this may run inside ``import torch``, which must never fail for it
    _failure = (
        f"hpccoll: the mpi backend of torch.distributed is not available: {type(error).__name__}: {error}"
    )
    if "torch.distributed" in sys.modules:
        print(_failure, file=sys.stderr)

    def use() -> None:
        """Say why there is no backend."""
        raise RuntimeError(_failure)


__all__ = ["use"]
