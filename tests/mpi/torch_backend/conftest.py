"""One process group for the tests of this directory, as a program has; tests that need another make their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from mpi_plugin import need


@pytest.fixture(scope="package", autouse=True)
def process_group() -> Iterator[Any]:
    need("torch")
    os.environ["HPCCOLL_TORCH_ABORT"] = "0"  # the plugin reports the failures
    import torch.distributed as dist

    import hpccoll.torch_backend  # noqa: F401

    dist.init_process_group("mpi")
    yield dist.group.WORLD
    dist.destroy_process_group()
