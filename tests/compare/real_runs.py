"""Do two runs of the same build compare as the same, and one that is a fifth slower as slower?

    python tests/compare/real_runs.py [--ranks 2] [--tries 10]

starts one run more than there are tries and compares each with the next; then each with the next one's records in which
every call takes a fifth longer. It measures, so it needs a machine that nobody else uses, and is no part of the tests.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from hpccoll.records import record_files
from hpccoll.runs.comparing import compare, read_side

_SWEEP = ("-b", "64K", "-e", "512K", "--engine", "c,numpy", "--launches", "8", "-n", "200", "--no-progress")


def slow_down(run: Path, target: Path, factor: float) -> Path:
    """A copy of the records in which every call takes `factor` as long."""
    target.mkdir(parents=True)
    for path in record_files(run):
        with open(path, encoding="utf-8") as source, open(target / path.name, "w", encoding="utf-8") as copy:
            for line in source:
                record = json.loads(line)
                if record["type"] == "sample":
                    length = record["end_ns"] - record["start_ns"]
                    record["end_ns"] = record["start_ns"] + round(length * factor)
                copy.write(json.dumps(record) + "\n")
    return target


def main(argv: Sequence[str] | None = None) -> int:
    """Run, compare, and print how often each verdict came."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tries", type=int, default=10)
    parser.add_argument("--within", type=float, default=0.05)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        runs = []
        for number in range(options.tries + 1):
            logs = Path(name, f"logs-{number}")
            program = (sys.executable, "-m", "hpccoll.allreduce", *_SWEEP, "--log-dir", str(logs))
            subprocess.run(
                ["mpirun", "-n", str(options.ranks), *program],
                check=True,
                timeout=300,
                stdout=subprocess.DEVNULL,
            )
            (run,) = logs.iterdir()
            runs.append(run)
        same: Counter[str] = Counter()
        slower: Counter[str] = Counter()
        for number, (base, new) in enumerate(pairwise(runs)):
            side, slow = read_side(base), slow_down(new, Path(name, f"slow-{number}"), 1.2)
            same[compare(side, read_side(new), options.within)[0].verdict] += 1
            slower[compare(side, read_side(slow), options.within)[0].verdict] += 1
    print(f"the same build: {dict(same)}")
    print(f"a fifth slower: {dict(slower)}")
    return 0 if same["same"] >= 0.9 * options.tries and slower["slower"] >= 0.9 * options.tries else 1


if __name__ == "__main__":
    sys.exit(main())
