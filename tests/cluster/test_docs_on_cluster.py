"""The commands of the documentation that need several hosts or Slurm, as they stand there."""

import os
import shlex
from pathlib import Path

import pytest
from cluster_support import Cluster
from docs_blocks import COMMANDS, PAGES, ROOT, Block, blocks_of

LIMIT_S = 150
HERE = "on the cluster"


def pages() -> list[Path]:
    return [page for page in PAGES if any(block.mark(HERE) is not None for block in blocks_of(page))]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_page(cluster: Cluster, page: Path) -> None:
    place = cluster.shared / page.stem
    place.mkdir()
    for path in ROOT.iterdir():
        if not path.name.startswith("."):
            (place / path.name).symlink_to(path)
    for name in ("train.py", "my_program"):
        (place / name).write_text("#!/usr/bin/env python\nimport hpccoll\n\nhpccoll.world().barrier()\n")
        (place / name).chmod(0o755)
    for block in blocks_of(page):
        if name := block.mark("file "):
            (place / name).write_text(block.code, encoding="utf-8")
        elif block.mark(HERE) is not None:
            assert block.language in COMMANDS
            run(cluster, block, place)
    assert not cluster.left()


def run(cluster: Cluster, block: Block, place: Path) -> None:
    script = f"cd {shlex.quote(str(place))}\n{block.code}"
    # sbatch waits for the end of its job, and ends with its status. One collective is enough.
    settings = {
        "SBATCH_WAIT": "1",
        "SBATCH_TIMELIMIT": "3",
        "COLLECTIVES": "allreduce",
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(place))),
    }
    done = cluster.run("bash", "-euo", "pipefail", "-c", script, timeout_s=LIMIT_S, **settings)
    outputs = "".join(path.read_text(errors="replace") for path in sorted(place.glob("slurm-*.out")))
    assert done.status in block.statuses, f"{block.id}\n{block.code}\n{done.text}\n{outputs}"
