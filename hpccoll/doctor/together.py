"""The checks that all ranks make with one another, and the run of all checks over a communicator."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll import gate
from hpccoll.doctor import gathered
from hpccoll.doctor.findings import ERROR, NOTE, OK, Finding, merged
from hpccoll.doctor.gathered import HostSummary
from hpccoll.doctor.local import HOST_CHECKS, Place, mpi_of_this_process, versions
from hpccoll.environment import hostname, usable_cores
from hpccoll.network import addresses

__all__ = ["examine"]

_THREAD_LEVELS = {
    MPI.THREAD_SINGLE: "MPI_THREAD_SINGLE",
    MPI.THREAD_FUNNELED: "MPI_THREAD_FUNNELED",
    MPI.THREAD_SERIALIZED: "MPI_THREAD_SERIALIZED",
    MPI.THREAD_MULTIPLE: "MPI_THREAD_MULTIPLE",
}
_TAG = 71
_FILE_S = 5.0
_ROUNDS = 5
# A pair of hosts is measured with messages that take this long, or are this large.
_PAIR_S, _MOST_BYTES, _LEAST_BYTES = 0.05, 1 << 25, 1 << 16


def examine(
    comm: Any,
    expected_ranks: int | None,
    expected_hosts: int | Sequence[str] | None,
    short: bool,
    step: Callable[[str], None],
) -> tuple[list[Finding], list[HostSummary]] | None:
    """Make all checks; collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    expected_ranks, expected_hosts
        What was asked for; None if it does not matter.
    short
        Only what takes no time.
    step
        Told what comes next, for the message if it does not end.

    Returns
    -------
    tuple or None
        Findings and hosts on rank 0, None elsewhere.
    """
    step("grouping the ranks by host")
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    leaders = comm.Split(0 if node.rank == 0 else MPI.UNDEFINED, comm.rank)
    try:
        return _examine(comm, node, leaders, expected_ranks, expected_hosts, short, step)
    finally:
        node.Free()
        if leaders != MPI.COMM_NULL:
            leaders.Free()


def _examine(
    comm: Any,
    node: Any,
    leaders: Any,
    expected_ranks: int | None,
    expected_hosts: int | Sequence[str] | None,
    short: bool,
    step: Callable[[str], None],
) -> tuple[list[Finding], list[HostSummary]] | None:
    step("checking each host")
    summary = _summary(comm, node, leaders)
    findings: list[Finding] = []
    hosts: list[HostSummary] = []
    if summary is not None:
        hosts = leaders.gather(summary) or []
    if comm.rank == 0:
        names = [host.name for host in hosts]
        findings += [
            gathered.check_world(comm.size, names, expected_ranks, expected_hosts),
            gathered.check_names(names),
            gathered.check_versions(hosts),
            gathered.check_binding(hosts),
            gathered.check_thread_level(hosts, MPI.THREAD_MULTIPLE, _THREAD_LEVELS),
        ]
        findings += merged(finding for host in hosts for finding in host.findings)
    among_all: list[tuple[str, Callable[[], Finding | None]]] = [
        ("a verified allreduce", lambda: _allreduce(comm)),
        ("a verified broadcast", lambda: _broadcast(comm)),
    ]
    if not short:
        among_all.append(("torch.distributed on the mpi backend", lambda: _torch_backend(comm)))
    among_hosts: list[tuple[str, Callable[[], Finding | None]]] = [
        ("the shared directory", lambda: _shared_directory(leaders)),
        ("the clocks", lambda: _clocks(leaders)),
    ]
    if not short:
        among_hosts += [
            ("the ports between hosts", lambda: _firewall(leaders)),
            ("the bandwidth between hosts", lambda: _bandwidth(leaders)),
        ]
    for name, check in among_all[:2]:
        step(name)
        findings += filter(None, [check()])
    if leaders != MPI.COMM_NULL:
        for name, check in among_hosts:
            step(name)
            findings += filter(None, [check()])
    for name, check in among_all[2:]:
        step(name)
        findings += filter(None, [check()])
    step("the end")
    return (findings, hosts) if comm.rank == 0 else None


def _summary(comm: Any, node: Any, leaders: Any) -> HostSummary | None:
    """This host's on its first rank, None on its others."""
    mpi = mpi_of_this_process()
    cpus = os.cpu_count() or 1
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(cpus)
    mask = sum(1 << cpu for cpu in allowed)
    told = node.gather((comm.rank, mask, versions(mpi.short), MPI.Query_thread()))
    if told is None:
        return None
    first = told[0][2]
    place = Place(
        local_ranks=node.size,
        hosts=leaders.size,
        mpi=mpi,
        started=comm.size > 1,
        cuda_aware=gate.cuda_support(),
    )
    name = hostname()
    together = 0
    for _, seat, _, _ in told:
        together |= seat
    return HostSummary(
        name=name,
        cpus=cpus,
        usable=_cores_in(together),
        seats=tuple((rank, seat) for rank, seat, _, _ in told),
        versions=first,
        uneven=tuple(rank for rank, _, found, _ in told if found != first),
        thread_level=min(level for _, _, _, level in told),
        findings=tuple(_on(name, check(place)) for check in HOST_CHECKS),
    )


def _cores_in(mask: int) -> int:
    """Cores among the CPUs of `mask`, as `usable_cores` counts them for one process."""
    own = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    wide = {cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1}
    if not own or own == wide:
        return usable_cores()
    os.sched_setaffinity(0, wide)
    try:
        return usable_cores()
    finally:
        os.sched_setaffinity(0, own)


def _on(host: str, finding: Finding) -> Finding:
    # Evidence of what is right does not travel.
    evidence = "" if finding.level in (OK, NOTE) else finding.evidence
    return Finding(finding.check, finding.level, finding.result, evidence, finding.fix, (host,))


def _allreduce(comm: Any) -> Finding | None:
    """Two sizes, either side of the switch from eager to rendezvous, with closed-form values."""
    wrong = 0
    for count in (4, 1 << 16):
        mine = np.arange(count, dtype=np.int64) + comm.rank
        result = np.zeros_like(mine)
        comm.Allreduce(mine, result)
        expected = np.arange(count, dtype=np.int64) * comm.size + comm.size * (comm.size - 1) // 2
        wrong += int(np.count_nonzero(result != expected))
    return _verdict(comm, "allreduce", wrong)


def _broadcast(comm: Any) -> Finding | None:
    wrong = 0
    for count, root in ((4, 0), (1 << 16, comm.size - 1)):
        data = np.arange(count, dtype=np.int64) * (3 if comm.rank == root else 0)
        comm.Bcast(data, root)
        wrong += int(np.count_nonzero(data != np.arange(count, dtype=np.int64) * 3))
    return _verdict(comm, "broadcast", wrong)


def _verdict(comm: Any, name: str, wrong: int) -> Finding | None:
    """Point to point to rank 0: the collective may be what is broken."""
    if comm.rank:
        comm.send((wrong, hostname()) if wrong else None, 0, _TAG)
        return None
    bad = {0: (wrong, hostname())} if wrong else {}
    for rank in range(1, comm.size):
        told = comm.recv(source=rank, tag=_TAG)
        if told:
            bad[rank] = told
    if not bad:
        return Finding(name, OK, f"right on {comm.size} rank{'s' * (comm.size > 1)}")
    rank, (count, _) = next(iter(bad.items()))
    return Finding(
        name,
        ERROR,
        f"wrong values on {len(bad)} of {comm.size} ranks",
        f"rank {rank}: {count} wrong elements",
        "different MPI libraries on the hosts, or a broken network: try another (Open MPI: --mca btl tcp,self)",
        tuple(dict.fromkeys(host for _, host in bad.values())),
    )


def _torch_backend(comm: Any) -> Finding | None:
    import importlib.util

    there = comm.allreduce(int(importlib.util.find_spec("torch") is not None), MPI.MIN)
    if not there:
        return Finding("torch", NOTE, "torch is not installed on every host") if comm.rank == 0 else None
    reason = ""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        import torch
        import torch.distributed as dist

        import hpccoll.torch_backend  # noqa: F401

        dist.init_process_group("hpccoll", init_method="mpi://")
        tensor = torch.full((1000,), float(comm.rank + 1))
        dist.all_reduce(tensor)
        if not torch.equal(tensor, torch.full((1000,), comm.size * (comm.size + 1) / 2)):
            reason = "all_reduce gave wrong values"
        dist.destroy_process_group()
    except Exception as error:  # whatever torch may raise is the finding
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    reasons = comm.gather((hostname(), reason) if reason else None)
    if comm.rank:
        return None
    failed = [each for each in reasons if each]
    if failed:
        return Finding(
            "torch",
            ERROR,
            f"the mpi backend of torch.distributed fails on {len(failed)} ranks",
            failed[0][1],
            "python -c 'import hpccoll.torch_backend' there; torch 2.13 or later is needed",
            tuple(dict.fromkeys(host for host, _ in failed)),
        )
    return Finding("torch", OK, "init_process_group on the mpi backend and a verified all_reduce")


def _shared_directory(leaders: Any) -> Finding | None:
    directory, token = leaders.bcast((os.getcwd(), uuid.uuid4().hex))
    base = Path(directory)
    own = base / f".hpccoll-doctor-{token}-{leaders.rank}"
    problem = ""
    try:
        own.write_text(token)
    except OSError as error:
        problem = str(error)
    problems = leaders.allgather(problem)
    try:
        blind = not problems[0] and not _appears(base / f".hpccoll-doctor-{token}-0", token)
        told = leaders.gather((hostname(), blind))
        if leaders.rank:
            return None
        if problems[0]:
            return Finding(
                "shared directory", NOTE, f"{directory} cannot be written: not checked", problems[0], "", ()
            )
        unseen = [host for host, is_blind in told if is_blind]
        others = [rank for rank in range(1, leaders.size) if not told[rank][1] and not problems[rank]]
        until = time.monotonic() + _FILE_S
        stale = [
            told[rank][0]
            for rank in others
            if not _appears(base / f".hpccoll-doctor-{token}-{rank}", token, until - time.monotonic())
        ]
        stale += [told[rank][0] for rank in range(1, leaders.size) if problems[rank] and not told[rank][1]]
        return gathered.check_shared(directory, unseen, stale)
    finally:
        leaders.Barrier()
        own.unlink(missing_ok=True)


def _appears(path: Path, text: str, wait_s: float = _FILE_S) -> bool:
    until = time.monotonic() + wait_s
    while True:
        try:
            if path.read_text() == text:
                return True
        except OSError:
            pass
        if time.monotonic() >= until:
            return False
        time.sleep(0.02)


def _clocks(leaders: Any) -> Finding | None:
    """Offsets by the middle of the quickest of a few round trips from rank 0."""
    if leaders.rank:
        for _ in range(_ROUNDS):
            leaders.recv(source=0, tag=_TAG)
            leaders.send(time.time(), 0, _TAG)
        leaders.gather(hostname())
        return None
    offsets = [0.0]
    for other in range(1, leaders.size):
        trips = []
        for _ in range(_ROUNDS):
            before = time.time()
            leaders.send(None, other, _TAG)
            there = leaders.recv(source=other, tag=_TAG)
            after = time.time()
            trips.append((after - before, there - (before + after) / 2))
        offsets.append(min(trips)[1])
    return gathered.check_clocks(leaders.gather(hostname()), offsets)


def _firewall(leaders: Any) -> Finding | None:
    server = None
    if leaders.rank == 0:
        server = socket.create_server(("", 0), backlog=max(128, leaders.size))
    try:
        where = leaders.bcast((addresses(), server.getsockname()[1]) if server else None)
        reached = leaders.rank == 0 or any(_connects(address, where[1]) for address in where[0][:4])
        told = leaders.gather((hostname(), reached))
    finally:
        if server:
            server.close()
    if leaders.rank:
        return None
    return gathered.check_firewall(
        [host for host, _ in told], [host for host, is_open in told if not is_open]
    )


def _connects(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=2):
            return True
    except OSError:
        return False


def _bandwidth(leaders: Any) -> Finding | None:
    """Round the ring of hosts, each host in one pair at a time."""
    rank, size = leaders.rank, leaders.size
    mine = []
    for phase in _phases(size):
        leaders.Barrier()
        for sender, receiver in phase:
            if rank == sender:
                mine.append((sender, receiver, _send_rate(leaders, receiver)))
            elif rank == receiver:
                _answer(leaders, sender)
    told = leaders.gather((hostname(), mine))
    if rank:
        return None
    names = [name for name, _ in told]
    pairs = [(names[a], names[b], rate) for _, measured in told for a, b, rate in measured]
    return gathered.check_bandwidths(pairs)


def _phases(size: int) -> list[list[tuple[int, int]]]:
    """Pairs (i, i+1) round the ring, in phases in which no host is in two."""
    if size < 2:
        return []
    ring = [(host, (host + 1) % size) for host in range(size)]
    last = ring.pop() if size % 2 else None
    return [ring[0::2], ring[1::2], *([[last]] if last else [])]


def _send_rate(leaders: Any, receiver: int) -> float:
    nbytes, answer = _LEAST_BYTES, bytearray(1)
    while True:
        leaders.send(nbytes, receiver, _TAG)
        data = bytearray(nbytes)
        start = time.perf_counter()
        leaders.Send([data, MPI.BYTE], receiver, _TAG)
        leaders.Recv([answer, MPI.BYTE], receiver, _TAG)
        elapsed_s = time.perf_counter() - start
        if elapsed_s > _PAIR_S or nbytes >= _MOST_BYTES:
            leaders.send(0, receiver, _TAG)
            return nbytes / elapsed_s / 1e9
        nbytes *= 4


def _answer(leaders: Any, sender: int) -> None:
    while nbytes := leaders.recv(source=sender, tag=_TAG):
        leaders.Recv([bytearray(nbytes), MPI.BYTE], sender, _TAG)
        leaders.Send([bytearray(1), MPI.BYTE], sender, _TAG)
