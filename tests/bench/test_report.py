"""The table, the JSON document, and readers that go away."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hpccoll
from hpccoll.allgather import CASE as ALLGATHER
from hpccoll.allreduce import CASE as ALLREDUCE
from hpccoll.barrier import CASE as BARRIER
from hpccoll.bench import report as report_module
from hpccoll.bench.report import Report, columns_of, conditions
from hpccoll.bench.results import Failure, Header, Row, document
from hpccoll.reduce import CASE as REDUCE

ROOT = Path(hpccoll.__file__).parents[1]
HEADER = Header(
    collective="reduce", engine="numpy", mode="barrier", hpccoll="1.2", python="3.11", numpy="2.0", torch=None,
    mpi4py="4.1", mpi="Some MPI 3", ranks=6, hosts=["a", "b"], ranks_per_host=[4, 2], cores_per_host=[8, 8],
    usable_cores_per_host=[2, 8], oversubscribed=True, unbound=False, mixed_hosts=False,
    clock_resolution_ns=40, started="2030-01-02T03:04:05Z",
)  # fmt: skip
ROW = Row(
    nbytes=4096, count=1024, dtype="float32", op="sum", root=0, in_place=False, iterations=100, warmup=20,
    flags="oversubscribed", time_us=12.345, ci_low_us=12.0, ci_high_us=12.5,
    time_min_us=10.0, time_max_us=4321.0, algbw_gb_per_s=0.33179, busbw_gb_per_s=None,
)  # fmt: skip


def printed(capsys: pytest.CaptureFixture[str], case: Any, *rows: Row) -> list[str]:
    report = Report(case, len(rows), progress=True, to_stderr=False)
    report.header(HEADER)
    for row in rows:
        report.next("4096 bytes")
        report.rows([row])
    report.close()
    return capsys.readouterr().out.splitlines()


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, REDUCE, ROW)
    assert lines[0] == "# hpccoll 1.2 reduce, engine numpy, mode barrier"
    assert "# Some MPI 3" in lines
    assert "# ranks 6 on 2 hosts (2 to 4 a host): a, b" in lines
    assert "# cores 8 a host, usable 2 to 8; oversubscribed yes, unbound no" in lines
    assert any("more ranks than cores" in line and "not meaningful" in line for line in lines)
    titles, units, row = lines[-3:]
    assert titles.lstrip("#").split() == [
        "bytes", "count", "dtype", "op", "root", "mode", "iters", "median", "ci95", "min", "max", "algbw", "busbw",
        "flags", "wrong",
    ]  # fmt: skip
    assert units.lstrip("#").split() == ["us", "+-%", "us", "us", "GB/s", "GB/s"]
    assert row.split() == [
        "4096", "1024", "float32", "sum", "0", "barrier", "100", "12.35", "2.0", "10.00", "4321.0", "0.332", "n/a",
        "O", "0",
    ]  # fmt: skip
    assert all(line.startswith("#") for line in lines[:-1])
    for title, value in (("bytes", "4096"), ("dtype", "float32"), ("median", "12.35"), ("wrong", "0")):
        assert titles.index(title) + len(title) == row.rindex(value) + len(value)


def test_the_header_leaves_out_who_built_the_mpi() -> None:
    built = "Open MPI v5.0.11, package: Open MPI user@localhost Distribution, ident: 5.0.11"
    assert conditions(replace(HEADER, mpi=built))[1] == "# Open MPI v5.0.11"


def test_only_columns_that_mean_something(capsys: pytest.CaptureFixture[str]) -> None:
    titles = printed(capsys, ALLGATHER, ROW)[-3].lstrip("#").split()
    assert titles[:5] == ["bytes", "count", "dtype", "mode", "iters"]
    assert printed(capsys, BARRIER, ROW)[-3].lstrip("#").split() == [
        "mode", "iters", "median", "ci95", "min", "max", "flags", "wrong",
    ]  # fmt: skip


def test_batches_and_percentiles(capsys: pytest.CaptureFixture[str]) -> None:
    row = Row(**{**ROW.__dict__, "batch": 7, "time_p95_us": 20.0, "cv": 0.125})
    [line] = printed(capsys, BARRIER, row)[-1:]
    assert line.split()[1] == "100x7"
    wide = {c.title: c.text(row) for c in columns_of(REDUCE, engines=("numpy", "c"), wide=True)}
    assert (wide["p95"], wide["p99"], wide["cv"], wide["ratio"], wide["engine"]) == (
        "20.00", "n/a", "12.5", "n/a", "numpy",
    )  # fmt: skip


def test_skipped_and_wrong_rows(capsys: pytest.CaptureFixture[str]) -> None:
    skipped = Row(
        nbytes=2**40, count=2**38, dtype="float32", op="sum", root=0, in_place=False, skipped="too big"
    )
    wrong = Row(
        **{**ROW.__dict__, "wrong": 7, "failures": [Failure(3, "b", 7, "index 2: expected 1, found 0")]}
    )
    lines = printed(capsys, REDUCE, skipped, wrong)
    assert lines[-3].split() == [
        str(2**40),
        str(2**38),
        "float32",
        "sum",
        "0",
        "barrier",
        "skipped:",
        "too",
        "big",
    ]
    assert lines[-2].split()[-1] == "7"
    assert lines[-1] == "# WRONG on rank 3 (b): index 2: expected 1, found 0"


def test_document() -> None:
    content = json.loads(document(HEADER, [ROW], "ok"))
    assert content["format"] == "hpccoll.bench/1"
    assert content["status"] == "ok"
    assert content["header"]["ranks_per_host"] == [4, 2]
    assert content["rows"][0]["time_us"] == 12.345
    assert content["rows"][0]["busbw_gb_per_s"] is None
    assert content["rows"][0]["skipped"] is None


def test_every_field_of_the_document_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
    content = json.loads(document(HEADER, [ROW], "ok"))
    fields = {*content, *content["header"], *content["rows"][0], *Failure.__dataclass_fields__}
    assert sorted(name for name in fields if f"`{name}`" not in text) == []


CLOSED = """
from hpccoll.allgather import CASE
from hpccoll.bench.report import Report
report = Report(CASE, 1, progress=False, to_stderr=False)
for i in range(100000):
    report.line("x" * 100)
    if report.closed:
        raise SystemExit(7)
"""


def test_reader_that_goes_away() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CLOSED], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 7
        assert process.stderr is not None
        assert process.stderr.read() == b""


_LIKE_MPIRUN = """
import os, pty, subprocess, sys
_, own = pty.openpty()  # as Open MPI gives one to each rank
environ = {**os.environ, "OMPI_COMM_WORLD_RANK": "0"}
wrapper = [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:], check=True)"]
subprocess.run([*wrapper, sys.executable, "-c", sys.argv[1], sys.argv[2]], stdout=own, env=environ, check=True)
"""
_SAY_WIDTH = """
import sys
from pathlib import Path
from hpccoll.bench.report import terminal_width
Path(sys.argv[1]).write_text(str(terminal_width()))
"""


@pytest.mark.parametrize("under_mpirun", [False, True])
@pytest.mark.parametrize("terminal", [False, True])
def test_width_of_the_terminal(under_mpirun: bool, terminal: bool, tmp_path: Path) -> None:
    """A rank's own terminal says nothing about where mpirun writes."""
    controller, user = pty.openpty()
    fcntl.ioctl(user, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 97, 0, 0))
    answer = tmp_path / "width"
    programs = ["-c", _LIKE_MPIRUN, _SAY_WIDTH, answer] if under_mpirun else ["-c", _SAY_WIDTH, answer]
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_"))}
    try:
        subprocess.run(
            [sys.executable, *programs],
            stdout=user if terminal else subprocess.PIPE,
            env={**environ, "PYTHONPATH": str(ROOT)},
            timeout=60,
            check=True,
        )
    finally:
        os.close(controller)
        os.close(user)
    assert answer.read_text() == ("97" if terminal else "None")


def test_a_narrow_terminal_has_the_columns_that_matter() -> None:
    columns = columns_of(ALLREDUCE, engines=("numpy",), wide=False)
    for width, missing in ((200, ""), (120, "count, mode"), (80, "count, mode, iters, min, max, flags")):
        kept = [column.title for column in report_module._fitting(columns, width)]
        assert ", ".join(column.title for column in columns if column.title not in kept) == missing
