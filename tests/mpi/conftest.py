"""Tests of this directory run on all ranks together; see mpi_plugin.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def comm() -> Any:
    """The world. Its traffic is hpccoll's own; the plugin uses another communicator."""
    import hpccoll

    return hpccoll.world()


@pytest.fixture
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """See support.every_way."""
    if request.param.limit < 2**31 - 1:
        from hpccoll import transport

        monkeypatch.setattr(transport, "MAX_COUNT", request.param.limit)
        monkeypatch.setattr(transport, "_BLOCK", 16)
    return request.param


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # The large ones need gigabytes and a minute: they run when the command line names them, ``-m large``.
    wanted = "large" in (config.option.markexpr or "")
    keep, drop = [], []
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.mpi)
            if not wanted and item.get_closest_marker("large"):
                drop.append(item)
                continue
        keep.append(item)
    if drop:
        config.hook.pytest_deselected(items=drop)
        items[:] = keep
