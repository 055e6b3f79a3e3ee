"""The samples as a timeline for ui.perfetto.dev or chrome://tracing: one lane per rank, one group per host."""

from __future__ import annotations

import json
from pathlib import Path

from hpccoll.runs.aside import write_aside
from hpccoll.runs.health import Health
from hpccoll.runs.store import Store
from hpccoll.units import format_bytes

__all__ = ["write_trace"]

_ROWS = 100_000


def write_trace(path: Path, store: Store, health: Health) -> None:
    """Write every sample as one complete event (``ph: X``), times in microseconds on the aligned clock."""

    def write(aside: Path) -> None:
        cases = {
            key: (
                f"{collective} {format_bytes(nbytes)} {engine}",
                {"bytes": nbytes, "mode": mode, "launch": launch, "calls": calls},
            )
            for key, collective, nbytes, engine, mode, launch, calls in store.rows(
                "SELECT key, collective, nbytes, engine, mode, launch, calls FROM cases"
            )
        }
        groups = {host: number for number, host in enumerate(health.hosts)}
        group_of = {rank: groups[host] for host, ranks in health.hosts.items() for rank in ranks}
        with open(aside, "w", encoding="utf-8") as stream:
            stream.write('{"displayTimeUnit":"ns","traceEvents":[\n')
            heads = [
                {"ph": "M", "name": "process_name", "pid": number, "args": {"name": host}}
                for host, number in groups.items()
            ]
            for rank, number in group_of.items():
                lane = {"ph": "M", "pid": number, "tid": rank}
                heads.append({**lane, "name": "thread_name", "args": {"name": f"rank {rank}"}})
                heads.append({**lane, "name": "thread_sort_index", "args": {"sort_index": rank}})
            stream.write(",\n".join(json.dumps(head) for head in heads))
            cursor = store.db.execute(
                "SELECT rank, key, iteration, start_ns, end_ns, verified FROM samples ORDER BY start_ns"
            )
            while rows := cursor.fetchmany(_ROWS):
                stream.writelines(
                    ",\n"
                    + json.dumps(
                        {
                            "ph": "X",
                            "name": cases[key][0],
                            "pid": group_of[rank],
                            "tid": rank,
                            "ts": start / 1e3,
                            "dur": (end - start) / 1e3,
                            "args": {
                                "iteration": iteration,
                                **cases[key][1],
                                **({} if right else {"verified": right}),
                            },
                        }
                    )
                    for rank, key, iteration, start, end, right in rows
                )
            stream.write("\n]}\n")

    write_aside(path, write)
