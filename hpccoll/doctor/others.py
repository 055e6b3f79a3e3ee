"""Checks of the way from this host to the others of a job."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from hpccoll.doctor.findings import ERROR, OK, Finding, shortened
from hpccoll.environment import hostname
from hpccoll.network import interface_to, is_loopback, resolve

__all__ = ["check_host_reachable", "check_hosts_resolve", "check_ssh"]

_SSH_S = 5


def check_hosts_resolve(hosts: Sequence[str]) -> Finding:
    """The names of other hosts resolve, and not to a loopback address."""
    here = hostname()
    unknown = [host for host in hosts if not resolve(host)]
    looped = [
        host
        for host in hosts
        if host.partition(".")[0] != here and resolve(host) and all(map(is_loopback, resolve(host)))
    ]
    if unknown or looped:
        return Finding(
            "host names",
            ERROR,
            " and ".join(
                [f"{shortened(unknown)} unknown"] * bool(unknown)
                + [f"{shortened(looped)} taken for this host itself (loopback)"] * bool(looped)
            ),
            f"getent hosts {(unknown + looped)[0]}, on {here}",
            "correct DNS or /etc/hosts",
        )
    return Finding("host names", OK, f"{len(hosts)} resolve")


def check_host_reachable(hosts: Sequence[str]) -> Finding:
    """The interface by which each of `hosts` is reached."""
    used: dict[str, list[str]] = {}
    for host in hosts:
        each = interface_to(host)
        used.setdefault(each.name if each else "none", []).append(host)
    if "none" in used:
        return Finding(
            "routes",
            ERROR,
            f"no route to {shortened(used['none'])}",
            "ip route get ADDRESS",
            "correct the routes",
        )
    return Finding(
        "routes", OK, "; ".join(f"{name} to {shortened(names, 3)}" for name, names in used.items())
    )


def check_ssh(hosts: Sequence[str]) -> Finding:
    """Each of `hosts` can be entered without a password, as mpirun does outside a batch system."""
    if shutil.which("ssh") is None:
        return Finding("ssh", ERROR, "there is no ssh here", "command -v ssh", "install the OpenSSH client")
    others = [host for host in hosts if host.partition(".")[0] != hostname()]
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={_SSH_S}"]

    def enter(host: str) -> str:
        try:
            done = subprocess.run(
                ["ssh", *options, host, "true"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=2 * _SSH_S,
            )
        except subprocess.TimeoutExpired:
            return "no answer"
        return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["refused"])[-1]

    with ThreadPoolExecutor(16) as pool:
        failed = {host: text for host, text in zip(others, pool.map(enter, others), strict=True) if text}
    if not failed:
        return Finding("ssh", OK, f"{len(others)} hosts without a password")
    host, text = next(iter(failed.items()))
    return Finding(
        "ssh",
        ERROR,
        f"cannot enter {shortened(list(failed))} without a password",
        f"ssh -o BatchMode=yes {host} true: {text}",
        f"ssh-copy-id {host}, and accept its host key; or start inside the batch system, where ssh is not needed",
    )
