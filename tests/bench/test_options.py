"""The command line: what it accepts, what it refuses in one line, and that it needs no MPI for either."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest

import hpccoll.bench.options as options_module
from hpccoll.bench.dtypes import DTYPES
from hpccoll.bench.options import OPS, Options, UsageError, parse, parse_sizes

PROGRAMS = (
    "allreduce", "broadcast", "reduce", "allgather", "gather", "scatter", "reduce_scatter", "alltoall", "sendrecv",
    "barrier", "overhead",
)  # fmt: skip


def options(name: str, line: str) -> Options:
    return parse(importlib.import_module(f"hpccoll.{name}").CASE, line.split())


def test_defaults() -> None:
    found = options("allreduce", "")
    assert (found.sizes[0], found.sizes[-1], len(found.sizes)) == (8, 16 * 2**20, 22)
    assert found.dtypes == (DTYPES["float32"],)
    assert (found.ops, found.roots, found.iters, found.warmup) == (("sum",), (0,), None, None)
    assert (found.in_place, found.engines, found.json, found.progress) == (False, ("numpy",), None, True)
    assert (found.mode, found.barrier, found.batch, found.launches) == ("barrier", "library", None, 1)
    assert (found.target_ci, found.rotate_nbytes, found.log_dir, found.csv) == (None, 0, None, None)


def test_everything() -> None:
    line = "-b 1K -e 64K -f 8 -n 5 -w 0 --dtype int8,bool --op max,bor --root 3 --in-place --json x.json --no-progress"
    found = options("reduce", line)
    assert found.sizes == (1024, 8192, 65536)
    assert (found.iters, found.warmup, found.roots) == (5, 0, (3,))
    assert [dtype.name for dtype in found.dtypes] == ["int8", "bool"]
    assert found.ops == ("max", "bor")
    assert (found.in_place, found.json, found.progress) == (True, "x.json", False)


def test_measuring() -> None:
    line = "--engine c,numpy,c --mode window --barrier dissemination --launches 3 --target-ci 2% --max-seconds 1.5"
    found = options(
        "allgather",
        f"{line} --rotate-buffers 64M --batch 7 --predict 64,1024 --guidelines",
    )
    assert found.engines == ("c", "numpy")
    assert (found.mode, found.barrier, found.launches, found.batch) == ("window", "dissemination", 3, 7)
    assert (found.target_ci, found.max_seconds, found.rotate_nbytes) == (0.02, 1.5, 64 * 2**20)
    assert found.predict == (64, 1024)
    assert found.guidelines
    assert options("allgather", "--engine all").engines == options_module.ENGINES
    assert options("allgather", "--buffer torch").engines == ("torch",)


def test_all() -> None:
    found = options("reduce", "--dtype all --op all --root all")
    assert found.dtypes == tuple(DTYPES.values())
    assert found.ops == OPS
    assert found.every_dtype
    assert found.every_op
    assert found.every_root


def test_collectives_without_them_have_no_op_and_no_root() -> None:
    found = options("allgather", "")
    assert (found.ops, found.roots) == ((None,), (0,))
    assert options("barrier", "-n 3").sizes == (0,)


@pytest.mark.parametrize(
    ("smallest", "largest", "factor", "sizes"),
    [
        (8, 64, 2, [8, 16, 32, 64]),
        (8, 63, 2, [8, 16, 32]),
        (5, 5, 2, [5]),
        (0, 4, 2, [0, 1, 2, 4]),
        (0, 0, 2, [0]),
    ],
)
def test_sizes(smallest: int, largest: int, factor: int, sizes: list[int]) -> None:
    assert list(parse_sizes(smallest, largest, factor)) == sizes


@pytest.mark.parametrize(
    ("name", "line", "words"),
    [
        ("allreduce", "--dtype float31", ["--dtype", "'float31'", "bfloat16", "complex128"]),
        ("allreduce", "--dtype float32,", ["--dtype", "''"]),
        ("allreduce", "--op plus", ["--op", "'plus'", "sum, prod, min, max, avg"]),
        ("allreduce", "-b 4Q", ["--min-bytes", "'4Q'"]),
        ("allreduce", "-e -5", ["--max-bytes"]),
        ("allreduce", "-b 1M -e 1K", ["--min-bytes 1048576", "more than --max-bytes 1024"]),
        ("allreduce", "-f 1", ["--factor", "at least 2", "got 1"]),
        ("allreduce", "-f 1.5", ["--factor", "'1.5'"]),
        ("allreduce", "-n 0", ["--iters", "at least 1"]),
        ("allreduce", "-w -1", ["--warmup"]),
        ("allreduce", "--engine cupy", ["--engine", "'cupy'", "torch-mpi"]),
        ("allreduce", "--engine numpy,", ["--engine", "''"]),
        ("allreduce", "--buffer c", ["--buffer", "'c'"]),
        ("allreduce", "--buffer torch --engine c", ["--engine", "not allowed with", "--buffer"]),
        ("allreduce", "--mode loop", ["--mode", "'loop'", "pipelined"]),
        ("allreduce", "--mode pipelined --in-place", ["--mode pipelined", "--in-place"]),
        ("alltoall", "--batch 4 --in-place", ["--batch", "--in-place"]),
        ("allreduce", "--mode pipelined --batch 1", ["--batch of 2"]),
        ("allreduce", "--target-ci 0", ["--target-ci", "2%", "'0'"]),
        ("allreduce", "--target-ci wide", ["--target-ci", "'wide'"]),
        ("allreduce", "--max-seconds 0", ["--max-seconds", "'0'"]),
        ("allreduce", "--launches 0", ["--launches", "at least 1"]),
        ("allreduce", "--predict 8,1", ["--predict", "at least 2", "got 1"]),
        ("allreduce", "--writers node", ["--writers needs --log-dir"]),
        ("allreduce", "--writers host --log-dir x", ["--writers", "'host'"]),
        ("allreduce", "--json F --csv ./F", ["--json", "--csv", "different names"]),
        ("allreduce", "--json - --csv -", ["--json -", "--csv -", "standard output"]),
        ("allreduce", "--max-samples -1", ["--max-samples", "at least 0"]),
        ("broadcast", "--guidelines", ["--guidelines"]),
        ("barrier", "--rotate-buffers 1M", ["--rotate-buffers"]),
        ("allreduce", "--root 1", ["--root"]),
        ("reduce", "--root x", ["--root", "'x'"]),
        ("reduce", "--root -1", ["--root"]),
        ("allgather", "--op sum", ["--op"]),
        ("barrier", "-b 8", ["-b"]),
        ("broadcast", "--in-place", ["--in-place"]),
        ("allreduce", "--iter 5", ["--iter"]),
        ("allreduce", "extra", ["extra"]),
        ("allreduce", "--max-memory lots", ["--max-memory", "'lots'"]),
    ],
)
def test_refused(name: str, line: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        options(name, line)
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("line", "package", "text"),
    [
        ("--engine torch", "torch", "--engine torch needs PyTorch: pip install torch"),
        (
            "--dtype bfloat16",
            "ml_dtypes",
            "--dtype bfloat16 needs `pip install ml_dtypes`, or --engine torch",
        ),
        (
            "--dtype float8_e5m2",
            "ml_dtypes",
            "--dtype float8_e5m2 needs `pip install ml_dtypes`, or --engine torch",
        ),
    ],
)
def test_missing_packages(monkeypatch: pytest.MonkeyPatch, line: str, package: str, text: str) -> None:
    find = options_module.importlib.util.find_spec
    monkeypatch.setattr(
        options_module.importlib.util, "find_spec", lambda name: None if name == package else find(name)
    )
    with pytest.raises(UsageError) as caught:
        options("allreduce", line)
    assert str(caught.value) == text


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
        check=False,
    )


RUN = """
import importlib, sys
status = importlib.import_module("hpccoll.NAME").main(ARGS)
heavy = {"mpi4py.MPI", "torch", "numpy"} & set(sys.modules)
assert not heavy, heavy
sys.exit(status)
"""


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_needs_no_mpi(name: str) -> None:
    done = python(RUN.replace("NAME", name).replace("ARGS", "['--help']"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: hpccoll {name} ")


@pytest.mark.parametrize("rank", ["0", "2"])
def test_one_rank_speaks(rank: str) -> None:
    """Before MPI is started, the launcher's variables tell which."""
    env = {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": "4"}
    done = python(RUN.replace("NAME", "allreduce").replace("ARGS", "['--help']"), **env)
    assert (done.returncode, bool(done.stdout)) == (0, rank == "0")
    done = python(RUN.replace("NAME", "allreduce").replace("ARGS", "['--op', 'plus']"), **env)
    if rank == "0":
        assert done.returncode == 2
        assert done.stderr.startswith("hpccoll allreduce: error: argument --op: 'plus' is not one of sum, ")
        assert len(done.stderr.splitlines()) == 1
    else:
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
