"""The command that starts a job, per launcher: pure functions from what is wanted to what is run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from hpccoll.errors import ArgumentError
from hpccoll.probe import Mpi

__all__ = [
    "Command",
    "Host",
    "Job",
    "exported_names",
    "mpirun_command",
    "parse_hosts",
    "placement",
    "srun_command",
]

# What the ranks need of this shell on other hosts. mpirun over ssh hands on its own variables only.
_NAMES = (
    "LD_LIBRARY_PATH",
    "PATH",
    "PYTHONHOME",
    "PYTHONNOUSERSITE",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
)
_PREFIXES = ("HPCCOLL_", "OMP_", "MPI4PY_", "MKL_", "OPENBLAS_", "KMP_", "GOMP_")
# A cut link is noticed after this many seconds without an answer, and as many probes, one a second.
_KEEPALIVE = (("time", 3), ("intvl", 1), ("probes", 3))


@dataclass(frozen=True)
class Host:
    """A host and how many ranks it takes; None where that was not said."""

    name: str
    slots: int | None = None


@dataclass(frozen=True)
class Job:
    """What is to be started.

    Attributes
    ----------
    ranks : int
    program : tuple of str
        Command line of one rank.
    hosts : tuple of Host
        Empty: this host, or those of the allocation.
    per_host, cpus_per_rank : int or None
        None: the launcher's choice.
    oversubscribe : bool
        More ranks than cores are wanted.
    exports : tuple of str
        Names of the variables that the ranks need.
    as_root : bool
        The user is root.
    """

    ranks: int
    program: tuple[str, ...]
    hosts: tuple[Host, ...] = ()
    per_host: int | None = None
    cpus_per_rank: int | None = None
    oversubscribe: bool = False
    exports: tuple[str, ...] = ()
    as_root: bool = False


@dataclass(frozen=True)
class Command:
    """What is run: the words, and the variables that are set and unset for it."""

    argv: tuple[str, ...]
    setting: Mapping[str, str] = field(default_factory=dict)
    unsetting: tuple[str, ...] = ()

    def shell(self) -> str:
        """The command as one line for a shell."""
        env: list[str] = []
        if self.setting or self.unsetting:
            env = ["env", *(word for name in self.unsetting for word in ("-u", name))]
            env += [f"{name}={value}" for name, value in sorted(self.setting.items())]
        return shlex.join([*env, *self.argv])

    def environment(self, outer: Mapping[str, str]) -> dict[str, str]:
        """`outer` with what the command sets and unsets."""
        kept = {name: value for name, value in outer.items() if name not in (*self.unsetting, "_")}
        # As a shell does. It is the last one on purpose: Hydra 5.0.2 forgets the last variable of its environment
        # when it gathers those of -genvlist.
        return {**kept, **self.setting, "_": self.argv[0]}


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Hosts from ``a:4,b:4`` or from the lines of a host file (``a:4``, ``a slots=4``, ``a`` or a comment).

    A host that is named several times takes that many ranks, or the sum of its numbers.

    Raises
    ------
    ArgumentError
        Naming the entry that is none of these.
    """
    found: dict[str, int | None] = {}
    for line in text.splitlines():
        name = ""
        words = line.partition("#")[0].replace(",", " ").split()
        for word in words:
            if word.startswith(("slots=", "max_slots=", "max-slots=")) and name:
                if word.startswith("slots="):
                    found[name] = _slots(word.partition("=")[2], line)
                continue
            name, colon, number = word.rpartition(":") if ":" in word else (word, "", "")
            if not name or name.startswith("-"):
                raise ArgumentError(
                    f"hosts: {word!r} is not a host name with an optional number of ranks (node1:4)"
                )
            slots = _slots(number, line) if colon else None
            if name in found:
                slots = (found[name] or 1) + (slots or 1)
            found[name] = slots
    return tuple(Host(name, slots) for name, slots in found.items())


def _slots(text: str, line: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ArgumentError(f"hosts: {line.strip()!r}: the number of ranks must be 1 or more, not {text!r}")
    return int(text)


def placement(job: Job) -> tuple[tuple[str, int], ...]:
    """Ranks of each host, in order: filled one after the other; evenly where the numbers were not given.

    Raises
    ------
    ArgumentError
        If the hosts do not take all ranks and `oversubscribe` is off.
    """
    if not job.hosts:
        return ()
    even = -(-job.ranks // len(job.hosts))
    room = [job.per_host or host.slots or even for host in job.hosts]
    if sum(room) < job.ranks:
        if not job.oversubscribe or job.per_host:
            places = ", ".join(f"{host.name}:{slots}" for host, slots in zip(job.hosts, room, strict=True))
            raise ArgumentError(
                f"{job.ranks} ranks, but the hosts take {sum(room)} ({places}); name more hosts, raise their numbers, "
                "or ask for fewer ranks (for a test: --oversubscribe)"
            )
        room = [max(slots, even) for slots in room]
    left, placed = job.ranks, []
    for host, slots in zip(job.hosts, room, strict=True):
        placed.append((host.name, min(slots, left)))
        left -= placed[-1][1]
    return tuple((name, ranks) for name, ranks in placed if ranks)


def exported_names(environ: Mapping[str, str], more: Sequence[str] = ()) -> tuple[str, ...]:
    """Variables of `environ` that the ranks on other hosts need too, sorted; `more` are added if they are set."""
    return tuple(
        sorted(name for name in environ if name in _NAMES or name.startswith(_PREFIXES) or name in more)
    )


def mpirun_command(job: Job, mpi: Mpi, in_slurm: bool = False) -> Command:
    """How the mpirun of `mpi` starts `job`.

    Parameters
    ----------
    job, mpi
        What to start, and the MPI that its ranks load.
    in_slurm
        Inside an allocation, where mpirun finds the hosts by itself.

    Raises
    ------
    ArgumentError
        If the MPI is unknown or has no mpirun.
    """
    if not mpi.mpirun:
        raise ArgumentError(
            f"there is no mpirun beside {mpi.library or 'the MPI library'} ({mpi.version}), nor one of it in PATH; "
            "load the site's module, or use --launcher srun inside a Slurm job"
        )
    builders = {"Open MPI": _open_mpi, "MPICH": _mpich, "Intel MPI": _intel_mpi}
    if mpi.flavour not in builders:
        raise ArgumentError(
            f"no rule for the mpirun of {mpi.version!r} ({mpi.library}); use its launcher directly"
        )
    return builders[mpi.flavour](job, mpi, in_slurm)


def _open_mpi(job: Job, mpi: Mpi, in_slurm: bool) -> Command:
    argv = [mpi.mpirun, "-n", str(job.ranks)]
    if job.as_root:
        argv.append("--allow-run-as-root")
    placed = placement(job)
    if placed:
        argv += ["--host", ",".join(f"{name}:{ranks}" for name, ranks in placed)]
    argv += _open_mpi_mapping(job, mpi.major)
    runtime = "--prtemca" if mpi.major >= 5 else "--mca"
    for name, value in _KEEPALIVE:
        argv += [runtime, f"oob_tcp_keepalive_{name}", str(value)]
    if job.oversubscribe:
        argv += ["--mca", "mpi_yield_when_idle", "1"]
    for name in job.exports:
        argv += ["-x", name]
    return Command((*argv, *job.program))


def _open_mpi_mapping(job: Job, major: int) -> list[str]:
    # Without a policy before it, "oversubscribe" alone puts every rank on the first host.
    policy = f"ppr:{job.per_host}:node" if job.per_host else "slot"
    if job.oversubscribe:
        word = "oversubscribe" if major >= 5 else "OVERSUBSCRIBE"
        return ["--map-by", f"{policy}:{word}", "--bind-to", "none"]
    if job.cpus_per_rank:
        policy += f":PE={job.cpus_per_rank}"
    return ["--map-by", policy, "--bind-to", "core"]


def _mpich(job: Job, mpi: Mpi, in_slurm: bool) -> Command:
    argv = [mpi.mpirun, "-n", str(job.ranks)]
    placed = placement(job)
    if placed:
        argv += ["-hosts", ",".join(f"{name}:{ranks}" for name, ranks in placed)]
    elif job.per_host:
        argv += ["-ppn", str(job.per_host)]
    if not job.oversubscribe:
        argv += ["-bind-to", f"core:{job.cpus_per_rank or 1}"]
    if job.exports:
        argv += ["-genvlist", ",".join(job.exports)]
    # Hydra starts its helpers by srun, and they are not ranks.
    return Command((*argv, *job.program), {"SLURM_MPI_TYPE": "none"} if in_slurm else {})


def _intel_mpi(job: Job, mpi: Mpi, in_slurm: bool) -> Command:
    # Its mpirun is a script that wants its own directory in PATH; this is what it ends in.
    argv = [str(PurePath(mpi.mpirun).with_name("mpiexec.hydra"))]
    if job.exports:
        argv += ["-genvlist", ",".join(job.exports)]
    placed = placement(job)
    if placed:
        # Its -hosts takes no numbers: one part a host.
        parts = [["-n", str(ranks), "-host", name, *job.program] for name, ranks in placed]
        argv += [word for part in parts for word in (":", *part)][1:]
    else:
        argv += ["-n", str(job.ranks)]
        argv += ["-ppn", str(job.per_host)] if job.per_host else []
        argv += job.program
    pinning = (
        {"I_MPI_PIN": "0"} if job.oversubscribe else {"I_MPI_PIN_DOMAIN": f"{job.cpus_per_rank or 1}:compact"}
    )
    if job.oversubscribe:
        pinning["I_MPI_WAIT_MODE"] = "1"
    return Command(tuple(argv), pinning, ("I_MPI_PMI_LIBRARY",))  # Slurm's, and mpirun has its own


def srun_command(job: Job, pmi: str, pmi_library: str | None = None) -> Command:
    """How srun starts `job` inside an allocation.

    Parameters
    ----------
    job
        What to start.
    pmi
        The ``--mpi=`` type that its MPI speaks.
    pmi_library
        Slurm's PMI library, for Intel MPI.
    """
    argv = ["srun", f"--mpi={pmi}", f"--ntasks={job.ranks}", "--kill-on-bad-exit=1", "--export=ALL"]
    placed = placement(job)
    counts = {ranks for _, ranks in placed}
    if len(counts) > 1:
        raise ArgumentError(
            "srun gives every host the same number of ranks, and --hosts asks for different ones; "
            "use --launcher mpirun for that"
        )
    per_host = job.per_host or (counts.pop() if counts else None)
    if placed:
        argv += [f"--nodes={len(placed)}", f"--nodelist={','.join(name for name, _ in placed)}"]
    if per_host:
        argv.append(f"--ntasks-per-node={per_host}")
    # srun does not inherit sbatch's --cpus-per-task from Slurm 22.05 on.
    if job.cpus_per_rank:
        argv.append(f"--cpus-per-task={job.cpus_per_rank}")
    if job.oversubscribe:
        argv += ["--overcommit", "--cpu-bind=none"]
    else:
        argv.append("--cpu-bind=cores")
    setting = {"OMPI_MCA_mpi_yield_when_idle": "1"} if job.oversubscribe else {}
    if pmi_library:
        setting["I_MPI_PMI_LIBRARY"] = pmi_library
    return Command((*argv, *job.program), setting)
