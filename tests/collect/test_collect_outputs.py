"""The documents hold what the tables hold; what is missing is named."""

from __future__ import annotations

import csv
import json
import struct
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from synthetic_runs import RUN, Synthetic

import hpccoll
from hpccoll.collect.figures import draw
from hpccoll.collect.program import main
from hpccoll.runs.analysis import analyse
from hpccoll.runs.store import Store

ROOT = Path(hpccoll.__file__).parents[1]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything at once."""
    directory = tmp_path_factory.mktemp("made")
    run = Synthetic(ranks=4, engines=("numpy", "mpi4py"), launches=2, late_us={2: 300.0}, iterations=30)
    run.write(directory / "run")
    names = {
        "csv": "t.csv",
        "json": "t.json",
        "parquet": "t.parquet",
        "trace": "t.trace.json",
        "html": "t.html",
    }
    options = [word for option, name in names.items() for word in (f"--{option}", str(directory / name))]
    assert main([str(directory / "run"), "--plots", str(directory / "plots"), *options]) == 0
    return directory


def test_json(made: Path) -> None:
    document = json.loads((made / "t.json").read_text())
    assert (document["format"], document["run"], document["whole"]) == ("hpccoll.collect/1", RUN, True)
    assert len(document["cases"]) == 6
    assert [row["rank"] for row in document["ranks"] if row["straggler"]] == [2]
    assert document["manifest"]["hosts"] == ["node01", "node02"]


def test_json_on_standard_output(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(made / "run"), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((made / "t.json").read_text())


def test_csv(made: Path) -> None:
    document = json.loads((made / "t.json").read_text())
    with open(made / "t.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["time_us"]) for row in rows] == [row["time_us"] for row in document["cases"]]
    assert {row["root"] for row in rows} == {""}


def test_parquet(made: Path) -> None:
    query = f"SELECT count(*), count(DISTINCT rank), max(end_ns) FROM '{made / 't.parquet'}' WHERE op = 'sum'"
    ((count, ranks, last),) = duckdb.connect().execute(query).fetchall()
    assert (count, ranks) == (4 * 6 * 2 * 30, 4)
    assert last > 0


def test_trace(made: Path) -> None:
    events = json.loads((made / "t.trace.json").read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert names == ["rank 0", "rank 1", "rank 2", "rank 3"]
    calls = [event for event in events if event["ph"] == "X"]
    assert len(calls) == 4 * 6 * 2 * 30
    assert {(call["pid"], call["tid"]) for call in calls} == {(0, 0), (0, 1), (1, 2), (1, 3)}
    # On the aligned clock the calls of all ranks overlap, and the late one begins last.
    first = {
        call["tid"]: call
        for call in reversed(calls)
        if call["args"]["iteration"] == 0 and call["args"]["bytes"] == 8
    }
    assert max(first.values(), key=lambda call: call["ts"])["tid"] == 2
    assert max(call["ts"] for call in first.values()) < min(
        call["ts"] + call["dur"] for call in first.values()
    )


def test_plots(made: Path) -> None:
    names = {path.name for path in (made / "plots").iterdir()}
    stems = {"time-1", "bandwidth-1", "lateness", "ranks"}
    assert names == {f"{stem}.{end}" for stem in stems for end in ("png", "svg")}
    for path in (made / "plots").glob("*.png"):
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG")
        assert struct.unpack(">II", data[16:24])[0] == 1050
    for path in (made / "plots").glob("*.svg"):
        assert "<svg" in path.read_text()


def test_the_same_run_gives_the_same_report(made: Path, tmp_path: Path) -> None:
    assert main([str(made / "run"), "--html", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_bytes() == (made / "t.html").read_bytes()


@pytest.mark.parametrize("sizes", [(8,), (8, 1 << 24)])
def test_the_time_axis_has_numbers(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    Synthetic(ranks=2, sizes=sizes, launches=2).write(tmp_path / "run")
    with Store(1.0) as store:
        pictures = draw(analyse(store, [tmp_path / "run"]), store)
    for picture in pictures[:2]:
        picture.svg()
        axis = picture.figure.axes[0].yaxis
        low, high = picture.figure.axes[0].get_ylim()
        shown = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
        assert len([tick for tick in shown if tick.label1.get_text()]) >= 2, picture.name


def test_one_launch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Synthetic(ranks=2, launches=1).write(tmp_path / "run")
    assert main([str(tmp_path / "run")]) == 0
    assert "2 ranks, 1 launch\n" in capsys.readouterr().out


def test_a_file_that_cannot_be_written(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(made / "run"), "--csv", str(made / "none" / "t.csv")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_plain_tables_line_up(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(made / "run")]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = lines.index(
        "# times per call, of the slowest rank: allreduce, float32, sum, barrier, 4 ranks, 2 launches"
    )
    table = lines[start + 1 : start + 8]
    assert table[0].split()[:3] == ["engine", "bytes", "samples"]
    assert len({len(line) for line in table}) == 1
    ranks = lines[lines.index("# ranks: 1 of 4 stragglers") + 2 :][:4]
    # Of the others nothing is claimed but that the clocks cannot tell.
    assert ["< 1.00 us" in line or "< 0.50 us" in line for line in ranks] == [False, True, True, True]


@pytest.mark.parametrize("missing", ["duckdb", "matplotlib"])
def test_a_missing_library_is_named_with_its_extra(made: Path, tmp_path: Path, missing: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None; from hpccoll.collect.program import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(made / "run"), "--html", str(tmp_path / "r.html")],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert f"{missing} is needed" in done.stderr
    assert "pip install duckdb matplotlib rich" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "r.html").exists()


def test_neither_mpi_nor_torch_is_loaded(made: Path, tmp_path: Path) -> None:
    code = (
        "import sys\nfor name in ('mpi4py', 'torch'): sys.modules[name] = None\n"
        "from hpccoll.collect.program import main\nsys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(made / "run"), "--html", str(tmp_path / "r.html")],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_pictures_of_many_steps_stay_small(tmp_path: Path) -> None:
    run = Synthetic(ranks=2, sizes=())
    for rank in range(2):
        head = f'{{"type":"metric","rank":{rank},"unix_ns":1,"step":'
        metrics = [f'{head}{step},"values":{{"loss":{1 / (step + 1)}}}}}' for step in range(10_000)]
        lines = [*run.lines(rank, {}, end=False), *metrics]
        (tmp_path / f"rank-{rank:05d}.jsonl").write_text("\n".join(lines) + "\n")
    assert main([str(tmp_path), "--plots", str(tmp_path / "plots")]) == 0
    assert [path.name for path in (tmp_path / "plots").glob("*.svg")] == ["metrics.svg"]
    assert 5_000 < (tmp_path / "plots" / "metrics.svg").stat().st_size < 200_000
