"""Ranks without a dump: what the others' dumps tell of their hosts and processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpccoll.diagnose.reading import Job
from hpccoll.diagnose.words import ranks_of
from hpccoll.runs.nodeset import fold_hosts

__all__ = ["lost"]

_STATES = {
    "T": "stopped (SIGSTOP or a debugger)",
    "t": "stopped by a debugger",
    "gone": "gone: killed, or out of memory",
    "Z": "dead, and not yet collected: killed, or out of memory",
    "D": "in the kernel (a disk or file system that does not answer)",
    "R": "alive and busy, but it wrote nothing: inside C code that holds Python's lock",
    "S": "alive and asleep, but it wrote nothing: inside C code that holds Python's lock",
}


def lost(job: Job, absent: Sequence[int]) -> Iterator[str]:
    """Lines on ranks that have left no dump."""
    seen: dict[str, list[int]] = {}
    for dump in job.dumps.values():
        for rank, state in dump.neighbours.items():
            if rank not in job.dumps and rank not in seen.setdefault(state, []):
                seen[state].append(rank)
    for state, ranks in seen.items():
        yield f"{ranks_of(ranks)}: its process is {_STATES.get(state, f'in state {state}')}"
    told = {rank for ranks in seen.values() for rank in ranks}
    hosts = _hosts(job)
    empty = [host for host, ranks in hosts.items() if not any(rank in job.dumps for rank in ranks)]
    if empty and len(empty) < len(hosts):
        ranks = [rank for host in empty for rank in hosts[host]]
        yield (
            f"all ranks of {fold_hosts(empty)} ({ranks_of(ranks)}) left none: the host is lost, or cannot write there"
        )
        told |= set(ranks)
    elif not hosts:
        yield from _guess(job, absent)
    rest = [rank for rank in absent if rank not in told]
    if rest:
        place = {rank: host for host, ranks in hosts.items() for rank in ranks}
        on = fold_hosts({place[rank] for rank in rest if rank in place})
        yield (
            f"{ranks_of(rest)}{f' on {on}' if on else ''}: killed, out of memory, stopped, or busy in C code that "
            "holds Python's lock; the launcher's output and the kernel's log (dmesg) tell which"
        )


def _hosts(job: Job) -> dict[str, Sequence[int]]:
    """The job's hosts and their ranks, if the dumps name all of them."""
    for dump in job.dumps.values():
        if dump.hosts:
            return dict(dump.hosts)
    return {}


def _guess(job: Job, absent: Sequence[int]) -> Iterator[str]:
    """The dumps name their own hosts only: equal blocks of ranks on those suggest the blocks of the others."""
    known: dict[str, list[int]] = {}
    for rank, dump in sorted(job.dumps.items()):
        known.setdefault(dump.host, []).append(rank)
    block = max(map(len, known.values()))
    whole = [ranks for ranks in known.values() if len(ranks) == block]
    if len(known) < 2 and block < 2:
        return
    if any(ranks[0] % block or ranks[-1] - ranks[0] != block - 1 for ranks in whole):
        return
    missing = set(absent)
    lost_blocks = [
        range(first, min(first + block, job.size))
        for first in range(0, job.size, block)
        if missing.issuperset(range(first, min(first + block, job.size)))
    ]
    if lost_blocks and block > 1:
        ranks = [rank for part in lost_blocks for rank in part]
        yield (
            f"the other hosts have {block} ranks each, in order: {ranks_of(ranks)} would be all of "
            f"{len(lost_blocks)} host{'s' * (len(lost_blocks) != 1)}, which may be lost"
        )
