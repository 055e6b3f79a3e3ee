"""The record schema, what writes it and what reads it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hpccoll
from hpccoll.records import (
    FIELDS,
    SCHEMA,
    RecordWriter,
    git_state,
    job_id,
    make_end,
    make_event,
    make_manifest,
    make_metric,
    make_run_dir,
    node_file,
    parse_line,
    problems_of,
    rank_file,
    read_records,
    record_files,
)

DOCUMENT = Path(hpccoll.__file__).parents[1] / "docs" / "records.md"
CASE: dict[str, Any] = {
    "collective": "allreduce", "engine": "numpy", "nbytes": 8, "count": 2, "dtype": "float32", "op": "sum",
    "root": None, "in_place": False, "mode": "barrier", "launch": 0,
}  # fmt: skip
SAMPLE: dict[str, Any] = {
    "type": "sample", "rank": 3, **CASE, "iteration": 0, "calls": 1, "start_ns": 10, "end_ns": 25,
    "verified": True, "flags": "",
}  # fmt: skip


def test_every_field_is_documented() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for kind, fields in FIELDS.items():
        section = re.search(rf"^### `{kind}`\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
        assert section, kind
        shown = [line for line in section[1].splitlines() if line.startswith("| `")]
        assert shown == [f"| `{f.name}` | {f.kind} | {f.unit} | {f.meaning} |" for f in fields]


def test_times_and_sizes_have_units() -> None:
    for fields in FIELDS.values():
        for field in fields:
            if field.name.endswith("_ns"):
                assert field.unit == "ns"
    assert SCHEMA == "hpccoll.record/1"


def test_what_is_made_fits_the_schema() -> None:
    made = [
        make_manifest("allreduce", run="x", rank=1, size=4),
        make_event(1, "warning", "skipped", "too big", {"nbytes": 8}),
        make_metric(1, step=3, values={"loss": 0.25}),
        make_end(1, status="ok", lines=3),
        SAMPLE,
    ]
    for record in made:
        assert problems_of(record) == []
        assert json.loads(json.dumps(record)) == record
    assert made[0]["versions"]["hpccoll"] == hpccoll.__version__
    assert set(made[0]["versions"]) == {"hpccoll", "python", "numpy", "torch", "mpi4py", "mpi"}


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (7, "not an object"),
        ({"type": "simple"}, "type 'simple' is none of manifest, clock, sample"),
        ({}, "type None is none of"),
        ({k: v for k, v in SAMPLE.items() if k != "calls"}, "calls is missing"),
        ({**SAMPLE, "rank": "3"}, "rank is '3', expected int"),
        ({**SAMPLE, "nbytes": None}, "nbytes is None, expected int"),
        ({**SAMPLE, "nbytes": True}, "nbytes is True, expected int"),
        ({**SAMPLE, "dtype": 4}, "dtype is 4, expected str?"),
    ],
)
def test_what_does_not_fit(record: object, problem: str) -> None:
    [found] = problems_of(record)
    assert found.startswith(problem)


def test_later_versions_may_add_fields() -> None:
    assert problems_of({**SAMPLE, "temperature_c": 40, "op": None}) == []


def test_loss_that_is_not_a_number() -> None:
    record = make_metric(0, step=1, values={"loss": float("nan"), "norm": float("inf"), "n": 3})
    assert record["values"] == {"loss": "nan", "norm": "inf", "n": 3.0}
    json.dumps(record, allow_nan=False)


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "new" / rank_file(3)
    with RecordWriter(path) as log:
        log.write(make_event(3, "info", "note", "Zürich\nsecond line \udcff"))
        log.write(SAMPLE)
        log.write(make_end(3, status="ok", lines=log.lines))
        log.check()
    assert path.read_bytes().count(b"\n") == 3
    lines = list(read_records(path))
    assert [line.number for line in lines] == [1, 2, 3]
    assert [line.problem for line in lines] == [None] * 3
    assert lines[1].record == SAMPLE
    assert lines[2].record is not None
    assert lines[2].record["lines"] == 2
    assert str(lines[0].record).count("Zürich") == 1


def test_nobody_appends_to_the_file_of_another_run(tmp_path: Path) -> None:
    RecordWriter(tmp_path / "a").close()
    with pytest.raises(FileExistsError):
        RecordWriter(tmp_path / "a")


def test_path_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with RecordWriter(Path("x.jsonl")) as log:
        monkeypatch.chdir("/")
        log.write(SAMPLE)
        log.check()
    assert log.path == tmp_path / "x.jsonl"


def test_bad_lines_cost_only_themselves(tmp_path: Path) -> None:
    good = json.dumps(SAMPLE).encode()
    path = tmp_path / rank_file(0)
    path.write_bytes(good + b"\n\xff\xfe{}\n\n[1]\n" + b"[" * 100_000 + b"\n" + good + b"\n" + good[:40])
    found = [(line.number, line.record is not None, line.problem) for line in read_records(path)]
    assert [(number, right) for number, right, _ in found] == [
        (1, True), (2, False), (4, False), (5, False), (6, True), (7, False),
    ]  # fmt: skip
    assert found[-1][2] == "truncated"
    assert "not JSON" in str(found[1][2])
    assert parse_line(1, good).record == SAMPLE  # whole, though its line break is missing


def test_line_after_a_full_disk_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, room = os.write, [30, 0]

    def full(descriptor: int, data: bytes) -> int:
        if not room:
            return write(descriptor, data)
        left = room.pop(0)
        if not left:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:left])

    path = tmp_path / "x"
    with RecordWriter(path) as log:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            log.write(SAMPLE)
        log.write(SAMPLE)
        assert log.lines == 1
    found = list(read_records(path))
    assert [line.record for line in found] == [None, SAMPLE]


def test_removed_directory_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "run" / "x"
    with RecordWriter(path) as log:
        log.write(SAMPLE)
        path.unlink()
        path.parent.rmdir()
        with pytest.raises(FileNotFoundError, match="removed while it was written"):
            log.check()
        path.parent.mkdir()
        path.write_text("another file")
        with pytest.raises(FileNotFoundError):
            log.check()


KILLED = """
import os, signal, sys
from pathlib import Path
from hpccoll.records import RecordWriter, make_event
log = RecordWriter(Path(sys.argv[1]))
for i in range(100):
    log.write(make_event(0, "info", "note", "x" * 5000))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_process_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "x"
    subprocess.run([sys.executable, "-c", KILLED, path], timeout=60, check=False)
    found = list(read_records(path))
    assert len(found) == 100
    assert all(line.record for line in found)


def test_run_directories_are_unique(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "81/2")
    monkeypatch.chdir(tmp_path)
    made = [make_run_dir(Path("logs"), "allreduce") for _ in range(3)]
    assert len(set(made)) == 3
    for path in made:
        assert path.is_absolute()
        assert re.fullmatch(r"allreduce-\d{8}T\d{6}Z-81_2(-\d)?", path.name)


def test_file_names(tmp_path: Path) -> None:
    assert (rank_file(42), rank_file(123456), node_file(7)) == (
        "rank-00042.jsonl", "rank-123456.jsonl", "node-00007.jsonl",
    )  # fmt: skip
    for name in ("rank-00001.jsonl", "node-00000.jsonl", "rank-x.jsonl", "rank-00001.jsonl.bak", "notes"):
        (tmp_path / name).touch()
    assert [path.name for path in record_files(tmp_path)] == ["node-00000.jsonl", "rank-00001.jsonl"]


def test_job() -> None:
    assert job_id({}) is None
    assert job_id({"SLURM_JOB_ID": "7"}) == {"system": "Slurm", "id": "7"}


def test_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    kept_back = (
        "HPCCOLL_TOKEN",
        "TORCH_API_KEY",
        "HOME_OF_MINE",
        "HPCCOLL_LAUNCH_REPORT",
        "OMPI_MCA_initial_wdir",
    )
    for name in ("NCCL_DEBUG", "OMPI_MCA_btl", *kept_back):
        monkeypatch.setenv(name, "1")
    kept = make_manifest("x", run="x", rank=0, size=1)["environment"]
    assert {"NCCL_DEBUG", "OMPI_MCA_btl"} <= set(kept)
    assert not set(kept_back) & set(kept)


def test_git(tmp_path: Path) -> None:
    assert git_state(tmp_path / "nowhere") is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "f").write_text("1")
    subprocess.run([*git, "add", "f"], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    state = git_state(tmp_path)
    assert state is not None
    assert re.fullmatch("[0-9a-f]{40}", state["commit"])
    assert state["modified"] is False
    (tmp_path / "f").write_text("2")
    assert git_state(tmp_path) == {"commit": state["commit"], "modified": True}
