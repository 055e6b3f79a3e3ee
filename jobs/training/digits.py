"""The data: 1,797 handwritten digits of 8 x 8 pixels, which come with scikit-learn."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

import hpccoll as hc
from training.options import UsageError

_TEST = 360


class Digits(NamedTuple):
    """Images (rows of 64 numbers from 0 to 1) and their digits, the same on every rank."""

    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor


def load(comm: hc.Comm, dtype: torch.dtype, device: torch.device) -> Digits:
    """Load the data on rank 0, so that one rank needs scikit-learn, and send them to all."""
    images = digits = None
    problem = ""
    if comm.rank == 0:
        try:
            from sklearn.datasets import load_digits

            images, digits = load_digits(return_X_y=True)
        except ImportError as error:
            problem = f"the data need scikit-learn: pip install scikit-learn, or '.[train]' ({error})"
    problem, images, digits = comm.broadcast_object((problem, images, digits))
    if problem:
        raise UsageError(problem)
    order = np.random.default_rng(0).permutation(len(digits))  # the file is sorted by writer
    x = torch.from_numpy(images[order] / 16).to(device, dtype)
    y = torch.from_numpy(digits[order].astype(np.int64)).to(device)
    return Digits(x[_TEST:], y[_TEST:], x[:_TEST], y[:_TEST])
