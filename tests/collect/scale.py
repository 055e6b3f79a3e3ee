"""How fast the collector reads, against other ways to do it.

    python tests/collect/scale.py [--files 1000] [--samples 10000] [--what collect,polars,duckdb,python]

writes a run of so many files and samples in each into $TMPDIR, then starts each way in a process of
its own and prints its wall time, its CPU time, its largest memory and the records per second. `collect` is all that
``python -m hpccoll.collect --html`` does; the others compute nothing but the medians of the times, with Polars, with
DuckDB, and with json and statistics of Python. It measures, and is no part of the tests.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from synthetic_runs import Synthetic

CASES = 20


def write(directory: Path, files: int, samples: int) -> int:
    """The run; returns its bytes. The times of a file are those of one of 16 ranks, moved a little."""
    sizes = tuple(8 << power for power in range(min(CASES, samples)))
    run = Synthetic(ranks=16, sizes=sizes, iterations=max(1, samples // len(sizes)), spread=0.1)
    times = run.times()
    rng = np.random.default_rng(1)
    total = 0
    run.ranks, run.per_host = files, 64
    for rank in range(files):
        moved = {
            key: (np.resize(a, (16, a.shape[1])) + rng.integers(0, 99), b) for key, (a, b) in times.items()
        }
        mine = {key: ({rank: a[rank % 16]}, {rank: b[rank % 16]}) for key, (a, b) in moved.items()}
        text = "\n".join(run.lines(rank, mine)) + "\n"
        total += (directory / f"rank-{rank:05d}.jsonl").write_text(text)
    return total


def way(name: str, directory: Path) -> None:
    """Run one way in this process."""
    if name == "collect":
        from hpccoll.collect.program import main

        assert main([str(directory), "--strict", "--html", str(directory / "report.html")]) == 0
        return
    query = """SELECT nbytes, median(t) FROM (SELECT nbytes, launch, iteration, max(end_ns - start_ns) AS t FROM {}
        WHERE type = 'sample' GROUP BY ALL) GROUP BY nbytes"""
    kinds = {
        "type": "VARCHAR",
        **dict.fromkeys(("nbytes", "launch", "iteration", "start_ns", "end_ns"), "BIGINT"),
    }
    if name == "duckdb":
        import duckdb

        spec = ", ".join(f"{column}: '{kind}'" for column, kind in kinds.items())
        source = f"read_json('{directory}/*.jsonl', format='newline_delimited', columns={{{spec}}})"
        print(len(duckdb.connect().execute(query.format(source)).fetchall()))
    elif name == "polars":
        import polars as pl

        schema = {column: pl.String if kind == "VARCHAR" else pl.Int64 for column, kind in kinds.items()}
        lines = pl.scan_ndjson(sorted(directory.glob("*.jsonl")), schema=schema, ignore_errors=True)
        times = (
            lines.filter(pl.col("type") == "sample")
            .group_by("nbytes", "launch", "iteration")
            .agg(t=(pl.col("end_ns") - pl.col("start_ns")).max())
        )
        print(times.group_by("nbytes").agg(pl.median("t")).collect(engine="streaming").height)
    else:
        import json
        import statistics

        longest: dict[tuple[int, int, int], int] = {}
        for path in sorted(directory.glob("*.jsonl")):
            with open(path, encoding="utf-8") as stream:
                for line in stream:
                    record = json.loads(line)
                    if record["type"] == "sample":
                        key = record["nbytes"], record["launch"], record["iteration"]
                        longest[key] = max(longest.get(key, 0), record["end_ns"] - record["start_ns"])
        groups: dict[int, list[int]] = {}
        for (nbytes, *_), length in longest.items():
            groups.setdefault(nbytes, []).append(length)
        print(len({nbytes: statistics.median(each) for nbytes, each in groups.items()}))


def main(argv: Sequence[str] | None = None) -> None:
    """Write, run every way, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=10_000, help="in each file")
    parser.add_argument("--what", default="collect,polars,duckdb,python")
    parser.add_argument("--only", nargs=2, metavar=("WAY", "DIR"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.only:
        before = resource.getrusage(resource.RUSAGE_SELF)
        start = time.perf_counter()
        way(options.only[0], Path(options.only[1]))
        wall, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
        cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
        print(f"{wall:.1f} {cpu:.1f} {used.ru_maxrss / 2**20:.2f}")
        return
    with tempfile.TemporaryDirectory(prefix="hpccoll-scale-") as name:
        nbytes = write(Path(name), options.files, options.samples)
        print(f"{options.files} files, {options.files * options.samples} samples, {nbytes / 1e9:.2f} GB")
        print("way       wall s   CPU s  memory GiB  records/s  records/CPU s")
        for each in options.what.split(","):
            done = subprocess.run(
                [sys.executable, __file__, "--only", each, name], capture_output=True, text=True, timeout=3600
            )
            if done.returncode:
                print(f"{each}: failed\n{done.stderr}")
                continue
            wall, cpu, memory = map(float, done.stdout.split("\n")[-2].split())
            total = options.files * options.samples
            print(
                f"{each:8} {wall:7.1f} {cpu:7.1f} {memory:11.2f} {total / wall:10.0f} {total / cpu:14.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
