"""Every fault of a run is found, named and counted; what is good is kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import RUN, Synthetic

from hpccoll.collect.program import main
from hpccoll.records import rank_file
from hpccoll.runs.analysis import Analysis, analyse
from hpccoll.runs.reading import read_files
from hpccoll.runs.store import RunError, Store


def collect(*directories: Path) -> Analysis:
    with Store() as store:
        return analyse(store, directories)


def kinds(found: Analysis) -> dict[str, tuple[int, tuple[int, ...]]]:
    return {item.kind: (item.count, item.ranks) for item in found.health.findings}


def text_of(found: Analysis, kind: str) -> str:
    (text,) = [item.text for item in found.health.findings if item.kind == kind]
    return text


def iterations(found: Analysis) -> dict[int, tuple[int, int]]:
    return {row.nbytes: (row.iterations, row.incomplete) for row in found.cases}


@pytest.mark.parametrize("by_node", [False, True])
def test_whole(tmp_path: Path, by_node: bool, capsys: pytest.CaptureFixture[str]) -> None:
    Synthetic().write(tmp_path, by_node=by_node)
    found = collect(tmp_path)
    assert found.health.findings == []
    assert found.health.hosts == {"node01": [0, 1], "node02": [2, 3]}
    assert found.health.lines == 4 * (2 + 3 * 50)
    assert iterations(found) == {8: (50, 0), 1024: (50, 0), 1048576: (50, 0)}
    assert main([str(tmp_path), "--strict"]) == 0
    assert capsys.readouterr().out.startswith(
        f"{RUN}: allreduce, 4 of 4 ranks on 2 hosts (node[01-02]), 608 lines in {2 if by_node else 4} files: whole\n"
    )


def test_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Synthetic(ranks=8).write(tmp_path, leave_out=[1, 2, 3, 6])
    found = collect(tmp_path)
    assert kinds(found) == {"missing": (4, (1, 2, 3, 6))}
    assert text_of(found, "missing") == "4 ranks of 8 left no records: [1-3,6]"
    assert [row.ranks for row in found.cases] == [4, 4, 4]
    assert main([str(tmp_path)]) == 0
    assert main([str(tmp_path), "--strict"]) == 1
    assert "! 4 ranks of 8 left no records: [1-3,6]" in capsys.readouterr().out


def test_duplicated(tmp_path: Path) -> None:
    run = Synthetic()
    run.write(tmp_path)
    shutil.copy(tmp_path / rank_file(2), tmp_path / rank_file(17))
    found = collect(tmp_path)
    assert kinds(found) == {"duplicated": (1, (2,))}
    assert "rank 2 in rank-00002.jsonl and rank-00017.jsonl" in text_of(found, "duplicated")
    assert found.health.dropped_lines == 151
    assert iterations(found) == {8: (50, 0), 1024: (50, 0), 1048576: (50, 0)}


def test_two_manifests_in_one_file(tmp_path: Path) -> None:
    Synthetic().write(tmp_path, change=lambda rank, lines: lines + lines if rank == 1 else lines)
    found = collect(tmp_path)
    assert kinds(found)["duplicated"] == (1, (1,))
    assert "several manifests in one file" in text_of(found, "duplicated")
    assert iterations(found) == {8: (0, 50), 1024: (0, 50), 1048576: (0, 50)}


def test_of_two_files_of_a_rank_the_finished_one_counts(tmp_path: Path) -> None:
    run = Synthetic()
    run.write(tmp_path, change=lambda rank, lines: lines[:-1] if rank == 2 else lines)
    (tmp_path / rank_file(17)).write_text("\n".join(run.lines(2, run.times())) + "\n")
    assert set(kinds(collect(tmp_path))) == {"duplicated"}


def test_foreign(tmp_path: Path) -> None:
    Synthetic().write(tmp_path, leave_out=[3])
    Synthetic(ranks=16, run="other-1").write(tmp_path / "other")
    shutil.move(tmp_path / "other" / rank_file(3), tmp_path / rank_file(3))
    found = collect(tmp_path)
    assert kinds(found) == {"missing": (1, (3,)), "foreign": (1, ())}
    assert "rank-00003.jsonl (rank 3 of 16 of other-1)" in text_of(found, "foreign")
    assert found.health.dropped_lines == 151
    assert [row.ranks for row in found.cases] == [3, 3, 3]


def test_unfinished(tmp_path: Path) -> None:
    Synthetic().write(tmp_path, change=lambda rank, lines: lines[:121] if rank == 1 else lines)
    found = collect(tmp_path)
    assert kinds(found) == {"unfinished": (1, (1,))}
    assert iterations(found) == {8: (50, 0), 1024: (50, 0), 1048576: (20, 30)}


def test_truncated(tmp_path: Path) -> None:
    Synthetic().write(tmp_path)
    path = tmp_path / rank_file(1)
    whole = path.read_bytes()
    end = whole[:-1].rindex(b"\n") + 1
    path.write_bytes(whole[: end - 30])
    found = collect(tmp_path)
    assert kinds(found) == {"unfinished": (1, (1,)), "truncated": (1, ())}
    assert "rank-00001.jsonl" in text_of(found, "truncated")
    assert iterations(found) == {8: (50, 0), 1024: (50, 0), 1048576: (49, 1)}


def test_a_last_line_without_its_line_break_is_kept(tmp_path: Path) -> None:
    Synthetic().write(tmp_path)
    path = tmp_path / rank_file(1)
    path.write_bytes(path.read_bytes()[:-1])
    assert collect(tmp_path).health.findings == []


def test_corrupt_lines_cost_themselves(tmp_path: Path) -> None:
    def change(rank: int, lines: list[str]) -> list[str]:
        if rank == 2:
            lines[10], lines[60] = "\x00\udcff{", lines[60].replace('"end_ns": ', '"end_ns": "x')
        return lines

    Synthetic().write(tmp_path, change=change)
    found = collect(tmp_path)
    assert kinds(found) == {"corrupt": (2, ()), "lost": (2, (2,))}
    text = text_of(found, "corrupt")
    assert "rank-00002.jsonl:11: " in text
    assert "rank-00002.jsonl:61: " in text
    assert iterations(found) == {8: (49, 1), 1024: (49, 1), 1048576: (50, 0)}


def test_a_lost_manifest_costs_itself(tmp_path: Path) -> None:
    Synthetic().write(tmp_path, change=lambda rank, lines: ["{", *lines[1:]] if rank == 3 else lines)
    found = collect(tmp_path)
    assert kinds(found) == {"headless": (1, (3,)), "corrupt": (1, ()), "lost": (1, (3,))}
    assert iterations(found)[8] == (50, 0)
    assert found.health.hosts["?"] == [3]


def test_lines_lost_in_the_middle(tmp_path: Path) -> None:
    Synthetic().write(tmp_path, change=lambda rank, lines: lines[:50] + lines[52:] if rank == 0 else lines)
    found = collect(tmp_path)
    assert kinds(found) == {"lost": (2, (0,))}
    assert sum(row.incomplete for row in found.cases) == 2


def test_a_line_that_is_there_twice_is_no_iteration(tmp_path: Path) -> None:
    Synthetic().write(
        tmp_path, change=lambda rank, lines: [*lines[:5], lines[4], *lines[5:]] if rank == 0 else lines
    )
    found = collect(tmp_path)
    assert kinds(found) == {"lost": (1, (0,))}
    assert "1 lines more than were written are there" in text_of(found, "lost")
    assert iterations(found)[8] == (49, 1)


def test_split_world(tmp_path: Path) -> None:
    for number in range(4):
        Synthetic(ranks=1, run=f"run-{number}", manifest={"pid": 100 + number}).write(tmp_path / str(number))
    found = collect(*(tmp_path / str(number) for number in range(4)))
    assert kinds(found)["split-world"] == (4, ())
    assert "4 processes are each rank 0 of 1 (node01 pid 100, node01 pid 101," in text_of(
        found, "split-world"
    )


def test_split_world_by_the_launcher(tmp_path: Path) -> None:
    launcher = {"name": "srun", "rank": 0, "size": 4, "local_rank": 0, "local_size": 4}
    Synthetic(ranks=1, manifest={"launcher": launcher}).write(tmp_path)
    assert set(kinds(collect(tmp_path))) == {"split-world"}


def test_mixed_versions(tmp_path: Path) -> None:
    run = Synthetic(ranks=4)
    odd = {"hpccoll": "0.1.0", "python": "3.11", "numpy": "2", "torch": None, "mpi": "MPI Y 2\nmore"}
    times = run.times()
    for rank in range(4):
        lines = run.lines(rank, times, **({"versions": odd} if rank == 2 else {}))
        (tmp_path / rank_file(rank)).write_text("\n".join(lines) + "\n")
    found = collect(tmp_path)
    assert kinds(found) == {"mixed": (2, (2,))}
    assert (
        text_of(found, "mixed") == "mpi differs between ranks: MPI X 1 on ranks [0-1,3], MPI Y 2 on ranks 2"
    )


def test_wrong_results_and_status(tmp_path: Path) -> None:
    def change(rank: int, lines: list[str]) -> list[str]:
        if rank == 1:
            lines[7] = lines[7].replace('"verified": true', '"verified": false')
            lines[-1] = lines[-1].replace('"ok"', '"wrong"')
        return lines

    Synthetic().write(tmp_path, change=change)
    found = collect(tmp_path)
    assert kinds(found) == {"wrong": (1, (1,)), "status": (1, (1,))}
    assert [row.wrong for row in found.cases] == [1, 0, 0]


def test_one_rank(tmp_path: Path) -> None:
    Synthetic(ranks=1).write(tmp_path)
    found = collect(tmp_path)
    assert found.health.findings == []
    assert [row.busbw_gb_per_s for row in found.cases] == [None] * 3
    assert found.stragglers == []


def test_ten_thousand_ranks(tmp_path: Path) -> None:
    run = Synthetic(ranks=10_000, per_host=100, sizes=(8,), iterations=3, late_us={77: 900.0})
    run.write(tmp_path, leave_out=[4000, *range(5000, 5100)])
    found = collect(tmp_path)
    assert kinds(found) == {"missing": (101, (4000, *range(5000, 5100)))}
    assert text_of(found, "missing") == "101 ranks of 10000 left no records: [4000,5000-5099]"
    assert iterations(found) == {8: (3, 0)}
    assert len(found.ranks) == 9899
    assert max(found.ranks, key=lambda row: row.lateness_us or 0.0).rank == 77


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    Synthetic().write(tmp_path)
    path = tmp_path / rank_file(1)
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    found = collect(tmp_path)
    assert kinds(found) == {"missing": (1, (1,)), "unreadable": (1, ())}


def test_names_with_wildcards(tmp_path: Path) -> None:
    directory = tmp_path / "it's [a] *run?"
    Synthetic().write(directory)
    assert collect(directory).health.findings == []


def test_the_parent_of_one_run_stands_for_it(tmp_path: Path) -> None:
    Synthetic().write(tmp_path / "a")
    assert collect(tmp_path).health.findings == []
    Synthetic(run="b").write(tmp_path / "b")
    with pytest.raises(RunError, match="holds 2 runs, name one of them: a, b"):
        collect(tmp_path)


def test_several_runs_one_after_the_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a job leaves them: DIR/COLLECTIVE/RUN."""
    Synthetic().write(tmp_path / "allreduce" / "a")
    Synthetic(run="b").write(tmp_path / "broadcast" / "b")
    assert main([str(tmp_path), "--strict"]) == 0
    titles = [line for line in capsys.readouterr().out.splitlines() if line.startswith("====")]
    assert titles == ["==== allreduce/a", "==== broadcast/b"]
    assert main([str(tmp_path), "--html", str(tmp_path / "r.html")]) == 2
    assert "--html is for one run" in capsys.readouterr().err
    next((tmp_path / "broadcast" / "b").glob("*.jsonl")).unlink()
    assert main([str(tmp_path), "--strict"]) == 1


def test_nothing_to_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "holds no record files" in capsys.readouterr().err
    assert main([str(tmp_path / "none")]) == 2
    assert "No such file or directory" in capsys.readouterr().err
    (tmp_path / rank_file(0)).write_bytes(b"")
    assert main([str(tmp_path)]) == 2
    assert "no manifest in any of 1 files" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2


def test_memory_that_does_not_hold_the_samples(tmp_path: Path) -> None:
    """The database goes on in temporary files and finds the same."""
    Synthetic(ranks=16, iterations=500, launches=4).write(tmp_path, by_node=True)
    plenty = collect(tmp_path)
    with Store(memory_gb=0.12, threads=1) as store:
        assert analyse(store, [tmp_path]).cases == plenty.cases


@pytest.mark.parametrize("field", ["rank", "launch", "end_ns"])
def test_integers_beyond_every_column(tmp_path: Path, field: str) -> None:
    def change(rank: int, lines: list[str]) -> list[str]:
        if rank == 0:
            record: dict[str, Any] = json.loads(lines[3])
            lines[3] = json.dumps({**record, field: 10**30})
        return lines

    Synthetic().write(tmp_path, change=change)
    assert kinds(collect(tmp_path)) == {"corrupt": (1, ()), "lost": (1, (0,))}


def test_further_fields_and_blank_lines_do_no_harm(tmp_path: Path) -> None:
    def change(rank: int, lines: list[str]) -> list[str]:
        lines[3] = lines[3][:-1] + ', "new": {"a": [1]}}'
        return [*lines[:9], *([""] if rank == 1 else []), *lines[9:]]

    Synthetic().write(tmp_path, change=change)
    found = collect(tmp_path)
    assert found.health.findings == []
    with Store() as store:
        reading = read_files(store, found.reading.files)
    assert (reading.lines, reading.lost) == (608, 0)


def test_a_line_that_is_longer_than_any(tmp_path: Path) -> None:
    """It is good JSON, but beyond what the database reads; everything else is kept."""
    event = {"type": "event", "rank": 1, "unix_ns": 1, "level": "info", "kind": "x", "values": {}}
    long = json.dumps({**event, "text": "x" * 2**26})
    Synthetic().write(
        tmp_path, change=lambda rank, lines: [*lines[:-1], long, lines[-1]] if rank == 1 else lines
    )
    found = collect(tmp_path)
    assert kinds(found) == {"corrupt": (1, ())}
    assert "rank-00001.jsonl:152: longer than 33554432 bytes" in text_of(found, "corrupt")
    assert len(found.health.manifests) == 4
    assert iterations(found) == {8: (50, 0), 1024: (50, 0), 1048576: (50, 0)}


def test_a_size_that_is_a_mistake(tmp_path: Path) -> None:
    Synthetic(manifest={"size": 10**15}).write(tmp_path)
    assert kinds(collect(tmp_path)) == {"missing": (10**15 - 4, ())}
