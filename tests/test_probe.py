"""hpccoll.probe: which MPI a Python loads, and what Slurm offers."""

import os
import sys
from pathlib import Path

import pytest
from conftest import find_mpirun

from hpccoll.probe import Mpi, ProbeError, intel_pmi_library, probe_mpi, slurm_pmi_types


def test_this_python() -> None:
    mpi = probe_mpi(sys.executable, os.environ)
    assert mpi.flavour in mpi.version
    assert Path(mpi.library).is_file()
    assert os.access(mpi.mpirun, os.X_OK)
    assert "package" not in mpi.short


def test_the_mpirun_is_that_of_the_library_and_not_the_first_in_path(tmp_path: Path) -> None:
    (tmp_path / "mpirun").write_text("#!/bin/sh\necho HYDRA\n")
    (tmp_path / "mpirun").chmod(0o755)
    mpi = probe_mpi(sys.executable, {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"})
    assert Path(mpi.mpirun).samefile(find_mpirun())


def test_no_mpi(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match=r"loads no MPI[\s\S]*fix: load the site's MPI module"):
        probe_mpi(sys.executable, {**os.environ, "MPI4PY_LIBMPI": str(tmp_path / "libmpi.so")})
    with pytest.raises(ProbeError, match="cannot ask"):
        probe_mpi(str(tmp_path / "python"), os.environ)


@pytest.mark.parametrize(
    ("body", "types"),
    [
        (
            r"printf 'MPI plugin types are...\n\tpmix\n\tpmi2\nspecific pmix plugin versions available: pmix_v4\n'",
            ["pmi2", "pmix", "pmix_v4"],
        ),
        (r"printf 'srun: MPI types are...\n    pmi2\n' >&2", ["pmi2"]),
        ("echo 'srun: fatal: Could not establish a configuration source' >&2; exit 1", []),
    ],
)
def test_slurm_pmi_types(tmp_path: Path, body: str, types: list[str]) -> None:
    srun = tmp_path / "srun"
    srun.write_text(f"#!/bin/sh\n{body}\n")
    srun.chmod(0o755)
    assert slurm_pmi_types({"PATH": str(tmp_path)}) == types


def test_no_slurm(tmp_path: Path) -> None:
    assert slurm_pmi_types({"PATH": str(tmp_path)}) == []


def test_pmi_library_of_the_user_goes_first() -> None:
    assert intel_pmi_library({"I_MPI_PMI_LIBRARY": "/x/libpmi2.so"}) == "/x/libpmi2.so"


def test_versions_without_their_builder() -> None:
    text = "Open MPI v5.0.11, package: Open MPI user@localhost Distribution"
    assert Mpi("Open MPI", 5, text, "", "").short == "Open MPI v5.0.11"
