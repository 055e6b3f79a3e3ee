"""The programs as a user starts them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench_support import MOVES, REDUCTIONS, VERIFIED, rows, run_several, table
from conftest import Mpirun, find_mpirun, launch_environment
from mpi_plugin import need

from hpccoll.bench.dtypes import DTYPES

EVERY = MOVES + REDUCTIONS


def verified(name: str, ranks: int, names: tuple[str, ...], args: str) -> list[dict[str, str]]:
    """Rows of one program of a job, all of which have to have verified everything."""
    status, out = run_several(ranks, names, args)[name]
    assert status == 0, out
    assert out.splitlines()[-1] == VERIFIED
    found = rows(out)
    assert {row["wrong"] for row in found} == {"0"}
    return found


@pytest.mark.parametrize("name", MOVES)
def test_moves_of_every_dtype(name: str) -> None:
    need("ml_dtypes")
    found = verified(name, 3, MOVES, "--dtype all -b 0 -e 5000 -f 70 -n 15")
    assert {row["dtype"] for row in found} == set(DTYPES)
    assert {row["count"] for row in found} >= {"0", "1"}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_every_dtype_and_op(name: str) -> None:
    need("ml_dtypes")
    found = verified(name, 3, REDUCTIONS, "--dtype all --op all -b 0 -e 5000 -f 5000 -n 3 -w 1")
    pairs = {(row["dtype"], row["op"]) for row in found}
    some = {("bool", "lxor"), ("int8", "prod"), ("uint64", "bxor"), ("bfloat16", "avg"), ("complex64", "sum")}
    assert some <= pairs
    none = {("int8", "avg"), ("complex64", "max"), ("float32", "bor"), ("float8_e5m2", "sum")}
    assert not none & pairs


IN_PLACE = ("allreduce", "reduce", "allgather", "gather", "alltoall")
ROOTED = ("reduce", "gather", "scatter", "broadcast")


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name: str) -> None:
    verified(name, 3, IN_PLACE, "--in-place -e 4K -f 8 -n 20")


@pytest.mark.parametrize("name", ROOTED)
def test_every_root(name: str) -> None:
    found = verified(name, 3, ROOTED, "--root all -b 1K -e 1K -n 20")
    assert [row["root"] for row in found] == ["0", "1", "2"]


@pytest.mark.parametrize("name", EVERY)
def test_torch(name: str) -> None:
    need("torch")
    found = verified(name, 2, EVERY, "--engine torch --dtype bfloat16,int64 -e 4K -f 8 -n 9")
    assert {row["dtype"] for row in found} == {"bfloat16", "int64"}
    assert (
        ", torch 2."
        in run_several(2, EVERY, "--engine torch --dtype bfloat16,int64 -e 4K -f 8 -n 9")[name][1]
    )


@pytest.mark.parametrize("name", EVERY)
def test_alone(name: str) -> None:
    found = verified(name, 1, EVERY, "-e 1K -f 8 -n 9")
    assert {row["busbw"] for row in found} == {"n/a"}


def test_barrier() -> None:
    [row] = verified("barrier", 3, ("barrier",), "-n 100")
    assert row["iters"] == "100"


def test_default_sweep_on_too_few_cores(mpirun: Mpirun) -> None:
    """The main job. 22 sizes, in well under a minute."""
    start = time.monotonic()
    done = mpirun(4, "-m", "hpccoll.allreduce", "--batch", "1", timeout_s=120)
    assert [int(row["bytes"]) for row in table(done)] == [8 * 2**i for i in range(22)]
    assert "# ranks 4 on 1 host (4 a host): " in done.stdout
    cores = len(os.sched_getaffinity(0))
    assert f"oversubscribed {'yes' if cores < 4 else 'no'}" in done.stdout
    assert time.monotonic() - start < 120


def test_json(mpirun: Mpirun, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    line = f"-m hpccoll.allgather -b 0 -e 1M -f 1024 -n 7 -w 2 --batch 1 --dtype int16 --max-memory 1M --json {path}"
    done = mpirun(3, *line.split())
    content = json.loads(path.read_text())
    assert (content["format"], content["status"]) == ("hpccoll.bench/1", "ok")
    header = content["header"]
    assert (header["collective"], header["engine"], header["mode"]) == ("allgather", "numpy", "barrier")
    assert (header["ranks"], header["ranks_per_host"]) == (3, [3])
    none, tiny, kilo, mega = content["rows"]
    assert (none["nbytes"], none["algbw_gb_per_s"], none["wrong"]) == (0, None, 0)
    assert (tiny["nbytes"], tiny["count"]) == (6, 1)
    assert (kilo["nbytes"], kilo["count"], kilo["iterations"], kilo["warmup"]) == (1020, 170, 7, 2)
    assert kilo["time_min_us"] <= kilo["time_us"] <= kilo["time_max_us"]
    assert kilo["algbw_gb_per_s"] == pytest.approx(1020 / kilo["time_us"] / 1e3)
    assert kilo["busbw_gb_per_s"] == pytest.approx(kilo["algbw_gb_per_s"] * 2 / 3)
    assert mega["time_us"] is None
    assert re.fullmatch(r"needs \d+K? a rank, has 1M|needs \d+M a rank, has 1M", mega["skipped"])
    assert done.stdout.splitlines()[-1] == VERIFIED + "; 1 rows skipped"
    assert [path] == list(tmp_path.iterdir())


def test_json_on_standard_output(mpirun: Mpirun) -> None:
    done = mpirun(2, "-m", "hpccoll.reduce", "-e", "8", "-n", "3", "--batch", "1", "--json", "-")
    assert json.loads(done.stdout)["rows"][0]["root"] == 0
    assert VERIFIED in done.stderr


def test_nothing_fits(mpirun: Mpirun) -> None:
    done = mpirun(2, "-m", "hpccoll.allreduce", "-b", "1T", "-e", "2T")
    assert done.stdout.count("skipped: needs") == 2
    assert done.stdout.splitlines()[-1] == "# nothing was measured or verified: every row was skipped"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("allreduce --op plus", "allreduce: error: argument --op: 'plus' is not one of sum, "),
        ("allreduce --dtype complex64 --op max", "allreduce: error: argument --op: "),
        ("allreduce --dtype int32 --op avg", "allreduce: error: argument --op: "),
        ("reduce --root 3", "reduce: error: argument --root: must be below the number of ranks, 3; got 3"),
        (
            "gather --json /nowhere/at/all.json",
            "gather: error: argument --json: cannot write /nowhere/at/all.json: ",
        ),
        ("gather --json /", "gather: error: argument --json: cannot write /: it is a directory"),
        ("barrier -e 8", "barrier: error: unrecognized arguments: -e 8"),
        ("overhead --rounds 0", "overhead: error: argument --rounds: must be at least 1, got 0"),
    ],
)
def test_bad_options(mpirun: Mpirun, line: str, text: str) -> None:
    name, *arguments = shlex.split(line)
    done = mpirun(3, "-m", f"hpccoll.{name}", *arguments, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stdout.replace("\0", "").strip() == ""
    [message] = [part for part in done.stderr.splitlines() if "hpccoll" in part]
    assert message.startswith(f"hpccoll {text}")
    assert "Traceback" not in done.stderr


def test_help_is_printed_once(mpirun: Mpirun) -> None:
    done = mpirun(3, "-m", "hpccoll.allreduce", "--help")
    assert done.stdout.count("usage: hpccoll allreduce") == 1


@pytest.mark.parametrize("ranks", [1, 3])
def test_head(ranks: int) -> None:
    """A reader that goes away leaves no tracebacks and nobody waiting."""
    command = [sys.executable, "-m", "hpccoll.allreduce", "-e", "64K", "-n", "50"]
    if ranks > 1:
        command = [find_mpirun(), "-n", str(ranks), *command]
    done = subprocess.run(
        f"{shlex.join(command)} | head -1", shell=True, capture_output=True, text=True, timeout=60,
        env=launch_environment(ranks), check=False,
    )  # fmt: skip
    assert done.stdout.startswith("# hpccoll ")
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_overhead_of_check_mode(mpirun: Mpirun) -> None:
    line = (
        "-m hpccoll.overhead --check --sizes 8 --rounds 2 --collectives allreduce barrier sendrecv --json -"
    )
    found = json.loads(mpirun(2, *line.split(), timeout_s=120).stdout)["rows"]
    modes = ["off", "check", "check nan"]
    assert [(row["collective"], row["engine"]) for row in found] == [
        *(("allreduce", f"{kind}, {mode}") for kind in ("numpy", "dist") for mode in modes),
        *(("barrier", f"numpy, {mode}") for mode in modes),
    ]
    assert [row["ratio"] for row in found[::3]] == [1.0] * 3


def test_overhead(mpirun: Mpirun) -> None:
    line = "-m hpccoll.overhead --sizes 8 64K --rounds 3 --json -"
    done = mpirun(2, *line.split(), timeout_s=120)
    found = json.loads(done.stdout)["rows"]
    assert len(found) == len([line for line in done.stderr.splitlines() if line.startswith(" ")])
    assert len({item["collective"] for item in found}) == 10
    assert {item["engine"] for item in found} >= {"mpi4py", "numpy"}
    for item in found:
        assert item["time_us"] > 0
        if item["engine"] == "mpi4py":
            assert (item["extra_us"], item["ratio"]) == (0.0, 1.0)
