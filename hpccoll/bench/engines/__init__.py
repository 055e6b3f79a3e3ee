"""What makes the calls that are timed. Buffers, loop and verification are the same for every engine.

``numpy``, ``torch``   methods of `hpccoll.Comm` on arrays and tensors (`comm_engine`)
``mpi4py``             its upper-case methods, with prebuilt specs (`raw_engine`)
``c``                  the loop and the clock in C, on the same MPI (`c_engine`, ``loop.c``)
``torch-mpi``, ``gloo``, ``nccl``   torch.distributed (`torch_engine`)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hpccoll.bench.engines.base import Bound, Engine
from hpccoll.bench.engines.c_engine import CEngine
from hpccoll.bench.engines.comm_engine import CommEngine
from hpccoll.bench.engines.raw_engine import RawEngine
from hpccoll.bench.engines.torch_engine import TorchEngine

__all__ = ["Bound", "Engine", "make_engine"]

_ENGINES: dict[str, Callable[[], Engine]] = {
    "c": CEngine,
    "mpi4py": RawEngine,
    "numpy": partial(CommEngine, "numpy"),
    "torch": partial(CommEngine, "torch"),
    "torch-mpi": partial(TorchEngine, "torch-mpi"),
    "gloo": partial(TorchEngine, "gloo"),
    "nccl": partial(TorchEngine, "nccl"),
}


def make_engine(name: str) -> Engine:
    """The engine with that name; `hpccoll.bench.options.ENGINES` lists them."""
    return _ENGINES[name]()
