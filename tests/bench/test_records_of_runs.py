"""What a run leaves behind, whatever happens to it."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from bench_support import rows
from conftest import Mpirun
from mpi_plugin import need

from hpccoll.records import read_records, record_files

INJECTED = Path(__file__).with_name("injected.py")
SMALL = ("-b", "1K", "-e", "4K", "-f", "4", "-w", "2", "--batch", "1")


def run(
    mpirun: Mpirun, fault: str, line: str, logs: Path, *, n: int = 3, check: bool = True, samples: int = 30
) -> Any:
    words = [*line.split(), *SMALL, "-n", str(samples), "--log-dir", logs]
    return mpirun(n, INJECTED, *fault.split(), "--", *words, check=check, timeout_s=120)


def records(logs: Path) -> dict[str, list[dict[str, Any]]]:
    """The records of the only run in `logs`, by file; every line has to be whole and fit the schema."""
    [directory] = logs.iterdir()
    found: dict[str, list[dict[str, Any]]] = {}
    for path in record_files(directory):
        lines = list(read_records(path))
        assert [line.problem for line in lines] == [None] * len(lines), path
        found[path.name] = [line.record for line in lines if line.record is not None]
    return found


def of_type(lines: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["type"] == kind]


def test_every_rank_keeps_every_sample(mpirun: Mpirun, tmp_path: Path) -> None:
    done = run(mpirun, "none", "allreduce --engine numpy,mpi4py", tmp_path)
    files = records(tmp_path)
    assert list(files) == ["rank-00000.jsonl", "rank-00001.jsonl", "rank-00002.jsonl"]
    runs = set()
    for rank, lines in enumerate(files.values()):
        manifest = lines[0]
        assert (manifest["type"], manifest["rank"], manifest["size"]) == ("manifest", rank, 3)
        assert manifest["versions"]["mpi"]
        assert manifest["launcher"]["size"] == 3
        assert f"records are in {tmp_path}" in done.stdout
        runs.add(manifest["run"])
        assert (lines[-1]["type"], lines[-1]["status"]) == ("end", "ok")
        assert lines[-1]["lines"] == len(lines) - 1
        kept = of_type(lines, "sample")
        keys = Counter((line["engine"], line["nbytes"]) for line in kept)
        assert keys == dict.fromkeys([(e, b) for e in ("numpy", "mpi4py") for b in (1024, 4096)], 30)
        assert {line["iteration"] for line in kept} == set(range(30))
        assert {line["rank"] for line in lines} == {rank}
        assert all(line["verified"] and line["end_ns"] >= line["start_ns"] > 0 for line in kept)
        flags = {line["flags"] for line in kept} | {manifest["flags"]}
        assert flags == {manifest["flags"]}
        assert "oversubscribed" in manifest["flags"] or "oversubscribed no" in done.stdout
        clocks = of_type(lines, "clock")
        assert len(clocks) == 2
        assert all((line["uncertainty_ns"] > 0) == (rank > 0) for line in clocks)
    assert len(runs) == 1


def test_one_writer_per_node(mpirun: Mpirun, tmp_path: Path) -> None:
    run(mpirun, "none", "broadcast --writers node", tmp_path)
    [(name, lines)] = records(tmp_path).items()
    assert name == "node-00000.jsonl"
    for kind, number in (("manifest", 1), ("end", 1), ("sample", 60)):
        assert Counter(line["rank"] for line in of_type(lines, kind)) == dict.fromkeys(range(3), number)


def test_many_samples_become_a_histogram(mpirun: Mpirun, tmp_path: Path) -> None:
    run(mpirun, "none", "reduce --max-samples 89", tmp_path)
    files = records(tmp_path)
    assert not [line for lines in files.values() for line in of_type(lines, "sample")]
    assert not [line for name in list(files)[1:] for line in of_type(files[name], "histogram")]
    histograms = of_type(files["rank-00000.jsonl"], "histogram")
    assert [line["nbytes"] for line in histograms] == [1024, 4096]
    for line in histograms:
        assert (line["ranks"], line["samples"], sum(line["counts"])) == (3, 90, 90)
        assert line["lower_ns"] == sorted(line["lower_ns"])
        assert all(low < high for low, high in zip(line["lower_ns"], line["upper_ns"], strict=True))


def test_late_rank_is_named_though_its_calls_are_the_shortest(mpirun: Mpirun, tmp_path: Path) -> None:
    done = run(mpirun, "late 1 4", "allreduce", tmp_path)
    [line] = [line for line in done.stdout.splitlines() if "came last" in line]
    assert line.startswith("# rank 1 (")
    samples = [line for lines in records(tmp_path).values() for line in of_type(lines, "sample")]
    durations = {
        rank: median(s["end_ns"] - s["start_ns"] for s in samples if s["rank"] == rank) for rank in range(3)
    }
    assert min(durations, key=durations.__getitem__) == 1
    assert min(durations[0], durations[2]) > 3e6
    entries = {(s["nbytes"], s["iteration"]): s["start_ns"] for s in samples if s["rank"] == 0}
    after = [s["start_ns"] - entries[s["nbytes"], s["iteration"]] for s in samples if s["rank"] == 1]
    assert median(after) == pytest.approx(4e6, rel=0.5)


def test_nobody_is_named_where_nobody_is_late(mpirun: Mpirun, tmp_path: Path) -> None:
    assert "came last" not in run(mpirun, "none", "allreduce", tmp_path, n=1).stdout


@pytest.mark.parametrize("mode", ["barrier", "window"])
def test_clock_that_is_10_s_ahead_changes_nothing(mpirun: Mpirun, tmp_path: Path, mode: str) -> None:
    done = run(mpirun, "clock 1 10", f"allreduce --mode {mode}", tmp_path, n=2, samples=100)
    files = records(tmp_path)
    mine, other = (of_type(lines, "clock")[0]["offset_ns"] for lines in files.values())
    assert other - mine == pytest.approx(-10e9, abs=1e9)
    starts = [
        {(s["nbytes"], s["iteration"]): s["start_ns"] for s in of_type(lines, "sample")}
        for lines in files.values()
    ]
    assert starts[0].keys() == starts[1].keys()
    assert all(abs(start - starts[1][key]) < 1e9 for key, start in starts[0].items())
    assert all(float(row["max"]) < 1e6 for row in rows(done.stdout))
    assert done.stdout.splitlines()[-1].startswith("# every result of every call verified")


@pytest.mark.parametrize("engine", ["c", "gloo"])
def test_wrong_element_fails_the_run(mpirun: Mpirun, tmp_path: Path, engine: str) -> None:
    """In one call of one engine on one rank: that row and that record alone are wrong."""
    if engine == "gloo":
        need("torch")
    done = run(mpirun, f"spoil {engine} 12", f"allreduce --engine numpy,{engine}", tmp_path, check=False)
    assert done.returncode == 1, done.stdout
    assert done.stdout.splitlines()[-1] == "# FAILED: 1 wrong elements"
    found = [(row["engine"], row["bytes"], row["wrong"]) for row in rows(done.stdout)]
    assert [row for row in found if row[2] != "0"] == [(engine, "1024", "1")]
    files = records(tmp_path)
    wrong = [line for lines in files.values() for line in of_type(lines, "sample") if not line["verified"]]
    assert [(line["rank"], line["engine"], line["nbytes"], line["iteration"]) for line in wrong] == [
        (1, engine, 1024, 10)
    ]
    [event] = [
        line for lines in files.values() for line in of_type(lines, "event") if line["kind"] == "wrong"
    ]
    assert event["rank"] == 1
    assert [of_type(lines, "end")[0]["status"] for lines in files.values()] == ["wrong"] * 3


def test_killed_rank_leaves_the_records_of_all(mpirun: Mpirun, tmp_path: Path) -> None:
    done = run(mpirun, "kill 1 1", "allreduce", tmp_path, check=False)
    assert done.returncode != 0
    for lines in records(tmp_path).values():
        assert len([line for line in of_type(lines, "sample") if line["nbytes"] == 1024]) == 30
        assert not of_type(lines, "end")


def check_loss(done: subprocess.CompletedProcess[str], ranks: str, reason: str) -> None:
    assert done.returncode == 1, done.stdout
    assert done.stdout.splitlines()[-2] == "# every result of every call verified on every rank"
    last = done.stdout.splitlines()[-1]
    assert last.startswith("# FAILED: ")
    assert last.endswith(f" lines of records were lost, on rank {ranks}")
    named = [line for line in done.stderr.splitlines() if "cannot write its records" in line]
    assert len(named) == len(ranks.split(", "))
    assert all(reason in line and "the benchmark goes on" in line for line in named)
    assert len(rows(done.stdout)) == 2


def test_full_disk(mpirun: Mpirun, tmp_path: Path) -> None:
    done = run(mpirun, "disk 1 4000", "allreduce", tmp_path, check=False)
    check_loss(done, "1", "rank 1 (")
    [directory] = tmp_path.iterdir()
    lines = list(read_records(directory / "rank-00001.jsonl"))
    assert [line.problem for line in lines[:-1]] == [None] * (len(lines) - 1)
    assert [line.problem for line in read_records(directory / "rank-00002.jsonl") if line.problem] == []


def test_removed_directory(mpirun: Mpirun, tmp_path: Path) -> None:
    done = run(mpirun, "remove 1", "allreduce", tmp_path, check=False)
    check_loss(done, "0, 1, 2", "the file was removed while it was written")


def test_directory_that_cannot_be_made(mpirun: Mpirun, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = mpirun(2, "-m", "hpccoll.allreduce", "--log-dir", tmp_path / "file", check=False)
    assert done.returncode == 2
    [line] = [line for line in done.stderr.splitlines() if "hpccoll" in line]
    assert "argument --log-dir: cannot make a directory in" in line


def test_mixed_hosts_are_marked(mpirun: Mpirun, tmp_path: Path) -> None:
    done = run(mpirun, "mixed", "scatter", tmp_path, n=2)
    assert "# hosts mixed yes" in done.stdout
    assert all("M" in row["flags"] for row in rows(done.stdout))
    samples = [line for lines in records(tmp_path).values() for line in of_type(lines, "sample")]
    assert all("mixed-hosts" in line["flags"].split(",") for line in samples)
