"""Broken programs end by themselves, and the report names the rank and the line: `broken.py` on two MPIs.

The jobs run side by side, a few at a time, while the tests look at those that have ended.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import launch_environment, run_mpi
from conftest import run_job as run_command

from hpccoll.diagnose.__main__ import main as diagnose

BROKEN = Path(__file__).with_name("broken.py")
LIMIT_S, TORCH_LIMIT_S = 3.0, 6.0
STARTS_WITHIN_S = 60.0
# Ending takes 5 s at most. The rest is for a machine that stands still for a while.
ENDS_WITHIN_S = TORCH_LIMIT_S + 5.0 + 30.0
AT_ONCE = 3
RANKS = 3


@dataclass(frozen=True)
class Case:
    """A program of `broken.py`, and what the report has to say of it.

    Attributes
    ----------
    kinds : sequence of str
        Verdicts that are right; several where it depends on what the MPI makes of the fault.
    guilty : str
        Ranks that the verdict names.
    checked : bool
        In check mode.
    options : sequence of str
        For mpirun.
    says : str
        A pattern that is in the report.
    """

    program: str
    kinds: Sequence[str]
    guilty: str = "1"
    checked: bool = False
    mpis: Sequence[str] = ("ompi", "mpich")
    options: Sequence[str] = ()
    says: str = ""

    @property
    def uses_torch(self) -> bool:
        return self.program.startswith(("torch", "ddp", "group"))

    @property
    def name(self) -> str:
        return self.program + ("-checked" if self.checked else "")


ARGUMENT = ("argument-mismatch",)
CASES = [
    Case("skips_a_collective", ["skipped-collective"]),
    Case("swapped_order", ["order-swapped"], "2"),
    Case("allreduce_against_broadcast", ["operation-mismatch"], "2"),
    Case("sendrecv_cycle", ["cycle"], "[0-2]"),
    Case("receive_without_send", ["unmatched-message"], "[0-1]"),
    Case("tags_differ", ["unmatched-message"], "[0-1]"),
    Case("raises", ["rank-raised"]),
    Case("raises_in_a_thread", ["rank-raised"]),
    Case("exits_early", ["rank-exited"]),
    # As a rule mpirun ends the others at once. With MPICH's they cannot dump at all: see below.
    Case("is_killed", ["no-dump"], mpis=["ompi"], options=["--continuous"], says="is (gone|dead)"),
    Case("is_stopped", ["no-dump", "missing-rank"], says="process (is|was) stopped"),
    Case("loops_for_ever", ["missing-rank"]),
    Case("sleeps", ["missing-rank"]),
    Case("torch_skips_a_collective", ["skipped-collective"]),
    Case("torch_swapped_order", ["order-swapped"], "2"),
    # MPICH's MPI_Abort leaves the other ranks no time to dump what they had called.
    Case("torch_counts", ["argument-mismatch", "rank-raised"]),
    Case("torch_all_reduce_against_broadcast", ["operation-mismatch"], "2"),
    Case("torch_receive_cycle", ["cycle"], "[0-2]"),
    Case("torch_raises", ["rank-raised"]),
    Case("torch_exits_early", ["rank-exited"]),
    Case("torch_loops_for_ever", ["missing-rank"]),
    Case("ddp_unused_parameter", ["operation-mismatch"]),
    Case("group_collective_by_a_non_member", ["order-swapped"], "[0-1]"),
    Case("skips_a_collective", ["argument-mismatch"], checked=True),  # at the next one, before there are more
    Case("allreduce_against_broadcast", ["operation-mismatch"], "2", checked=True),
    Case("different_counts", ARGUMENT, checked=True),
    Case("different_dtypes", ARGUMENT, checked=True),
    Case("different_ops", ARGUMENT, checked=True),
    Case("different_roots", ARGUMENT, checked=True),
    Case("torch_counts", ARGUMENT, checked=True),
]


@dataclass
class Outcome:
    """How a job ended, and where its dumps are."""

    done: subprocess.CompletedProcess[str]
    dumps: Path
    documents: list[dict[str, Any]] = field(default_factory=list)


def prefix_of(mpi: str) -> Path | None:
    """The environment of MPICH, which tests/run.sh makes and names; None for that of this Python."""
    if mpi == "ompi":
        return None
    prefix = os.environ.get("HPCCOLL_TEST_MPICH", "")
    if prefix and os.access(Path(prefix, "bin", "mpirun"), os.X_OK):
        return Path(prefix)
    if os.environ.get("HPCCOLL_TEST_REQUIRE") == "1":
        pytest.fail("HPCCOLL_TEST_MPICH names no environment with MPICH's mpirun")
    return pytest.skip("HPCCOLL_TEST_MPICH names no environment with MPICH's mpirun")


def run_job(case: Case, prefix: Path | None, directory: Path) -> Outcome:
    env = {
        "HPCCOLL_TIMEOUT_S": str(STARTS_WITHIN_S),
        "HPCCOLL_TEST_LIMIT_S": str(TORCH_LIMIT_S if case.uses_torch else LIMIT_S),
        "HPCCOLL_DUMP_DIR": str(directory),
    }
    if case.checked:
        env["HPCCOLL_CHECK"] = "1"
    # A failed assertion of run_mpi comes out where the future is asked for its result.
    done = run_mpi(
        RANKS,
        BROKEN,
        case.program,
        env=env,
        timeout_s=240.0,
        check=False,
        cwd=BROKEN.parent,
        options=case.options,
        prefix=prefix,
    )
    documents = [json.loads(path.read_text()) for path in sorted(directory.glob("rank*.json"))]
    return Outcome(done, directory, documents)


@pytest.fixture(scope="module")
def jobs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, str], Future[Outcome]]]:
    """The jobs of the tests that were asked for, all of them started."""
    wanted = [
        (item.callspec.params["case"], item.callspec.params["mpi"])
        for item in request.session.items
        if getattr(item, "originalname", "") == "test_the_report_names_rank_and_line"
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        started = {}
        for case, mpi in wanted:
            if mpi == "mpich" and not os.environ.get("HPCCOLL_TEST_MPICH"):
                continue  # the test says so
            directory = tmp_path_factory.mktemp(f"{mpi}-{case.name}") / "dumps"
            started[case.name, mpi] = pool.submit(run_job, case, prefix_of(mpi), directory)
        yield started
        for job in started.values():
            job.cancel()


def marked_lines(program: str) -> list[int]:
    """Lines of a program with the mark of the guilty."""
    source = BROKEN.read_text()
    (function,) = (
        node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == program
    )
    lines = source.splitlines()
    assert function.end_lineno is not None
    return [n for n in range(function.lineno, function.end_lineno + 1) if "# <- here" in lines[n - 1]]


@pytest.mark.parametrize(
    ("case", "mpi"), [pytest.param(case, mpi, id=f"{case.name}-{mpi}") for case in CASES for mpi in case.mpis]
)
def test_the_report_names_rank_and_line(
    case: Case, mpi: str, jobs: dict[tuple[str, str], Future[Outcome]], capsys: pytest.CaptureFixture[str]
) -> None:
    prefix_of(mpi)
    outcome = jobs[case.name, mpi].result()
    output = f"{outcome.done.stdout}\n{outcome.done.stderr}"
    assert outcome.done.returncode not in (0, None), output
    assert outcome.documents, f"no dump\n{output}"
    first_s = min(document["started_s"] for document in outcome.documents)
    last_s = max(document["written_s"] for document in outcome.documents)
    assert last_s - first_s < STARTS_WITHIN_S + ENDS_WITHIN_S, "starting and ending took too long"

    capsys.readouterr()
    status = diagnose([str(outcome.dumps), "--json", "-"])
    found = json.loads(capsys.readouterr().out)
    shown = json.dumps(found, indent=1) + output
    assert found["verdict"] in case.kinds, shown
    assert status == found["status"] not in (0, 2, 3)
    verdict = found["findings"][0]
    assert verdict["ranks"] == case.guilty, shown
    text = "\n".join([*verdict["text"], *verdict["sites"]])
    lines = marked_lines(case.program)
    named = re.compile(rf"broken\.py:({'|'.join(map(str, lines))})\b")
    assert named.search(text), shown

    assert diagnose([str(outcome.dumps)]) == status
    report = capsys.readouterr().out
    assert f"verdict: {found['verdict']}, rank" in report
    assert named.search(report), report
    assert re.search(case.says, report), report


@pytest.mark.parametrize("mpi", ["ompi", "mpich"])
def test_a_killed_rank_is_named_by_launch(mpi: str, tmp_path: Path) -> None:
    """Launchers end the others so soon that they may not come to dump; but hpccoll's own saw who died."""
    prefix = prefix_of(mpi) or Path(sys.prefix)
    python = str(prefix / "bin" / "python")
    path = os.pathsep.join((str(prefix / "bin"), os.environ["PATH"]))
    limits = {
        "HPCCOLL_TIMEOUT_S": str(STARTS_WITHIN_S),
        "HPCCOLL_TEST_LIMIT_S": str(LIMIT_S),
        "HPCCOLL_DUMP_DIR": str(tmp_path / "dumps"),
    }
    launch = [python, "-m", "hpccoll.launch", "--oversubscribe", "-n", str(RANKS), "--"]
    done = run_command(
        [*launch, python, str(BROKEN), "is_killed"],
        {**launch_environment(RANKS), "PATH": path, **limits},
        timeout_s=240.0,
        statuses=None,
    )
    assert done.returncode not in (0, None)
    assert re.search(r"rank 1 on \S+ ended with status 137 \(SIGKILL\)", done.stdout + done.stderr)


@pytest.mark.parametrize("mpi", ["ompi", "mpich"])
def test_a_clean_program_raises_nothing(mpi: str, tmp_path: Path) -> None:
    """100,000 operations of all kinds, with the recorder, a limit and check mode."""
    env = {
        "HPCCOLL_TIMEOUT_S": "120",
        "HPCCOLL_TEST_LIMIT_S": "120",
        "HPCCOLL_CHECK": "1",
        "HPCCOLL_DUMP_DIR": str(tmp_path / "dumps"),
        "HPCCOLL_TEST_OPERATIONS": "100000",
    }
    done = run_mpi(2, BROKEN, "clean", env=env, timeout_s=400.0, prefix=prefix_of(mpi))
    assert done.stdout.count("clean 100000\n") == 2
    assert "hpccoll" not in done.stderr, done.stderr
    assert not (tmp_path / "dumps").exists()


UNEVEN = """
import numpy as np
import hpccoll as hc
from hpccoll.recorder import dump

comm = hc.world()
comm.allgather(np.ones(comm.rank + 1), counts="auto")
comm.gather(np.ones(comm.rank + 1), counts=[1, 2])
comm.reduce_scatter(np.ones(3), counts=[1, 2])
assert dump.write("signal", "as asked for by the test")
comm.barrier()
"""


def test_blocks_of_different_lengths_are_no_fault(tmp_path: Path) -> None:
    run_mpi(2, "-c", UNEVEN, env={"HPCCOLL_DUMP_DIR": str(tmp_path / "dumps")})
    assert diagnose([str(tmp_path / "dumps")]) == 0


def test_every_program_is_run() -> None:
    tree = ast.parse(BROKEN.read_text())
    programs = {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }
    assert programs == {case.program for case in CASES} | {"clean"}


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
