"""torch.distributed over mpi and over gloo in one run: collectives, DDP, and what the backend costs.

Blocks of calls alternate between what is compared, so that drift of the machine meets all alike; a block's time is
that of its slowest rank. Shown are the medians over the rounds, and the median of the rounds' ratios.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hpccoll.units import format_bytes

__all__ = ["PARTS", "run_comparison"]

Rows = list[dict[str, Any]]
_BLOCK_S = 0.02
_MOST_CALLS = 200


class Bench:
    """The groups, and the measuring that all parts share."""

    def __init__(self, rounds: int):
        self.rounds = rounds
        self.control = MPI.COMM_WORLD.Dup()
        self.size: int = self.control.size
        self.groups = {"mpi": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}

    def compare(
        self, calls: dict[str, Callable[[], Any]], count: int | None = None
    ) -> dict[str, list[float]]:
        """Microseconds per call of each, one for every round."""
        counts = {name: count or self._calls_per_block(call) for name, call in calls.items()}
        times: dict[str, list[float]] = {name: [] for name in calls}
        for number in range(self.rounds):
            names = list(calls) if number % 2 else list(calls)[::-1]
            for name in names:
                times[name].append(self._block(calls[name], counts[name]))
        return times

    def _block(self, call: Callable[[], Any], count: int) -> float:
        self.control.Barrier()
        start = time.perf_counter()
        for _ in range(count):
            call()
        elapsed = time.perf_counter() - start
        return self.control.allreduce(elapsed, MPI.MAX) / count * 1e6

    def once(self, call: Callable[[], Any]) -> float:
        """Microseconds of a call; the best of three after one to warm up."""
        self._block(call, 1)
        return min(self._block(call, 1) for _ in range(3))

    def _calls_per_block(self, call: Callable[[], Any]) -> int:
        first = self._block(call, 2)
        return max(1, min(_MOST_CALLS, int(_BLOCK_S * 1e6 / first)))

    def say(self, line: str = "") -> None:
        if self.control.rank == 0:
            print(line, flush=True)


def run_comparison(parts: Sequence[str], sizes: Sequence[int], rounds: int, json_target: str | None) -> int:
    """Run the parts on the process group that there is, print their tables on rank 0, and write all rows to a file.

    The group was made before this module was imported: how MPI waits is settled when it starts.
    """
    bench = Bench(rounds)
    bench.say(
        f"# torch {torch.__version__}, {bench.size} ranks on {os.cpu_count()} cores, "
        f"{MPI.Get_library_version().splitlines()[0].split(',')[0]}; {rounds} rounds, medians of the slowest rank"
    )
    found = {part: PARTS[part](bench, sizes) for part in parts}
    if json_target and bench.control.rank == 0:
        with open(json_target, "w", encoding="utf-8") as file:
            json.dump(
                {"format": "hpccoll.torch_bench/1", "torch": torch.__version__, **found}, file, indent=1
            )
    return 0


# ---- Collectives


def _collectives(bench: Bench, sizes: Sequence[int]) -> Rows:
    bench.say(f"\n{'collective':>15} {'bytes':>9} {'mpi us':>10} {'gloo us':>10} {'gloo/mpi':>9}")
    rows = []
    for name, make in _CALLS.items():
        for nbytes in sizes:
            calls = {backend: make(nbytes, bench.size, group) for backend, group in bench.groups.items()}
            times = bench.compare(calls)
            row = {
                "collective": name,
                "nbytes": nbytes,
                **_medians(times),
                "ratio": _ratio(times, "gloo", "mpi"),
            }
            rows.append(row)
            bench.say(
                f"{name:>15} {format_bytes(nbytes):>9} {row['mpi_us']:10.1f} {row['gloo_us']:10.1f} {row['ratio']:9.1f}"
            )
    return rows


def _medians(times: dict[str, list[float]]) -> dict[str, float]:
    return {f"{name}_us": statistics.median(values) for name, values in times.items()}


def _ratio(times: dict[str, list[float]], above: str, below: str) -> float:
    return statistics.median(a / b for a, b in zip(times[above], times[below], strict=True))


def _floats(nbytes: int, parts: int = 1) -> Any:
    return torch.zeros(max(parts, nbytes // 4 // parts * parts))


def _all_reduce(nbytes: int, size: int, group: Any) -> Callable[[], Any]:
    x = _floats(nbytes)
    return lambda: dist.all_reduce(x, group=group)


def _broadcast(nbytes: int, size: int, group: Any) -> Callable[[], Any]:
    x = _floats(nbytes)
    return lambda: dist.broadcast(x, 0, group=group)


def _all_gather(nbytes: int, size: int, group: Any) -> Callable[[], Any]:
    whole = _floats(nbytes, size)
    part = torch.zeros(whole.numel() // size)
    return lambda: dist.all_gather_into_tensor(whole, part, group=group)


def _all_gather_list(nbytes: int, size: int, group: Any) -> Callable[[], Any]:
    parts = list(_floats(nbytes, size).chunk(size))
    mine = torch.zeros(parts[0].numel())
    return lambda: dist.all_gather(parts, mine, group=group)


def _reduce_scatter(nbytes: int, size: int, group: Any) -> Callable[[], Any]:
    whole = _floats(nbytes, size)
    part = torch.zeros(whole.numel() // size)
    return lambda: dist.reduce_scatter_tensor(part, whole, group=group)


def _all_to_all(nbytes: int, size: int, group: Any) -> Callable[[], Any]:
    whole = _floats(nbytes, size)
    other = torch.empty_like(whole)
    return lambda: dist.all_to_all_single(other, whole, group=group)


def _barrier(nbytes: int, size: int, group: Any) -> Callable[[], Any]:
    return lambda: dist.barrier(group=group)


_CALLS = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather_list": _all_gather_list,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
}


# ---- What the backend costs


def _overhead(bench: Bench, sizes: Sequence[int]) -> Rows:
    bench.say(
        f"\n{'all_reduce':>15} {'bytes':>9} {'mpi4py us':>10} {'dist us':>10} {'extra us':>9} {'least extra':>12}"
    )
    rows = []
    comm = MPI.COMM_WORLD.Dup()
    for nbytes in (4, 1024, 65536):
        x = _floats(nbytes)
        memory = [MPI.memory.fromaddress(x.data_ptr(), x.nbytes), x.numel(), MPI.FLOAT]
        calls: dict[str, Callable[[], Any]] = {
            "raw": partial(comm.Allreduce, MPI.IN_PLACE, memory),
            "dist": partial(dist.all_reduce, x),
        }
        times = bench.compare(calls, count=500 if nbytes < 10000 else None)
        extra = statistics.median(b - a for a, b in zip(times["raw"], times["dist"], strict=True))
        row = {"nbytes": nbytes, **_medians(times), "extra_us": extra}
        row["least_extra_us"] = min(times["dist"]) - min(times["raw"])
        rows.append(row)
        bench.say(
            f"{'':>15} {format_bytes(nbytes):>9} {row['raw_us']:10.2f} {row['dist_us']:10.2f} "
            f"{extra:9.2f} {row['least_extra_us']:12.2f}"
        )
    return rows


def _half(bench: Bench, sizes: Sequence[int]) -> Rows:
    bench.say(
        f"\n{'all_reduce':>15} {'bytes':>9} {'float32 us':>11} {'bfloat16/float32':>17} {'float16/float32':>16}"
    )
    rows = []
    for nbytes in (1 << 20, 1 << 22, 1 << 24):
        tensors = {
            str(dtype).removeprefix("torch."): torch.zeros(nbytes // dtype.itemsize, dtype=dtype)
            for dtype in (torch.float32, torch.bfloat16, torch.float16)
        }
        times = bench.compare({name: partial(dist.all_reduce, x) for name, x in tensors.items()})
        row = {"nbytes": nbytes, **_medians(times)}
        row.update({f"{name}_ratio": _ratio(times, name, "float32") for name in ("bfloat16", "float16")})
        rows.append(row)
        bench.say(
            f"{'':>15} {format_bytes(nbytes):>9} {row['float32_us']:11.1f} "
            f"{row['bfloat16_ratio']:17.2f} {row['float16_ratio']:16.2f}"
        )
    return rows


# ---- Training


def _small_mlp() -> tuple[nn.Module, Any]:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), torch.randn(16, 64)


def _large_mlp() -> tuple[nn.Module, Any]:
    layers = [nn.Linear(1024, 1024) if i % 2 == 0 else nn.ReLU() for i in range(16)]
    return nn.Sequential(*layers), torch.randn(16, 1024)


def _transformer() -> tuple[nn.Module, Any]:
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 4), torch.randn(2, 32, 256)


_MODELS = {"small MLP": _small_mlp, "large MLP": _large_mlp, "transformer": _transformer}


def _step(model: Any, x: Any) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def _ddp(bench: Bench, sizes: Sequence[int]) -> Rows:
    bench.say(f"\n{'DDP step':>15} {'parameters':>11} {'mpi us':>10} {'gloo us':>10} {'gloo/mpi':>9}")
    rows = []
    for name, make in _MODELS.items():
        steps = {}
        for backend, group in bench.groups.items():
            torch.manual_seed(0)
            model, x = make()
            count = sum(parameter.numel() for parameter in model.parameters())
            steps[backend] = _step(DistributedDataParallel(model, process_group=group), x)
            for _ in range(3):  # DDP builds its buckets anew after the first step
                steps[backend]()
        times = bench.compare(steps)
        row = {"model": name, "parameters": count, **_medians(times), "ratio": _ratio(times, "gloo", "mpi")}
        rows.append(row)
        bench.say(f"{name:>15} {count:>11} {row['mpi_us']:10.0f} {row['gloo_us']:10.0f} {row['ratio']:9.2f}")
    return rows


_WIDTH, _LAYERS = 1024, 12


def _overlap(bench: Bench, sizes: Sequence[int]) -> Rows:
    """A backward pass whose gradients take about as long to send as to compute, and half and twice as long."""
    bench.say(
        f"\n{'overlap':>15} {'compute us':>12} {'comm us':>10} {'step us':>10} {'step/(sum)':>11} {'hidden':>7}"
    )
    model, silent = _bucketed(), _bucketed()
    # DDP reads a hook's annotations, and takes no strings for them.
    silent.register_comm_hook(bench.size, lambda size, bucket: _divide_only(size, bucket))
    buckets = [torch.zeros(_WIDTH * _WIDTH) for _ in range(_LAYERS)]

    def communicate() -> None:
        for work in [dist.all_reduce(bucket, async_op=True) for bucket in buckets]:
            work.wait()

    rows = []
    balanced = max(2, _balanced_batch(bench, silent, communicate))
    for batch in (balanced // 2, balanced, balanced * 2):
        x = torch.randn(batch, _WIDTH)
        for _ in range(3):
            _forward_backward(model, x)
        calls: dict[str, Callable[[], Any]] = {
            "compute": partial(_forward_backward, silent, x),
            "comm": communicate,
            "step": partial(_forward_backward, model, x),
        }
        times = bench.compare(calls, count=3)
        rounds = list(zip(times["compute"], times["comm"], times["step"], strict=True))
        row = {
            "batch": batch,
            **_medians(times),
            "ratio": statistics.median(s / (c + m) for c, m, s in rounds),
        }
        row["hidden"] = statistics.median((c + m - s) / min(c, m) for c, m, s in rounds)
        rows.append(row)
        bench.say(
            f"{f'batch {batch}':>15} {row['compute_us']:12.0f} {row['comm_us']:10.0f} {row['step_us']:10.0f} "
            f"{row['ratio']:11.2f} {row['hidden']:7.0%}"
        )
    return rows


def _bucketed() -> Any:
    torch.manual_seed(0)
    return DistributedDataParallel(
        nn.Sequential(*[nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(_LAYERS)]),
        bucket_cap_mb=_WIDTH * _WIDTH * 4 / 2**20,
        gradient_as_bucket_view=True,
    )


def _divide_only(size: int, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Hook of DDP that does what DDP does besides communicating."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer().div_(size))
    return future


def _forward_backward(model: Any, x: Any) -> None:
    model(x).sum().backward()


def _balanced_batch(bench: Bench, silent: Any, communicate: Callable[[], None]) -> int:
    """The batch, a power of two, whose forward and backward pass take about as long as sending the gradients."""
    target = bench.once(communicate)
    batch = 1
    while (
        batch < 1 << 14
        and bench.once(partial(_forward_backward, silent, torch.randn(batch, _WIDTH))) < target * 0.7
    ):
        batch *= 2
    return batch


PARTS: dict[str, Callable[[Bench, Sequence[int]], Rows]] = {
    "collectives": _collectives,
    "overhead": _overhead,
    "half": _half,
    "ddp": _ddp,
    "overlap": _overlap,
}
"""The parts by name, in the order in which they run."""


def silence() -> None:
    """Keep torch's own deprecation warnings out of the tables."""
    if not sys.warnoptions:
        import warnings

        warnings.simplefilter("ignore")
