"""How much faster more ranks are, and what part of a step is communication: the first ranks in turn, as one job."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import torch.distributed as dist

import hpccoll as hc
from training.digits import Digits
from training.journal import summary
from training.options import Options
from training.trainer import Trainer

_WARM_UP = 5
_LOOK_S = 0.005


def sizes_up_to(ranks: int) -> list[int]:
    """1, 2, 4 ... and all of them."""
    powers = [1 << power for power in range(ranks.bit_length()) if 1 << power < ranks]
    return [*powers, ranks]


def measure(options: Options, comm: hc.Comm, data: Digits) -> list[dict[str, Any]]:
    """Time steps on more and more ranks, each with ``--batch-size`` rows, and print a row for each number of ranks.

    Efficiency is the throughput of n ranks relative to n times that of one.
    """
    found: list[dict[str, Any]] = []
    for size in sizes_up_to(comm.size):
        row = _measure(options, comm, data, size)
        if comm.rank == 0:
            if not found:
                print(
                    "ranks   samples/s  efficiency   step ms  sync busy ms  sync wait ms  wait share",
                    flush=True,
                )
            first = found[0] if found else row
            row["efficiency"] = row["samples_per_s"] / (size * first["samples_per_s"])
            print(
                f"{size:5d}  {row['samples_per_s']:10.0f}  {row['efficiency']:10.3f}  {1e3 * row['step_s']:8.3f}"
                f"  {1e3 * row['sync_busy_s']:12.3f}  {1e3 * row['sync_wait_s']:12.3f}  {row['sync_wait_share']:10.3f}",
                flush=True,
            )
            found.append(row)
    return found


def _measure(options: Options, comm: hc.Comm, data: Digits, size: int) -> dict[str, Any]:
    """On the first `size` ranks: the means over steps and ranks, and the throughput of all together."""
    group = None if options.without_ddp else dist.new_group(list(range(size)))
    part = comm.split(0 if comm.rank < size else None, comm.rank)
    row: dict[str, Any] = {}
    if part is not None:
        weak = dataclasses.replace(options, batch_size=options.batch_size * size)
        trainer = Trainer(weak, part, data, group)
        steps = [trainer.step(number) for number in range(_WARM_UP + options.scaling)][_WARM_UP:]
        lists = part.allgather_object(summary(steps))
        row = {"ranks": size, **{name: sum(one[name] for one in lists) / size for name in lists[0]}}
        row["samples_per_s"] = weak.batch_size / max(one["step_s"] for one in lists)
        trainer.close()
        part.free()
    # The others must not take the cores of those that work.
    meeting = comm.mpi.Ibarrier()
    while not meeting.Test():
        time.sleep(_LOOK_S)
    if group is not None and part is not None:
        dist.destroy_process_group(group)
    return row
