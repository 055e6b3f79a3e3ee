"""The training itself: one rank's share of every step, and the evaluation of all ranks together."""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import DistributedSampler, TensorDataset

import hpccoll as hc
from training.digits import Digits
from training.options import Options, UsageError
from training.synchronising import Clock, OverComm, OverDdp

_SEEDS_A_STEP = 1_000_003


class Step(NamedTuple):
    """One step on this rank: mean loss of its rows, their number, and seconds."""

    loss: float
    rows: int
    step_s: float
    sync_busy_s: float
    sync_wait_s: float


class Trainer:
    """A model with its optimizer on one rank of `comm`; every rank makes one.

    Attributes
    ----------
    steps_per_epoch : int
        Steps with a whole batch; what is left over of the data is another part in each epoch.
    """

    def __init__(self, options: Options, comm: hc.Comm, data: Digits, group: Any = None):
        if options.batch_size % (comm.size * options.accumulate):
            raise UsageError(
                f"--batch-size {options.batch_size} cannot be divided among {comm.size} ranks with --accumulate "
                f"{options.accumulate}: give a multiple of {comm.size * options.accumulate}"
            )
        if options.batch_size > len(data.train_y):
            raise UsageError(f"--batch-size must be {len(data.train_y)} at most, the rows of the data")
        self.options, self.comm, self.data = options, comm, data
        self.rows = options.batch_size // comm.size
        self.steps_per_epoch = len(data.train_y) // options.batch_size
        self._device = data.train_x.device
        # What a rank draws is its own; the parameters are rank 0's on all of them.
        torch.manual_seed(options.seed + comm.rank)
        self.model = _make_model(options.hidden).to(self._device, data.train_x.dtype)
        self._clock = Clock(self._device)
        self._sync = (
            OverComm(self.model, options, comm)
            if options.without_ddp
            else OverDdp(self.model, options, self._clock, group)
        )
        self._optimizer = torch.optim.SGD(self.model.parameters(), options.lr, options.momentum)
        # Data that do not fit into memory: a DataLoader with this sampler (workers: docs/torch.md).
        self._sampler: DistributedSampler[Any] = DistributedSampler(
            TensorDataset(data.train_y), comm.size, comm.rank, shuffle=True, seed=options.seed, drop_last=True
        )
        self._epoch, self._order = -1, torch.empty(0)
        # DDP arranges its buckets after the first backward pass. Without this one, a run that goes on would add up in
        # another order than one that was never stopped.
        self._backward(torch.arange(self.rows))
        self._optimizer.zero_grad()

    def step(self, number: int) -> Step:
        """Do step `number`, from 0; what is drawn and which rows are taken depends on the number alone."""
        epoch, place = divmod(number, self.steps_per_epoch)
        if epoch != self._epoch:
            self._sampler.set_epoch(epoch)
            self._epoch, self._order = epoch, torch.tensor(list(self._sampler))
        torch.manual_seed(self.options.seed + _SEEDS_A_STEP * number + self.comm.rank)
        self._clock.wait()
        began = self._clock.mark()
        self._optimizer.zero_grad()
        loss, times = self._backward(self._order[place * self.rows : (place + 1) * self.rows])
        self._optimizer.step()
        ended = self._clock.mark()
        self._clock.wait()
        return Step(loss.item(), self.rows, self._clock.seconds(began, ended), times.busy_s, times.waited_s)

    def _backward(self, rows: torch.Tensor) -> tuple[torch.Tensor, Any]:
        parts = rows.to(self._device).chunk(self.options.accumulate)
        total = torch.zeros((), device=self._device)
        for part in parts:
            # Only the last part sends: the gradients of all of them have added up by then.
            with contextlib.nullcontext() if part is parts[-1] else self._sync.no_sync():
                scores = self._sync.forward(self.data.train_x[part])
                loss = nn.functional.cross_entropy(scores, self.data.train_y[part]) / len(parts)
                loss.backward()
            total += loss.detach()
        return total, self._sync.finish()

    def evaluate(self) -> tuple[float, float]:
        """Accuracy and mean loss on the test images; each rank takes its share of them."""
        mine = slice(self.comm.rank, None, self.comm.size)
        y = self.data.test_y[mine]
        self.model.eval()
        with torch.no_grad():
            scores = self.model(self.data.test_x[mine])
            loss = nn.functional.cross_entropy(scores, y, reduction="sum").item()
        self.model.train()
        sums = np.array([(scores.argmax(1) == y).sum().item(), loss, len(y)], np.float64)
        right, loss, count = self.comm.allreduce(sums)
        return right / count, loss / count

    def state(self) -> dict[str, Any]:
        """What has to be kept to go on; the same on every rank."""
        return {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what `state` gave."""
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def digest(self) -> str:
        """Digest of every bit of parameters, buffers and the optimizer's momentum; every rank has to call it.

        Raises
        ------
        RuntimeError
            On every rank, if the ranks have not the same bits.
        """
        sums = hashlib.sha256()
        moments = [self._optimizer.state[x].get("momentum_buffer") for x in self.model.parameters()]
        for tensor in [*self.model.state_dict().values(), *(x for x in moments if x is not None)]:
            sums.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        found = self.comm.allgather_object(sums.hexdigest())
        other = [rank for rank, digest in enumerate(found) if digest != found[0]]
        if other:
            raise RuntimeError(f"the parameters of ranks {other} are no longer those of rank 0")
        return found[0]

    def close(self) -> None:
        self._sync.close()


def _make_model(hidden: int) -> nn.Module:
    layers = [nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10)]
    return nn.Sequential(*layers)
