"""Programs of these tests find the backend as an installed hpccoll would give it: through torch's entry points."""

from __future__ import annotations

from pathlib import Path

import pytest

JOBS = Path(__file__).parent / "jobs"
HOME = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def entry_points(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder for PYTHONPATH with the entry points of setup.cfg, whether or not hpccoll is installed."""
    import configparser

    setup = configparser.ConfigParser()
    setup.read(HOME / "setup.cfg")
    text = "".join(
        f"[{group}]\n{setup['options.entry_points'][group].strip()}\n\n"
        for group in ("torch.backends", "torch.distributed.backends")
    )
    folder = tmp_path_factory.mktemp("installed")
    info = folder / "hpccoll_for_tests-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hpccoll-for-tests\nVersion: 0\n")
    (info / "entry_points.txt").write_text(text)
    return f"{folder}:{HOME}"
