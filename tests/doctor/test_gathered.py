"""hpccoll.doctor.gathered, .findings and .picture: what rank 0 makes of what the hosts tell, on made-up hosts."""

import pickle
from dataclasses import replace

import pytest

from hpccoll.doctor import gathered
from hpccoll.doctor.findings import ERROR, NOTE, OK, WARNING, Finding, exit_status, merged, report
from hpccoll.doctor.gathered import HostSummary
from hpccoll.doctor.picture import picture, ranges
from hpccoll.doctor.together import _phases

VERSIONS = {"Python": "3.11", "hpccoll": "0.1.0", "MPI": "Open MPI v5.0.11", "numpy": "2.4"}


def host(name: str, first: int = 0, ranks: int = 2, cpus: int = 4) -> HostSummary:
    """A host in order, with a core for each rank."""
    return HostSummary(
        name=name,
        cpus=cpus,
        usable=cpus,
        seats=tuple((first + local, 1 << local) for local in range(ranks)),
        versions=VERSIONS,
        uneven=(),
        thread_level=3,
        findings=(Finding("shared memory", OK, f"of {name}", hosts=(name,)),),
    )


def levels(*findings: Finding) -> list[str]:
    return [finding.level for finding in findings]


@pytest.mark.parametrize(
    ("ranks", "hosts", "level", "words"),
    [
        (4, 2, OK, "4 ranks on 2 hosts"),
        (None, None, OK, "4 ranks on 2 hosts"),
        (8, 2, ERROR, "8 ranks were expected"),
        (4, 3, ERROR, "3 hosts were expected"),
        (4, ["a", "b.domain"], OK, "4 ranks on 2 hosts"),
        (4, ["a", "c"], ERROR, "no rank is on c and b were not asked for"),
    ],
)
def test_world(ranks: int | None, hosts: int | list[str] | None, level: str, words: str) -> None:
    finding = gathered.check_world(4, ["a", "b"], ranks, hosts)
    assert finding.level == level
    assert words in finding.result


def test_names() -> None:
    assert levels(gathered.check_names(["a", "b"])) == [OK]
    assert "a" in gathered.check_names(["a", "a"]).result


def test_versions() -> None:
    hosts = [host("a"), host("b"), host("c")]
    assert levels(gathered.check_versions(hosts)) == [OK]
    odd = replace(hosts[2], versions={**VERSIONS, "numpy": "1.26", "hpccoll": "0.0.9"})
    finding = gathered.check_versions([*hosts[:2], odd])
    assert (finding.level, finding.hosts) == (ERROR, ("c",))
    assert "hpccoll, numpy differ" in finding.result
    assert "numpy: 2.4 on a, b; 1.26 on c" in finding.evidence
    finding = gathered.check_versions([hosts[0], replace(hosts[1], uneven=(3,))])
    assert (finding.level, finding.hosts) == (ERROR, ("b",))


def test_binding() -> None:
    good = host("a")
    assert levels(gathered.check_binding([good])) == [OK]
    crowded = gathered.check_binding([good, host("b", ranks=8)])
    assert (crowded.level, crowded.hosts) == (WARNING, ("b",))
    assert "8 ranks share 4 cores" in crowded.result
    unbound = replace(good, name="c", seats=((0, 0b1111), (1, 0b1111)))
    finding = gathered.check_binding([good, unbound])
    assert finding.hosts == ("c",)
    assert "not bound" in finding.result
    assert "rank 1 on 0-3" in finding.evidence
    same = replace(good, name="d", seats=((0, 0b1), (1, 0b1)))
    assert "bound to the same cores" in gathered.check_binding([good, same]).result


def test_thread_level() -> None:
    names = {1: "MPI_THREAD_FUNNELED", 3: "MPI_THREAD_MULTIPLE"}
    assert levels(gathered.check_thread_level([host("a")], 3, names)) == [OK]
    finding = gathered.check_thread_level([host("a"), replace(host("b"), thread_level=1)], 3, names)
    assert (finding.level, finding.hosts) == (WARNING, ("b",))
    assert "FUNNELED" in finding.result


def test_clocks() -> None:
    assert levels(gathered.check_clocks(["a", "b", "c"], [0.0, 0.01, -0.02])) == [OK]
    finding = gathered.check_clocks(["a", "b", "c"], [0.0, 5.0, 0.0])
    assert (finding.level, finding.hosts) == (WARNING, ("b",))
    assert "5.0 s" in finding.result
    assert "5.0 s" in gathered.check_clocks(["a", "b"], [0.0, 5.0]).result


def test_bandwidths() -> None:
    even = [("a", "b", 10.0), ("b", "c", 11.0), ("c", "d", 9.0), ("d", "a", 10.0)]
    assert levels(gathered.check_bandwidths(even)) == [OK]
    assert levels(gathered.check_bandwidths([])) == [OK]
    slow = gathered.check_bandwidths([("a", "b", 10.0), ("b", "c", 3.0), ("c", "d", 2.9), ("d", "a", 10.0)])
    assert (slow.level, slow.hosts) == (WARNING, ("c",))  # it is in both slow pairs
    assert "b to c" in slow.result
    ten_mbit = gathered.check_bandwidths([("a", "b", 0.00125), ("b", "a", 0.00125)])
    assert ten_mbit.level == WARNING  # nothing to compare with, but no network of today
    assert "10 Mbit/s" in ten_mbit.result


def test_shared_directory_and_firewall() -> None:
    assert levels(gathered.check_shared("/x", [], [])) == [OK]
    assert gathered.check_shared("/x", ["b"], []).hosts == ("b",)
    assert gathered.check_shared("/x", [], ["c"]).hosts == ("c",)
    assert levels(gathered.check_firewall(["a", "b"], [])) == [OK]
    assert gathered.check_firewall(["a", "b"], ["b"]).hosts == ("b",)


@pytest.mark.parametrize("size", range(9))
def test_every_pair_of_the_ring_once_and_no_host_twice_at_a_time(size: int) -> None:
    phases = _phases(size)
    pairs = [pair for phase in phases for pair in phase]
    assert sorted(pairs) == [(i, (i + 1) % size) for i in range(size)] if size > 1 else not pairs
    for phase in phases:
        busy = [end for pair in phase for end in pair]
        assert len(busy) == len(set(busy))


def test_status_is_that_of_the_worst() -> None:
    def of(*names: str) -> int:
        return exit_status([Finding("x", level, "") for level in names])

    assert (of(), of(OK, NOTE), of(OK, WARNING), of(WARNING, ERROR, OK)) == (0, 0, 1, 3)


def test_the_same_finding_of_many_hosts_is_one() -> None:
    bad = [Finding("TMPDIR", ERROR, f"no /tmp on {name}", "x", f"ssh {name}", (name,)) for name in "abc"]
    good = [Finding("TMPDIR", OK, f"{number} MiB", hosts=(str(number),)) for number in range(5)]
    findings = merged([*bad, *good])
    assert [(finding.level, len(finding.hosts)) for finding in findings] == [(ERROR, 3), (OK, 5)]
    text = report(findings, every=True)
    assert "[a, b, c]" in text
    assert "well on 4 more" in text
    assert "fix:  ssh a" in text
    assert "1 error, 0 warnings" in text
    assert "MiB" not in report(findings, every=False)


def test_a_thousand_ranks() -> None:
    """What a host sends is small and does not grow with the job, and the report stays readable."""
    hosts = [host(f"node{index:03d}", first=8 * index, ranks=8, cpus=8) for index in range(125)]
    assert max(len(pickle.dumps(each)) for each in hosts) < 2048
    hosts[77] = replace(hosts[77], seats=tuple((rank, 0xFF) for rank, _ in hosts[77].seats))
    findings = [
        gathered.check_world(1000, [each.name for each in hosts], 1000, 125),
        gathered.check_versions(hosts),
        gathered.check_binding(hosts),
        *merged(finding for each in hosts for finding in each.findings),
    ]
    text = report(findings, every=True)
    assert len(text.splitlines()) < 12
    assert "node077" in text
    drawing = picture([(each.name, each.cpus, each.seats) for each in hosts])
    assert len(drawing.splitlines()) < 25
    assert "and 123 more alike" in drawing


def test_picture() -> None:
    hosts = [("a", 4, [(0, 0b0001), (1, 0b0010)]), ("b", 4, [(2, 0b1111), (3, 0b1000)])]
    assert picture(hosts) == (
        "a: 2 ranks, 4 CPUs\n  rank 0     #...\n  rank 1     .#..\n"
        "b: 2 ranks, 4 CPUs\n  rank 2     ####\n  rank 3     ...#"
    )
    assert "CPUs 0-3,120" in picture([("big", 128, [(0, 0b1111 | 1 << 120)])])
    assert ranges(0) == ""
