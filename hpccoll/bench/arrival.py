"""What a barrier has to be proved to do: nobody leaves it before everybody has entered.

Two checks, neither of which can blame a correct barrier.

`check_order`: on the ranks of one host, which share a clock, for every timed call.

`prove_waiting`: across hosts, without clocks. One rank holds back; the others enter, and each sends it a
message when it leaves. If such a message is there before the late rank has entered, its sender did not wait.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from hpccoll.bench.storage import Wrong
from hpccoll.bench.timing import Block

__all__ = ["check_order", "prove_waiting"]

_TAG = 77
_MOST_ROUNDS = 8  # and the last rank, if it is not among them
_HOLD_S = 0.02


def check_order(block: Block, node: Any) -> list[Wrong]:
    """Calls that this rank left before another rank of its host had entered them.

    Parameters
    ----------
    block
        Times of this rank.
    node
        mpi4py communicator of the ranks that share this host's clock.
    """
    entries = np.empty((node.size, block.entered_ns.size), np.int64)
    node.Allgather(block.entered_ns, entries)
    last = entries.max(axis=0)
    early = np.flatnonzero(block.left_ns < last)
    if not early.size:
        return []
    index = int(early[0])
    rank = int(entries[:, index].argmax())
    text = (
        f"index {index}: expected to leave after the last rank had entered, found that it left "
        f"{(last[index] - block.left_ns[index]) / 1e3:.1f} us before rank {rank} of this host had"
    )
    return [Wrong(int(early.size), text)]


def prove_waiting(call: Any, control: Any) -> list[Wrong]:
    """Let some ranks be late in turn, and find out whether the others waited for them.

    Returns
    -------
    list of Wrong
        On the late rank, one entry for each rank that left before it had entered.
    """
    wrong = []
    rounds = min(control.size, _MOST_ROUNDS)
    for late in sorted({control.size * i // rounds for i in range(rounds)} | {control.size - 1}):
        control.Barrier()
        if control.rank == late:
            wrong += [
                Wrong(
                    1, f"index {late}: expected rank {rank} to wait for rank {late}, found that it left early"
                )
                for rank in _early(control)
            ]
        call()
        if control.rank == late:
            for rank in range(control.size):
                if rank != late:
                    control.Recv(bytearray(1), rank, _TAG)
        else:
            control.Send(bytearray(1), late, _TAG)
    return wrong


def _early(control: Any) -> list[int]:
    """Ranks whose message comes while this rank holds back."""
    others = set(range(control.size)) - {control.rank}
    found: set[int] = set()
    until = time.monotonic() + _HOLD_S
    while found != others and time.monotonic() < until:
        # Again and again: MPI may take in no more than one message each time it is called.
        found.update(rank for rank in others - found if control.Iprobe(rank, _TAG))
        time.sleep(_HOLD_S / 20)
    return sorted(found)
