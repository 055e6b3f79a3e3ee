"""Documents: JSON, CSV, Parquet, each written aside and renamed, so that a file that exists is whole."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from hpccoll.runs.analysis import Analysis, common_manifest
from hpccoll.runs.aside import write_aside
from hpccoll.runs.store import CASE, Store, literal, select_list
from hpccoll.runs.tables import CaseRow

__all__ = ["FORMAT", "document", "write_csv", "write_json", "write_parquet"]

FORMAT = "hpccoll.collect/1"


def document(found: Analysis) -> dict[str, Any]:
    """Everything but the samples."""
    health = found.health
    return {
        "format": FORMAT,
        "run": health.run,
        "program": health.program,
        "size": health.size,
        "whole": health.whole,
        "present": len(health.present),
        "lines": health.lines,
        "files": health.files,
        "dropped_lines": health.dropped_lines,
        "findings": [asdict(item) for item in health.findings],
        "problems": [str(item) for item in found.reading.problems],
        "manifest": common_manifest(health),
        "cases": [asdict(row) for row in found.cases],
        "fits": found.fits,
        "ranks": [asdict(row) for row in found.ranks],
        "hosts": [asdict(row) for row in found.hosts],
        "metrics": [asdict(row) for row in found.metrics],
        "events": found.events,
    }


def write_json(path: Path, found: Analysis) -> None:
    """Write the document."""
    write_aside(path, lambda aside: aside.write_text(json.dumps(document(found), indent=1) + "\n", "utf-8"))


def write_csv(path: Path, found: Analysis) -> None:
    """Write the table of cases; an empty field for what is not known."""
    names = [item.name for item in fields(CaseRow) if item.name != "launch_us"]

    def write(aside: Path) -> None:
        with open(aside, "w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(["run", "size", "whole", *names])
            for row in found.cases:
                values = (getattr(row, name) for name in names)
                fixed = (found.health.run, found.health.size, found.health.whole)
                writer.writerow([*fixed, *("" if value is None else value for value in values)])

    write_aside(path, write)


def write_parquet(path: Path, store: Store) -> None:
    """Write every sample with its case."""
    case = select_list(CASE, "c")
    query = (
        f"SELECT s.rank, {case}, s.iteration, s.start_ns, s.end_ns, s.verified, c.flags"
        " FROM samples AS s JOIN cases AS c USING (key)"
    )
    write_aside(
        path,
        lambda aside: store.db.execute(
            f"COPY ({query}) TO {literal(aside)} (FORMAT parquet, COMPRESSION zstd)"
        ),
    )
