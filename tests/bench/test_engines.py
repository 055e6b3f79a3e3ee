"""Every engine makes every call, right; one that is missing says why."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench_support import MOVES, REDUCTIONS, VERIFIED, rows, run_several
from conftest import Mpirun, launch_environment, run_mpi
from mpi_plugin import need

from hpccoll.bench.case import Buffers, Place
from hpccoll.bench.engines import c_engine
from hpccoll.bench.engines.c_engine import compile_loop, find_mpicc, loaded_mpi
from hpccoll.bench.engines.torch_engine import TorchEngine
from hpccoll.bench.options import ENGINES

EVERY = (*MOVES, *REDUCTIONS, "barrier")
INJECTED = Path(__file__).with_name("injected.py")


def mpicc() -> str:
    """The compiler wrapper of this environment's MPI, if it and a compiler are there."""
    found = find_mpicc([Path(sys.prefix, "lib", "libmpi.so")])
    if found is None or shutil.which("cc") is None:
        reason = "there is no mpicc, or no C compiler"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    return found


@pytest.mark.parametrize("name", EVERY)
def test_every_engine_makes_every_call(name: str) -> None:
    need("torch")
    sized = " -b 1K -e 1K --dtype int64"
    names = ("barrier",) if name == "barrier" else (*MOVES, *REDUCTIONS)
    status, out = run_several(3, names, "--engine all -n 2 -w 1" + sized * (name != "barrier"))[name]
    assert status == 0, out
    assert out.splitlines()[-1].startswith(VERIFIED)
    wanted = {"mpi4py", "numpy", "torch", "torch-mpi", "gloo"} | ({"c"} if shutil.which("cc") else set())
    missing = {line.split()[2] for line in out.splitlines() if line.startswith("# engine ")}
    assert not wanted & missing, out
    found = rows(out)
    assert {row["engine"] for row in found} == set(ENGINES) - missing
    skipped = [line for line in out.splitlines() if "skipped: " in line]
    assert all(" gloo " in line or " torch-mpi " in line for line in skipped), skipped
    assert all(float(row["ratio"]) > 0 for row in found if "skipped:" not in row.values())


IN_PLACE = ("allreduce", "reduce", "allgather", "gather", "alltoall")


@pytest.mark.parametrize("name", IN_PLACE)
def test_every_engine_in_place(name: str) -> None:
    need("torch")
    status, out = run_several(2, IN_PLACE, "--engine all --in-place -b 1K -e 1K -n 2 -w 1")[name]
    assert status == 0, out
    assert {row["engine"] for row in rows(out) if row["wrong"] == "0"} >= {"mpi4py", "numpy", "torch"}


def test_rows_that_mpi_alone_cannot_do() -> None:
    need("ml_dtypes")
    line = "--engine numpy,mpi4py --dtype bfloat16,float32 --op avg,max -b 64 -e 64 -n 3 -w 1"
    status, out = run_several(2, ("allreduce",), line)["allreduce"]
    assert status == 0, out
    skipped = [line.split("skipped: ")[1] for line in out.splitlines() if "skipped: " in line]
    assert sorted(skipped) == [
        "MPI has no avg of float32", "MPI has no reductions of bfloat16", "MPI has no reductions of bfloat16",
    ]  # fmt: skip


def test_missing_compiler(mpirun: Mpirun) -> None:
    """The wrapper is there and what it wraps is not: the others go on; alone it is an error."""
    mpicc()
    env = dict.fromkeys(("OMPI_CC", "MPICH_CC"), "no-such-compiler")
    line = "-m hpccoll.allreduce -e 8 -n 3 --engine"
    done = mpirun(2, *line.split(), "c,numpy", env=env)
    [reason] = [line for line in done.stdout.splitlines() if line.startswith("# engine c is not available: ")]
    assert "failed with status" in reason
    assert [row["wrong"] for row in rows(done.stdout)] == ["0"]
    done = mpirun(2, *line.split(), "c", env=env, check=False)
    assert done.returncode == 2
    [message] = [line for line in done.stderr.splitlines() if "hpccoll allreduce: error" in line]
    assert "argument --engine: c is not available: " in message


def test_mpicc_beside_the_loaded_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib").mkdir()
    (tmp_path / "bin" / "mpicc").touch(0o755)
    maps = tmp_path / "maps"
    maps.write_text(f"7f00-7f01 r-xp 00000000 08:01 7 {tmp_path}/lib/libmpi.so.40\n")
    assert find_mpicc(loaded_mpi(maps)) == str(tmp_path / "bin" / "mpicc")
    monkeypatch.setenv("PATH", "/nowhere")
    maps.write_text("7f00-7f01 r-xp 00000000 08:01 7 /nowhere/at/all/lib/libmpi.so.40\n")
    assert find_mpicc(loaded_mpi(maps)) is None


def test_mpicc_of_another_mpi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its library is never loaded into this process."""
    other = tmp_path / "mpicc"
    find_output = 'while [ "$1" != -o ]; do shift; done'
    program = r"printf '#!/bin/sh\necho Some MPI 7\n'"
    other.write_text(f'#!/bin/sh\n{find_output}\n{program} >"$2"; chmod +x "$2"\n')
    other.chmod(0o755)
    monkeypatch.setattr(c_engine, "find_mpicc", lambda libraries: str(other))
    said = c_engine._compiled()
    assert isinstance(said, str)
    assert "belongs to another MPI: 'Some MPI 7', and mpi4py runs on " in said


def test_what_the_compiler_says(tmp_path: Path) -> None:
    bad = tmp_path / "mpicc"
    bad.write_text("#!/bin/sh\necho 'mpi.h: not found' >&2\nexit 3\n")
    bad.chmod(0o755)
    with pytest.raises(RuntimeError, match=r"mpicc failed with status 3: mpi.h: not found"):
        compile_loop(str(bad), tmp_path / "x.so")
    with pytest.raises(RuntimeError, match="could not be run"):
        compile_loop(str(tmp_path / "nothing"), tmp_path / "x.so")


def test_c_engine_against_a_benchmark_of_its_own(tmp_path: Path) -> None:
    """The least times, which a busy machine disturbs least, agree; runs alternate.

    Within a factor of 3: on a shared machine two runs of the same program differ by a factor of 2.
    """
    program = tmp_path / "independent"
    source = Path(__file__).with_name("independent.c")
    subprocess.run([mpicc(), "-O2", "-o", program, source], check=True, timeout=60, env=launch_environment(2))
    theirs, ours = [], []
    for turn in range(3):
        done = run_mpi_program(program, "65536", "100")
        theirs.append(float(done.stdout.split()[0]))
        document = tmp_path / f"{turn}.json"
        line = f"-m hpccoll.allreduce -b 64K -e 64K -n 100 --batch 1 --engine c --json {document}"
        run_mpi(2, *line.split())
        ours.append(json.loads(document.read_text())["rows"][0]["time_min_us"])
    assert 1 / 3 < min(ours) / min(theirs) < 3, (ours, theirs)


def run_mpi_program(program: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """`run_mpi` starts Python; this becomes the program at once."""
    code = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
    return run_mpi(2, "-c", code, program, *args)


@pytest.mark.parametrize("in_place", [False, True])
def test_calls_on_copies_in_gpu_memory(monkeypatch: pytest.MonkeyPatch, in_place: bool) -> None:
    """The nccl engine, with memory that is none of a GPU: input and result travel outside the timed region."""
    need("torch")
    import torch
    import torch.distributed as dist

    waits: list[str] = []
    monkeypatch.setattr(torch.Tensor, "cuda", torch.Tensor.clone)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append("wait"))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        engine = TorchEngine("nccl")
        engine._group = dist.group.WORLD
        recv = torch.zeros(4)
        send = recv if in_place else torch.zeros(4)
        bound = engine.bind("allreduce", None, Buffers(send, recv, "sum", Place(0, 1, 0), in_place))
        for value in (3.0, 5.0):
            recv.fill_(-1)
            send.fill_(value)
            bound.load()
            waits.clear()
            start, end = bound.timed(2)
            assert start < end
            assert waits == ["wait", "wait"]
            if not in_place:
                assert recv.tolist() == [-1.0] * 4
            bound.unload()
            assert recv.tolist() == [value] * 4
    finally:
        dist.destroy_process_group()


def test_engines_without_a_gpu(mpirun: Mpirun) -> None:
    need("torch")
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = mpirun(2, "-m", "hpccoll.allreduce", "--engine", "nccl", check=False)
    assert done.returncode == 2
    assert "argument --engine: nccl is not available: " in done.stderr


# ---- Options of the measurement


def document_of(mpirun: Mpirun, tmp_path: Path, line: str, n: int = 2, fault: str = "none") -> dict[str, Any]:
    path = tmp_path / "run.json"
    done = mpirun(n, INJECTED, *fault.split(), "--", *line.split(), "--json", path, timeout_s=120)
    content = json.loads(path.read_text())
    return {**content, "stdout": done.stdout}


def test_pipelined_calls_come_in_batches(mpirun: Mpirun, tmp_path: Path) -> None:
    found = document_of(
        mpirun, tmp_path, "allreduce -b 1K -e 1K --mode pipelined --engine numpy,mpi4py -n 400 --batch 20"
    )
    assert [(row["mode"], row["batch"], row["iterations"]) for row in found["rows"]] == [
        ("pipelined", 20, 20)
    ] * 2
    assert found["rows"][0]["ratio"] == 1.0
    assert found["rows"][1]["ratio_low"] <= found["rows"][1]["ratio"] <= found["rows"][1]["ratio_high"]
    assert (
        found["stdout"].splitlines()[-1] == "# the last result of every batch of calls verified on every rank"
    )


def test_launches(mpirun: Mpirun, tmp_path: Path) -> None:
    line = "broadcast -b 8 -e 32 -n 20 --batch 1 --launches 3 --engine numpy,mpi4py --barrier dissemination"
    found = document_of(mpirun, tmp_path, line)
    assert [row["nbytes"] for row in found["rows"]] == [8, 8, 16, 16, 32, 32]  # in order again
    for row in found["rows"]:
        assert (row["launches"], row["iterations"]) == (3, 60)
        assert row["ci_low_us"] <= row["time_us"] <= row["ci_high_us"]


def test_target_that_cannot_be_met_ends_with_the_time(mpirun: Mpirun, tmp_path: Path) -> None:
    line = "allgather -b 1K -e 1K -n 20 --batch 1 --max-seconds 0.5 --target-ci"
    [row] = document_of(mpirun, tmp_path, f"{line} 0.00001%")["rows"]
    assert row["iterations"] > 20
    assert row["iterations"] % 20 == 0


def test_target_that_is_met_ends_at_once(mpirun: Mpirun, tmp_path: Path) -> None:
    line = "allgather -b 1K -e 1K -n 20 --batch 1 --max-seconds 60 --target-ci 99%"
    [row] = document_of(mpirun, tmp_path, line)["rows"]
    assert (row["ci_high_us"] - row["ci_low_us"]) / 2 / row["time_us"] <= 0.99
    assert row["iterations"] % 20 == 0


def test_buffers_in_turn(mpirun: Mpirun, tmp_path: Path) -> None:
    """Every result is verified, whichever set it is in; and a fault in one set is found."""
    line = "alltoall -b 64K -e 64K -n 40 --batch 1 -w 3 --rotate-buffers 4M --engine numpy,mpi4py"
    assert [row["wrong"] for row in document_of(mpirun, tmp_path, line)["rows"]] == [0, 0]
    done = mpirun(2, INJECTED, *["spoil", "numpy", "20", "--"], *line.split(), check=False)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "# FAILED: 1 wrong elements"


def test_table_for_other_programs(mpirun: Mpirun, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    line = "-m hpccoll.reduce -b 8 -e 64 -n 5 --dtype float32,int32 --op sum,max --root all --engine numpy,mpi4py --csv"
    mpirun(2, *line.split(), path, timeout_s=120)
    with open(path, newline="") as stream:
        found = list(csv.DictReader(stream))
    keys = [(r["nbytes"], r["dtype"], r["op"], r["root"], r["engine"]) for r in found]
    assert len(keys) == len(set(keys)) == 4 * 2 * 2 * 2 * 2
    assert {(row["collective"], row["ranks"], row["mode"]) for row in found} == {("reduce", "2", "barrier")}
    assert all(float(row["time_us"]) > 0 for row in found)


def test_slow_collective_is_a_tuning_hint(mpirun: Mpirun, tmp_path: Path) -> None:
    line = "allreduce -b 64 -e 64 -n 40 --batch 1 --guidelines"
    found = document_of(mpirun, tmp_path, line, fault="slow 3")
    assert len(found["hints"]) == 2
    for parts, hint in zip(("reduce + broadcast", "reduce_scatter + allgather"), found["hints"], strict=True):
        assert hint.startswith("tuning hint: allreduce of 64 through numpy takes ")
        assert f"times as long as {parts}" in hint
        assert f"# {hint}" in found["stdout"]
    assert [row["wrong"] for row in found["rows"]] == [0, 0, 0]


@pytest.mark.parametrize("engine", ["c", "mpi4py", "gloo"])
def test_compositions_give_the_result_of_the_collective(mpirun: Mpirun, tmp_path: Path, engine: str) -> None:
    mpicc()
    need("torch")
    line = f"--engine {engine} --guidelines -b 96 -e 96 -n 6 --batch 1 --dtype int32"
    allreduce = document_of(mpirun, tmp_path, f"allreduce --op max {line}")["rows"]
    assert [row["engine"].partition(":")[2] for row in allreduce] == [
        "", "reduce+broadcast", "reduce_scatter+allgather",
    ]  # fmt: skip
    allgather = document_of(mpirun, tmp_path, f"allgather {line}")["rows"]
    assert [row["engine"] for row in allgather] == [engine, f"{engine}:gather+broadcast"]
    assert {(row["wrong"], row["skipped"], row["iterations"]) for row in allreduce + allgather} == {
        (0, None, 6)
    }


def test_composition_that_does_not_divide(mpirun: Mpirun, tmp_path: Path) -> None:
    found = document_of(mpirun, tmp_path, "allreduce -b 64 -e 64 -n 10 --guidelines", n=3)
    assert found["rows"][2]["skipped"] == "16 elements are no multiple of the 3 ranks"


def test_fit_and_model_against_a_larger_run(mpirun: Mpirun, tmp_path: Path) -> None:
    line = "allreduce -b 64 -e 64K -f 4 -n 30 --fit --predict 8,64"
    small = document_of(mpirun, tmp_path, line)
    [fit] = small["fits"]
    assert sum(segment["points"] for segment in fit["segments"]) == 6
    assert {row["ranks"] for row in small["predictions"]} == {8, 64}
    assert {row["algorithm"] for row in small["predictions"]} == {
        "ring",
        "recursive doubling",
        "tree",
        "two-level",
    }
    assert "# MODEL, not measured" in small["stdout"]
    path = tmp_path / "small.json"
    (tmp_path / "run.json").rename(path)
    large = document_of(mpirun, tmp_path, f"allreduce -b 64 -e 64K -f 4 -n 30 --model {path}", n=4)
    assert [row["nbytes"] for row in large["model_check"]] == [64, 256, 1024, 4096, 16384, 65536]
    for row in large["model_check"]:
        assert row["ratio"] == pytest.approx(row["time_us"] / row["model_time_us"])
    assert "# MODEL from 2 ranks against this run on 4" in large["stdout"]


def test_model_of_another_collective(mpirun: Mpirun, tmp_path: Path) -> None:
    document_of(mpirun, tmp_path, "reduce -b 8 -e 8 -n 3")
    done = mpirun(2, "-m", "hpccoll.allreduce", "--model", tmp_path / "run.json", check=False)
    assert done.returncode == 2
    assert "is a run of reduce (hpccoll.bench/1), not of allreduce" in done.stderr
