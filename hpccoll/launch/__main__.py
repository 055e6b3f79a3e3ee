"""``python -m hpccoll.launch -n 4 -- -m hpccoll.allreduce`` starts a program with the launcher of its MPI."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hpccoll.aborting import run_program
from hpccoll.bench.options import Parser, UsageError, whole
from hpccoll.environment import detect, usable_cores
from hpccoll.errors import ArgumentError
from hpccoll.launch.commands import (
    Command,
    Host,
    Job,
    exported_names,
    mpirun_command,
    parse_hosts,
    srun_command,
)
from hpccoll.launch.monitor import Monitor
from hpccoll.launch.rank import REPORT
from hpccoll.launch.runner import run, stderr_line
from hpccoll.probe import Mpi, ProbeError, intel_pmi_library, pmi_for, probe_mpi, slurm_pmi_types

__all__ = ["main"]

_USAGE = 2


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a number of seconds is expected, got {text!r}") from None
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"must be more than 0 seconds, got {text}")
    return value


def _parser() -> Parser:
    parser = Parser(
        prog="hpccoll launch",
        description="Builds and runs the right mpirun or srun command for PROGRAM, and watches over its ranks.",
        epilog="PROGRAM is a command, a .py file or -m MODULE; the last two run with this Python. Exit status: the "
        "program's; 124 after --timeout, 69 if ranks or hosts were lost, 128+N after signal N, 2 for a bad option. "
        "More: docs/clusters.md.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-n", "--ranks", type=whole(1), required=True, metavar="N", help="ranks to start")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--hosts", metavar="A:4,B:4", help="hosts, with how many ranks each takes")
    where.add_argument("--hostfile", metavar="FILE", help="the same, one host a line")
    add("--per-host", type=whole(1), metavar="K", help="ranks of each host")
    add("--cpus-per-rank", type=whole(1), metavar="C", help="cores that each rank is bound to (1)")
    add("--oversubscribe", action="store_true", help="more ranks than cores: for tests, not for measuring")
    add(
        "--launcher",
        choices=("auto", "srun", "mpirun"),
        default="auto",
        help="srun inside Slurm jobs, if it can (auto)",
    )
    add("-x", "--export", action="append", default=[], metavar="NAME", help="one more variable for the ranks")
    add("--output-dir", metavar="DIR", help="each rank's output to DIR/rank-00000.out and .err")
    add("--timeout", type=_seconds, metavar="S", help="seconds after which the job is ended")
    add(
        "--start-timeout",
        type=_seconds,
        default=300.0,
        metavar="S",
        help="seconds for all ranks to start (300)",
    )
    add("--no-monitor", action="store_true", help="trust the exit status of mpirun or srun alone")
    add("--dry-run", action="store_true", help="print the command and end")
    add("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM...", help="what each rank runs")
    return parser


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our options, and the program after ``--``."""
    arguments = list(argv)
    if "--" in arguments:
        at = arguments.index("--")
        return arguments[:at], arguments[at + 1 :]
    return arguments, []


def resolve_program(words: Sequence[str], environ: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    """The program with absolute paths, and the Python that it runs in (this one, if it is not Python)."""
    if not words:
        raise UsageError("no program: write -- and then the program, for example -- -m hpccoll.allreduce")
    first = words[0]
    if first == "-m" and len(words) > 1:
        return (sys.executable, *words), sys.executable
    if first.endswith(".py") and Path(first).is_file():
        return (sys.executable, str(Path(first).absolute()), *words[1:]), sys.executable
    found = shutil.which(first, path=environ.get("PATH"))
    if found is None:
        raise UsageError(f"no program {first!r} here or in PATH")
    found = str(Path(found).absolute())
    python = found if re.fullmatch(r"python[\d.]*", Path(found).name) else sys.executable
    return (found, *words[1:]), python


def _hosts(options: argparse.Namespace) -> tuple[Host, ...]:
    if options.hosts:
        return parse_hosts(options.hosts)
    if options.hostfile:
        try:
            return parse_hosts(Path(options.hostfile).read_text())
        except OSError as error:
            raise UsageError(f"--hostfile: {error}") from None
    return ()


def choose(
    launcher: str, job: Job, mpi: Mpi, environ: Mapping[str, str], pmi_types: Sequence[str]
) -> tuple[Command, str]:
    """The command, and a word on the choice for the user.

    Raises
    ------
    ArgumentError
        If the launcher that was asked for cannot start this MPI.
    """
    in_slurm = "SLURM_JOB_ID" in environ
    pmi = pmi_for(mpi, pmi_types) if in_slurm else None
    if launcher == "srun" or (launcher == "auto" and pmi is not None):
        if not in_slurm:
            raise ArgumentError("--launcher srun works inside a Slurm job: use it within sbatch or salloc")
        if pmi is None:
            raise ArgumentError(
                f"srun offers {', '.join(pmi_types) or 'no PMI'}, and {mpi.short} speaks none of these; "
                "use --launcher mpirun"
            )
        library = intel_pmi_library(environ) if mpi.flavour == "Intel MPI" else None
        return srun_command(job, pmi, library), f"srun --mpi={pmi} for {mpi.short}"
    command = mpirun_command(job, mpi, in_slurm)
    return command, f"{mpi.mpirun} for {mpi.short}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    own, words = _split(sys.argv[1:] if argv is None else argv)
    try:
        options = _parser().parse_args(own)
        return _launch(options, words or options.program)
    except (ArgumentError, UsageError, ProbeError) as error:
        print(f"hpccoll launch: error: {error} (see --help)", file=sys.stderr, flush=True)
        return _USAGE


def _launch(options: argparse.Namespace, words: Sequence[str]) -> int:
    outer = detect()
    if outer is not None and (outer.size or 2) > 1:
        raise UsageError(
            f"{outer.launcher} started this as rank {outer.rank}; run it once, it starts the ranks itself"
        )
    environ = dict(os.environ)
    program, python = resolve_program(words, environ)
    mpi = probe_mpi(python, environ)
    in_slurm = "SLURM_JOB_ID" in environ
    job = Job(
        ranks=options.ranks,
        program=_wrapped(program, options),
        hosts=_hosts(options),
        per_host=options.per_host,
        cpus_per_rank=options.cpus_per_rank,
        oversubscribe=options.oversubscribe,
        as_root=os.geteuid() == 0,
    )
    local = not job.hosts and not in_slurm
    if local:
        _check_cores(job)
    elif job.oversubscribe:
        stderr_line("oversubscribed as asked: good to see that it works, not to measure")
    pmi_types = slurm_pmi_types(environ) if in_slurm else ()

    def command_for(variables: Mapping[str, str]) -> Command:
        exporting = replace(job, exports=exported_names(variables, options.export))
        command, why = choose(options.launcher, exporting, mpi, variables, pmi_types)
        if not options.dry_run:
            stderr_line(why)
        return command

    if options.dry_run:
        print(command_for(environ).shell())
        return 0
    if options.output_dir:
        stderr_line(f"the ranks' output is in {Path(options.output_dir).absolute()}")
    limits = options.timeout, options.start_timeout
    if options.no_monitor:
        return run(command_for(environ), environ, None, *limits, stderr_line)
    with Monitor(job.ranks, local) as monitor:
        environ[REPORT] = monitor.report
        return run(command_for(environ), environ, monitor, *limits, stderr_line)


def _wrapped(program: tuple[str, ...], options: argparse.Namespace) -> tuple[str, ...]:
    """With the wrapper that writes the output files and, unless it is only printed, reports to the monitor."""
    directory = ["--output-dir", str(Path(options.output_dir).absolute())] if options.output_dir else []
    if not directory and (options.dry_run or options.no_monitor):
        return program
    return (sys.executable, "-m", "hpccoll.launch.rank", *directory, "--", *program)


def _check_cores(job: Job) -> None:
    cores, wanted = usable_cores(), job.ranks * (job.cpus_per_rank or 1)
    if wanted > cores and not job.oversubscribe:
        raise ArgumentError(
            f"{job.ranks} ranks need {wanted} cores, and this host lets us use {cores}; name more hosts, ask for fewer "
            "ranks, or, for a test that measures nothing, --oversubscribe"
        )
    if wanted > cores:
        stderr_line(
            f"{job.ranks} ranks share {cores} cores (oversubscribed): good to see that it works, not to measure"
        )


if __name__ == "__main__":
    run_program(main)
