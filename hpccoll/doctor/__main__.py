"""``mpirun -n 4 python -m hpccoll.doctor`` checks a cluster, or one host, and says how to mend what is wrong."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpccoll.aborting import run_program
from hpccoll.bench.options import Parser, UsageError, whole
from hpccoll.doctor.findings import ERROR, OK, Finding, as_json, exit_status, report
from hpccoll.environment import Launch, detect, hostname, is_first_rank
from hpccoll.errors import ArgumentError
from hpccoll.nodelist import allocated_hosts, expand

__all__ = ["main"]

_USAGE = 2
_STUCK = 3


def _parser() -> Parser:
    parser = Parser(
        prog="hpccoll doctor",
        description="Checks the hosts of a job (under mpirun or srun), or this host alone (without).",
        epilog="Exit status: 0 all is well, 1 warnings, 3 errors, 2 a bad option. With --preflight, warnings are "
        "printed and the status stays 0. What each check means: docs/clusters.md.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--hosts",
        metavar="H",
        help="hosts that are expected: a number, or names (then ssh is checked, if alone)",
    )
    add("--preflight", type=whole(1), metavar="N", help="short form for job scripts: N ranks are expected")
    add(
        "--json",
        metavar="FILE",
        help="also write the findings as JSON; - is standard output, instead of the text",
    )
    add("--timeout", type=whole(1), metavar="S", help="seconds for all checks (120, preflight 60)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    try:
        options = _parser().parse_args(argv)
        expected = _expected_hosts(options.hosts)
    except (ArgumentError, UsageError) as error:
        if not is_first_rank():
            return 0
        print(f"hpccoll doctor: error: {error} (see --help)", file=sys.stderr, flush=True)
        return _USAGE
    watch = _Watch(options.timeout or (60 if options.preflight else 120))
    launch = detect()
    alone = launch is None or launch.size == 1
    outcome: tuple[list[Finding], dict[str, Any]] | None
    if alone and options.preflight is None:
        outcome = _alone(expected, watch), {}
    else:
        outcome = _under_launcher(options, expected, launch, watch)
    watch.end()
    return 0 if outcome is None else _print(*outcome, options)


def _expected_hosts(text: str | None) -> int | list[str] | None:
    if text is None:
        return None
    return int(text) if text.isascii() and text.isdigit() and int(text) else expand(text)


class _Watch:
    """Ends the process, with a message that says where it hangs, when the checks do not end in time."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s, self.now = limit_s, "starting"
        self._timer = threading.Timer(limit_s, self._over)
        self._timer.daemon = True
        self._timer.start()

    def step(self, name: str) -> None:
        self.now = name

    def end(self) -> None:
        self._timer.cancel()

    def _over(self) -> None:
        launch = detect()
        where = f"rank {launch.rank} on {hostname()}" if launch else hostname()
        os.write(
            2,
            f"hpccoll doctor: ERROR after {self.limit_s:g} s, {where} hangs in: {self.now}\n"
            "  fix: a host, a link or a firewall stops MPI; try pairs of hosts to find which\n".encode(),
        )
        os._exit(_STUCK)


def _alone(expected: int | list[str] | None, watch: _Watch) -> list[Finding]:
    """Checks of this host, and of the way to the others."""
    from hpccoll.doctor import local, others
    from hpccoll.probe import ProbeError, probe_mpi

    watch.step("loading the MPI library")
    mpi = None
    try:
        mpi = probe_mpi(sys.executable, os.environ)
        findings = [Finding("MPI library", OK, f"{mpi.short}, from {mpi.library or 'an unknown file'}")]
    except ProbeError as error:
        text, _, fix = str(error).partition("\n  fix: ")
        findings = [Finding("MPI library", ERROR, "mpi4py loads no MPI library", text, fix)]
    hosts = expected if isinstance(expected, list) else (allocated_hosts() or [])
    place = local.Place(hosts=max(1, len(hosts)), mpi=mpi)
    for check in local.HOST_CHECKS:
        watch.step((check.__doc__ or "").strip())
        findings.append(check(place))
    versions = local.versions(mpi.short if mpi else "none")
    findings.append(Finding("versions", OK, ", ".join(f"{name} {text}" for name, text in versions.items())))
    if hosts:
        watch.step("the names and routes of the hosts")
        findings += [others.check_hosts_resolve(hosts), others.check_host_reachable(hosts)]
    if isinstance(expected, list):
        watch.step("ssh")
        findings.append(others.check_ssh(expected))
    return findings


def _under_launcher(
    options: argparse.Namespace, expected: int | list[str] | None, launch: Launch | None, watch: _Watch
) -> tuple[list[Finding], dict[str, Any]] | None:
    """Findings and what else goes into the JSON, on rank 0; None elsewhere."""
    watch.step("starting MPI")
    from mpi4py import MPI

    from hpccoll.doctor.local import mpi_of_this_process

    comm = MPI.COMM_WORLD
    mpi = mpi_of_this_process()
    wanted = launch.size if launch is not None and launch.size else options.preflight
    if wanted and comm.size == 1 and wanted > 1:
        # Each process takes itself for the only one; the launcher's rank tells which one speaks.
        return ([_singletons(launch, wanted, mpi)], {}) if launch is None or launch.rank == 0 else None
    from hpccoll.doctor.picture import picture
    from hpccoll.doctor.together import examine

    own = comm.Dup()
    outcome = examine(own, options.preflight, expected, options.preflight is not None, watch.step)
    own.Free()
    if outcome is None:
        return None
    findings, hosts = outcome
    name = launch.launcher if launch else "no launcher"
    findings.insert(
        0, Finding("MPI library", OK, f"{mpi.short}, from {mpi.library or 'an unknown file'}, by {name}")
    )
    text = picture([(host.name, host.cpus, host.seats) for host in hosts])
    places = [
        {"host": host.name, "cpus": host.cpus, "ranks": [rank for rank, _ in host.seats]} for host in hosts
    ]
    return findings, {"ranks": comm.size, "hosts": places, "picture": text}


def _singletons(launch: Launch | None, wanted: int, mpi: Any) -> Finding:
    from hpccoll.gate import mpirun_of

    launcher = launch.launcher if launch else "no launcher"
    mpirun = mpirun_of(Path(mpi.library)) if mpi.library else None
    kind = {"Open MPI": "pmix", "MPICH": "pmi2", "Intel MPI": "pmi2"}.get(mpi.flavour, "...")
    by_srun = f"srun --mpi={kind} (srun --mpi=list shows what there is), or " if launcher == "srun" else ""
    return Finding(
        "world",
        ERROR,
        f"{launcher} started {wanted} processes, and each is rank 0 of 1: launcher and MPI do not fit",
        f"mpi4py loads {mpi.short}, from {mpi.library or 'an unknown file'}",
        f"start with {by_srun}{mpirun or 'the mpirun of this MPI'} -n {wanted}",
        (hostname(),),
    )


def _print(findings: list[Finding], extra: dict[str, Any], options: argparse.Namespace) -> int:
    status = exit_status(findings)
    if options.preflight is not None and status == 1:
        status = 0
    if options.json:
        text = json.dumps({"status": status, "findings": as_json(findings), **extra}, indent=1)
        if options.json == "-":
            print(text, flush=True)
            return status
        try:
            Path(options.json).write_text(text + "\n")
        except OSError as error:
            print(f"hpccoll doctor: error: --json: {error}", file=sys.stderr, flush=True)
            status = status or _USAGE
    print(report(findings, every=options.preflight is None))
    if options.preflight is None and extra.get("picture"):
        print(f"\nranks on CPUs:\n{extra['picture']}")
    sys.stdout.flush()
    return status


if __name__ == "__main__":
    run_program(main)
