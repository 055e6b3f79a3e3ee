"""How long the diagnosis takes.

    python tests/diagnose/scale.py [--ranks 10000] [--operations 100]

writes the dumps of a job in which one rank does not come to an allreduce, and times ``python -m hpccoll.diagnose`` on
them in a process of its own, beside the time that reading and parsing the files alone takes. It measures, and is no
part of the tests.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from synthetic_dumps import End, Job, allreduce, barrier, broadcast, write_document

PARSE = "import json, pathlib, sys; [json.loads(p.read_bytes()) for p in pathlib.Path(sys.argv[1]).iterdir()]"


def write(directory: Path, ranks: int, operations: int) -> int:
    """The dumps of 16 ranks of one job, as often as it takes; returns their bytes."""
    calls = [(allreduce, broadcast, barrier)[i % 3]() for i in range(operations)]
    few = Job({rank: [*calls, allreduce(88)] if rank else [*calls, End("computing")] for rank in range(16)})
    documents = [few.document(rank) for rank in range(16)]
    total = 0
    for rank in range(ranks):
        document = dict(documents[rank % 15 + 1 if rank != ranks // 2 else 0] or {})
        document.update(rank=rank, size=ranks, host=f"node{rank // 64:04d}", pid=rank)
        document["communicators"] = [
            {**item, "ranks": f"0-{ranks - 1}"} for item in document["communicators"]
        ]
        total += write_document(directory, document).stat().st_size
    return total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=10_000)
    parser.add_argument("--operations", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        nbytes = write(Path(name), options.ranks, options.operations)
        print(f"{options.ranks} dumps of {options.operations} operations, {nbytes / 1e6:.0f} MB")
        for what, command in (
            ("json alone", ("-c", PARSE)),
            ("diagnose", ("-m", "hpccoll.diagnose", "--json", "-")),
        ):
            start = time.perf_counter()
            process = subprocess.Popen([sys.executable, *command, name], stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            output = process.stdout.read()
            _, _, usage = os.wait4(process.pid, 0)
            wall_s = time.perf_counter() - start
            cpu_s = usage.ru_utime + usage.ru_stime
            verdict = f", {json.loads(output)['verdict']}" if output else ""
            print(
                f"{what:10}  {wall_s:5.1f} s, CPU {cpu_s:5.1f} s, {usage.ru_maxrss / 1024:5.0f} MiB{verdict}"
            )


if __name__ == "__main__":
    main()
