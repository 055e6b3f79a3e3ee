"""Plain logs of many ranks: whose line it is, what is the same, what only few said."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpccoll.collect.program import main
from hpccoll.collect.text import merge_texts, ranked_files, render
from hpccoll.nodelist import expand
from hpccoll.runs.nodeset import fold_hosts, fold_ranks

TRACE = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    step()
ZeroDivisionError: division by zero"""


def show(*patterns: Path | str) -> list[str]:
    return list(render(*merge_texts(ranked_files([str(pattern) for pattern in patterns]))))


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([], ""), ([3], "3"), ([0, 1, 2, 3, 5], "[0-3,5]"), ([7, 5, 6, 5], "[5-7]"), ([1, 3, 5], "[1,3,5]")],
)
def test_fold_ranks(ranks: list[int], text: str) -> None:
    assert fold_ranks(ranks) == text


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        (["node1", "node2", "node4"], "node[1-2,4]"),
        (["node08", "node09", "node10", "node11"], "node[08-11]"),
        (["n1", "n10", "n2"], "n[1-2,10]"),
        (["rack1node1", "rack1node2", "rack2node1"], "rack1node[1-2],rack2node1"),
        (["a1.site", "a2.site", "login"], "a[1-2].site,login"),
        (["same", "same"], "same"),
    ],
)
def test_fold_hosts(hosts: list[str], text: str) -> None:
    assert fold_hosts(hosts) == text
    assert sorted(expand(text)) == sorted(set(hosts))


def write_logs(directory: Path, names: dict[str, str]) -> None:
    for name, text in names.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_files_of_srun(tmp_path: Path) -> None:
    texts = {f"job-812345.{rank:02d}.out": "start\nstep 1\n" for rank in range(12)}
    texts["job-812345.07.out"] += "cannot open the file\n"
    texts["job-812345.03.out"] += TRACE + "\n"
    texts["job-812345.11.out"] = "start\n"
    write_logs(tmp_path, texts)
    assert show(tmp_path / "*.out") == [
        "12 ranks ([0-11]), 4 different lines, 1 of them errors",
        "3: Traceback (most recent call last):",
        '      File "train.py", line 3, in <module>',
        "        step()",
        "    ZeroDivisionError: division by zero",
        "7: cannot open the file",
        "all 12: start",
        "[0-10]: step 1",
    ]


def test_host_and_rank_in_the_name(tmp_path: Path) -> None:
    write_logs(tmp_path, {f"log.node{17 + rank}.{rank}": f"{rank % 2}\n" for rank in range(4)})
    assert show(tmp_path / "log.*") == [
        "4 ranks ([0-3]), 2 different lines, 0 of them errors",
        "[0,2]: 0",
        "[1,3]: 1",
    ]


def test_standard_error_in_files_of_its_own(tmp_path: Path) -> None:
    write_logs(tmp_path, {f"r{rank}.{end}": f"{end}\n" for rank in range(3) for end in ("out", "err")})
    assert sorted(show(tmp_path / "*")[1:]) == ["all 3: err", "all 3: out"]


def test_directories_of_open_mpi(tmp_path: Path) -> None:
    write_logs(tmp_path, {f"prterun-n-1@1/rank.{rank}/stdout": "hello\n" for rank in range(4)})
    write_logs(tmp_path, {f"prterun-n-1@1/rank.{rank}/stderr": f"warning {rank // 3}\n" for rank in range(4)})
    assert show(tmp_path)[1:] == ["3: warning 1", "[0-2]: warning 0", "all 4: hello"]


@pytest.mark.parametrize(
    "head",
    ["{}: ", "[1,{}]<stdout>: ", "[prterun-host-77@1,{}]<stdout>: ", "[rank{}]: ", "[{}] ", "[default{}]:"],
)
def test_heads_of_lines(tmp_path: Path, head: str) -> None:
    lines = [f"{head.format(rank)}{text}" for text in ("a", "b") for rank in range(4)] + [
        f"{head.format(2)}alone"
    ]
    (tmp_path / "all.out").write_text("\n".join(lines) + "\n")
    assert show(tmp_path / "all.out") == [
        "4 ranks ([0-3]), 3 different lines, 0 of them errors", "2: alone", "all 4: a", "all 4: b",
    ]  # fmt: skip


def test_the_earliest_exception_comes_first(tmp_path: Path) -> None:
    write_logs(
        tmp_path,
        {
            "o.0": "a\nb\nc\nd\n" + TRACE.replace("Zero", "Late"),
            "o.1": "a\n" + TRACE,
            "o.2": "a\nb\nc\nRuntimeError: peer closed\n",
            "o.3": "a\nb\nc\nRuntimeError: peer closed\n",
        },
    )
    heads = [line for line in show(tmp_path / "o.*")[1:] if not line.startswith(" ")]
    assert heads == [
        "1: Traceback (most recent call last):",
        "0: Traceback (most recent call last):",
        "[2-3]: RuntimeError: peer closed",
        "0: d",
        "all 4: a",
        "[0,2-3]: b",
        "[0,2-3]: c",
    ]


def test_lines_that_come_again(tmp_path: Path) -> None:
    write_logs(tmp_path, {"o.0": "tick\n" * 5, "o.1": "tick\n"})
    assert show(tmp_path / "o.*")[1:] == ["all 2: tick (6 times)"]


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "o.0").write_bytes(b"\xff\x00good\nx")
    (tmp_path / "o.1").write_bytes(b"x\n")
    assert "all 2: x" in show(tmp_path / "o.*")


def test_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_logs(tmp_path, {"o.0": "x\n", "o.1": "x\n"})
    assert main(["--text", str(tmp_path / "o.*"), "--strict"]) == 0
    assert "all 2: x" in capsys.readouterr().out
    (tmp_path / "o.1").write_text(TRACE)
    assert main(["--text", str(tmp_path / "o.*"), "--strict"]) == 1
    assert main(["--text", str(tmp_path / "nothing*")]) == 2
    assert "no file matches" in capsys.readouterr().err
