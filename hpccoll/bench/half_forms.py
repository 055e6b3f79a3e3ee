"""``mpirun -n 4 python -m hpccoll.bench.half_forms``: which form of a half-precision allreduce is fastest, by size.

Each form against a float32 allreduce of the same number of bytes; docs/performance.md has results. The crossover,
:data:`hpccoll.half.EXCHANGE_BLOCK_BYTES`, was chosen by it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hpccoll import half
from hpccoll.aborting import run_program
from hpccoll.comm import Comm, world
from hpccoll.units import format_bytes

_SIZES = [8, *(1 << power for power in (12, 16, 18, 19, 20, 21, 22, 24))]
_ROUNDS = 9
_FORMS = {"wide": (False, 1 << 60), "exchange": (False, 0), "pair": (True, 0)}


@contextmanager
def _only(form: str) -> Iterator[None]:
    pairs, block_bytes = _FORMS[form]
    saved = half.EXCHANGE_BLOCK_BYTES, half.pair_operation
    half.EXCHANGE_BLOCK_BYTES = block_bytes
    if not pairs:
        half.pair_operation = lambda dtype, op: None  # type: ignore[assignment]
    try:
        yield
    finally:
        half.EXCHANGE_BLOCK_BYTES, half.pair_operation = saved


def _time_us(comm: Comm, call: Callable[[], Any], calls: int) -> float:
    comm.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return float(comm.allreduce((time.perf_counter() - start) / calls * 1e6, op="max"))


def main(argv: Any = None) -> int:
    """Print, for both half types and each size, the time of float32 and each form's median ratio to it."""
    comm = world()
    forms = [form for form in _FORMS if form != "pair" or comm.size == 2]
    if comm.rank == 0:
        print(f"{'':>10}{'':>10}{'float32 us':>12}" + "".join(f"{form:>10}" for form in forms))
    for dtype in (torch.bfloat16, torch.float16):
        for nbytes in _SIZES:
            x, reference = torch.zeros(nbytes // 2, dtype=dtype), torch.zeros(nbytes // 4)
            calls = max(3, min(100, (1 << 24) // nbytes))
            times: dict[str, list[float]] = {form: [] for form in ("float32", *forms)}
            for _ in range(_ROUNDS):
                times["float32"].append(
                    _time_us(comm, lambda r=reference: comm.allreduce(r, out=r), calls)  # type: ignore[misc]
                )
                for form in forms:
                    with _only(form):
                        times[form].append(_time_us(comm, lambda x=x: comm.allreduce(x, out=x), calls))  # type: ignore[misc]
            if comm.rank == 0:
                base = times["float32"]
                ratios = [
                    statistics.median(a / b for a, b in zip(times[form], base, strict=True)) for form in forms
                ]
                name = str(dtype).removeprefix("torch.")
                print(
                    f"{name:>10}{format_bytes(nbytes):>10}{statistics.median(base):12.1f}"
                    + "".join(f"{ratio:10.2f}" for ratio in ratios),
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    run_program(main)
