"""What the hosts have said of themselves, compared on rank 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hpccoll.doctor.findings import ERROR, NOTE, OK, WARNING, Finding, shortened
from hpccoll.doctor.picture import Seat, ranges

__all__ = [
    "HostSummary",
    "check_bandwidths",
    "check_binding",
    "check_clocks",
    "check_names",
    "check_thread_level",
    "check_versions",
    "check_world",
]

_CLOCK_S = 1.0
# Less than 1 Gbit/s Ethernet carries.
_SLOW_GB_PER_S = 0.1


@dataclass(frozen=True)
class HostSummary:
    """What one host tells rank 0: its size does not depend on what was found right.

    Attributes
    ----------
    name : str
    cpus : int
        Online.
    usable : int
        Cores that the ranks of this host may use, all together.
    seats : tuple of Seat
    versions : mapping
        Of the first rank on the host.
    uneven : tuple of int
        Ranks on this host whose versions differ from those.
    thread_level : int
        The least of its ranks'.
    findings : tuple of Finding
        Of the checks of this host.
    """

    name: str
    cpus: int
    usable: int
    seats: tuple[Seat, ...]
    versions: Mapping[str, str]
    uneven: tuple[int, ...]
    thread_level: int
    findings: tuple[Finding, ...]


def check_world(
    size: int, hosts: Sequence[str], expected_ranks: int | None, expected_hosts: int | Sequence[str] | None
) -> Finding:
    """As many ranks on as many hosts as were asked for."""
    text = f"{size} ranks on {len(hosts)} hosts" if len(hosts) > 1 else f"{size} ranks on one host"
    wrong = []
    if expected_ranks is not None and size != expected_ranks:
        wrong.append(f"{expected_ranks} ranks were expected")
    if isinstance(expected_hosts, int):
        if len(hosts) != expected_hosts:
            wrong.append(f"{expected_hosts} hosts were expected")
    elif expected_hosts:
        here, there = (
            {name.partition(".")[0] for name in hosts},
            {name.partition(".")[0] for name in expected_hosts},
        )
        if there - here:
            wrong.append(f"no rank is on {shortened(sorted(there - here))}")
        if here - there:
            wrong.append(f"{shortened(sorted(here - there))} were not asked for")
    if wrong:
        return Finding(
            "world",
            ERROR,
            f"{text}, but {' and '.join(wrong)}",
            f"MPI.COMM_WORLD.size and the hosts: {shortened(hosts)}",
            "check -n, --hosts or the allocation (squeue -j $SLURM_JOB_ID); --ntasks-per-node for even hosts",
        )
    return Finding("world", OK, text)


def check_names(hosts: Sequence[str]) -> Finding:
    """No two hosts have the same name."""
    twice = [name for name, count in Counter(hosts).items() if count > 1]
    if twice:
        return Finding(
            "names",
            WARNING,
            f"several hosts are called {shortened(twice)}",
            "hostname, on each",
            "give every host (or container: --hostname) a name of its own",
        )
    return Finding("names", OK, "every host has its own name")


def check_versions(hosts: Sequence[HostSummary]) -> Finding:
    """The same software on every host."""
    differing = []
    for name in hosts[0].versions:
        found: dict[str, list[str]] = {}
        for host in hosts:
            found.setdefault(host.versions.get(name, "none"), []).append(host.name)
        if len(found) > 1:
            kinds = "; ".join(f"{version} on {shortened(names, 3)}" for version, names in found.items())
            differing.append((name, kinds))
    uneven = [host for host in hosts if host.uneven]
    odd = [rank for host in uneven for rank in host.uneven]
    if differing:
        minority = sorted({host.name for host in hosts if dict(host.versions) != _commonest(hosts)})
        return Finding(
            "versions",
            ERROR,
            f"{', '.join(name for name, _ in differing)} differ between hosts",
            "\n".join(f"{name}: {kinds}" for name, kinds in differing),
            "use one environment on a shared file system, by its absolute path",
            tuple(minority),
        )
    if uneven:
        return Finding(
            "versions",
            ERROR,
            f"ranks of one host have different versions: {shortened(odd)}",
            "python -m hpccoll.doctor, on that host",
            "start every rank with the same interpreter and PYTHONPATH",
            tuple(host.name for host in uneven),
        )
    return Finding(
        "versions", OK, ", ".join(f"{name} {version}" for name, version in hosts[0].versions.items())
    )


def _commonest(hosts: Sequence[HostSummary]) -> dict[str, str]:
    counts = Counter(tuple(sorted(host.versions.items())) for host in hosts)
    return dict(counts.most_common(1)[0][0])


def check_binding(hosts: Sequence[HostSummary]) -> Finding:
    """A core for each rank, and each rank bound."""
    crowded = [host for host in hosts if len(host.seats) > host.usable]
    if crowded:
        host = crowded[0]
        return Finding(
            "binding",
            WARNING,
            f"more ranks than cores (oversubscribed): {len(host.seats)} ranks share {host.usable} cores",
            _seats(host),
            "start fewer ranks per host, or ask for more cores; times measured like this mean nothing",
            tuple(each.name for each in crowded),
        )
    stacked = [host for host in hosts if _overlap(host.seats)]
    if stacked:
        host = stacked[0]
        bound = any(mask.bit_count() <= host.cpus // 2 for _, mask in host.seats)
        return Finding(
            "binding",
            WARNING,
            "ranks are bound to the same cores"
            if bound
            else "ranks are not bound, and the system moves them about",
            _seats(host),
            "mpirun --bind-to core (Open MPI), -bind-to core (MPICH), srun --cpu-bind=cores; or hpccoll.launch",
            tuple(each.name for each in stacked),
        )
    return Finding("binding", OK, "every rank has cores of its own")


def _overlap(seats: Sequence[Seat]) -> bool:
    seen = 0
    for _, mask in seats:
        if seen & mask:
            return True
        seen |= mask
    return False


def _seats(host: HostSummary) -> str:
    return f"{host.name}: " + shortened([f"rank {rank} on {ranges(mask)}" for rank, mask in host.seats], 4)


def check_thread_level(hosts: Sequence[HostSummary], multiple: int, names: Mapping[int, str]) -> Finding:
    """MPI_THREAD_MULTIPLE, which collectives beside other work need."""
    low = [host for host in hosts if host.thread_level < multiple]
    if low:
        level = names.get(low[0].thread_level, str(low[0].thread_level))
        return Finding(
            "thread level",
            WARNING,
            f"MPI gives {level} only",
            "MPI.Query_thread()",
            "use an MPI built with MPI_THREAD_MULTIPLE; without it, blocking=False and the torch backend do not work",
            tuple(host.name for host in low),
        )
    return Finding("thread level", OK, names.get(multiple, "MPI_THREAD_MULTIPLE"))


def check_clocks(hosts: Sequence[str], offsets_s: Sequence[float]) -> Finding:
    """The clocks of all hosts agree, up to a second."""
    middle = median(offsets_s)
    off = {
        name: offset - middle
        for name, offset in zip(hosts, offsets_s, strict=True)
        if abs(offset - middle) > _CLOCK_S / 2
    }
    spread = max(offsets_s) - min(offsets_s)
    if spread > _CLOCK_S:
        return Finding(
            "clocks",
            WARNING,
            f"the clocks of the hosts differ by {spread:.1f} s",
            "; ".join(f"{name} {offset:+.2f} s against the median" for name, offset in list(off.items())[:6]),
            "start chrony or ntpd on every host; file times and logs cannot be compared",
            tuple(off),
        )
    return Finding("clocks", OK, f"the same within {max(spread, 1e-3) * 1e3:.0f} ms")


def check_bandwidths(pairs: Sequence[tuple[str, str, float]]) -> Finding:
    """No pair of neighbouring hosts is far slower than the others, or than any network of today.

    Parameters
    ----------
    pairs
        Sender, receiver, GB/s.
    """
    if not pairs:
        return Finding("bandwidth", OK, "one host")
    rates = [rate for _, _, rate in pairs]
    middle = median(rates)
    slow = [pair for pair in pairs if pair[2] < middle / 2 or pair[2] < _SLOW_GB_PER_S]
    text = f"{len(pairs)} pairs of hosts, median {middle:.3g} GB/s, least {min(rates):.3g}, most {max(rates):.3g}"
    if not slow:
        return Finding("bandwidth", OK, text)
    counts = Counter(host for sender, receiver, _ in slow for host in (sender, receiver))
    most = max(counts.values())
    blamed = tuple(host for host, count in counts.items() if count == most)
    return Finding(
        "bandwidth",
        WARNING,
        f"slow between hosts: {slow[0][0]} to {slow[0][1]} {slow[0][2]:.3g} GB/s ({slow[0][2] * 8e3:.0f} Mbit/s)",
        "\n".join(
            [text, *(f"{sender} to {receiver}: {rate:.3g} GB/s" for sender, receiver, rate in slow[:8])]
        ),
        "check cable, switch port and negotiated speed (ethtool IFACE), and that MPI uses the fast network",
        blamed,
    )


def check_shared(directory: str, blind: Sequence[str], stale: Sequence[str]) -> Finding:
    """Every host sees the same files in the working directory."""
    if blind:
        return Finding(
            "shared directory",
            WARNING,
            f"{directory} is not the same directory on every host",
            f"a file written by rank 0 is not seen on {shortened(blind)}",
            "start in a directory on the shared file system, and keep environment and results there",
            tuple(blind),
        )
    if stale:
        return Finding(
            "shared directory",
            WARNING,
            f"{directory}: what other hosts write is not seen, or not whole, after 5 s",
            f"files written by {shortened(stale)}",
            "check the mount options (NFS: actimeo, noac) on these hosts",
            tuple(stale),
        )
    return Finding("shared directory", OK, f"{directory} is the same everywhere")


def check_firewall(hosts: Sequence[str], unreachable: Sequence[str]) -> Finding:
    """Every host reaches a port that rank 0 has opened."""
    if unreachable:
        return Finding(
            "firewall",
            WARNING,
            f"{shortened(unreachable)} cannot connect to a port of {hosts[0]}",
            "a TCP connection within 2 s",
            "open the ports above 1023 between the hosts of the cluster",
            tuple(unreachable),
        )
    return Finding("firewall", OK if len(hosts) > 1 else NOTE, f"every host reaches the ports of {hosts[0]}")
