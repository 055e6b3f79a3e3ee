"""A cluster of namespaces with a real Slurm and real sshds (minicluster.sh), for the whole session."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_support import Cluster


def _obstacle() -> str:
    if os.geteuid() != 0:
        return "needs root, for namespaces"
    missing = [
        name for name in ("slurmctld", "munged", "sshd", "ip", "tc", "unshare", "nsenter") if not _there(name)
    ]
    return f"{', '.join(missing)} missing: bash tests/cluster/install.sh" if missing else ""


def _there(name: str) -> bool:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is not None


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three hosts and a head."""
    obstacle = _obstacle()
    if obstacle:
        if os.environ.get("CI") == "true":
            pytest.fail(obstacle)
        pytest.skip(obstacle)
    base = Path(tempfile.mkdtemp(prefix="mc.", dir="/tmp"))  # short: sockets lie below it
    shared = Path(tempfile.mkdtemp(prefix="mcshared.", dir="/tmp"))
    one = Cluster(base, shared)
    try:
        one.must("up")
        yield one
    finally:
        one.control("down")
        shutil.rmtree(base, ignore_errors=True)
        shutil.rmtree(shared, ignore_errors=True)


@pytest.fixture
def place(cluster: Cluster, request: pytest.FixtureRequest) -> Path:
    """A directory with a space in its name that all hosts share."""
    path = cluster.shared / re.sub(r"\W+", " ", request.node.name)
    path.mkdir()
    return path


@pytest.fixture
def mpich() -> str:
    """Python of the environment with MPICH."""
    venv = os.environ.get("HPCCOLL_TEST_MPICH")
    if not venv:
        if os.environ.get("HPCCOLL_TEST_REQUIRE") == "1":
            pytest.fail("HPCCOLL_TEST_MPICH names no environment with MPICH")
        pytest.skip("HPCCOLL_TEST_MPICH names no environment with MPICH")
    return f"{venv}/bin/python"
