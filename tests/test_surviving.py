"""Ranks die, and the others go on: revoke, shrink, agree, in jobs that were started for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import Mpirun
from mpi_plugin import need

ULFM = ("--with-ft", "ulfm")
# Every rank that lives ends with one line of JSON.
JOB = """
import json, os, signal, sys, time
import numpy as np
import hpccoll as hc
{before}
comm = hc.world()
x = np.full(4, comm.rank + 1.0)
{meet}
def die():
    os.kill(os.getpid(), signal.SIGKILL)
def tell(**facts):
    sys.stdout.write(json.dumps(dict(facts, rank=comm.rank)) + "\\n")
    sys.stdout.flush()
"""
ATTEMPT = """
if comm.rank == 2:
    die()
try:
    {call}
    error = None
except hc.ProcessFailedError as raised:
    error = raised
old, was = comm, comm.rank
comm = old.shrink()
total = comm.allreduce(np.full(4, was + 1.0), blocking=False).wait()
agreed = [comm.agree(True), old.agree(was != 3), old.agree(6 if was else 12)]
tell(was=was, error=error and str(error), size=comm.size, total=total.tolist(), agreed=agreed,
     failed=[old.failed(), comm.failed()], revoked=[old.revoked, comm.revoked],
     seen=error and [list(error.ranks), error.revoked])
{end}
"""
# When it returns anywhere, all have come to it, and nobody is hurt by a rank that dies meanwhile.
MEET = "comm.agree(True)"
IN_TURN = "comm.free(); old.free()"


def survivors(
    mpirun: Mpirun, code: str, ranks: int = 4, status: int = 0, before: str = "", **env: str
) -> list[Any]:
    done = mpirun(
        ranks, "-c", JOB.format(before=before, meet=MEET) + code, options=ULFM, check=False, env=env
    )
    assert done.returncode == status, done.stdout + done.stderr
    return sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda facts: facts["rank"])


@pytest.mark.parametrize(
    ("call", "end"),
    [
        ("comm.allreduce(x)", IN_TURN),
        ("comm.allreduce(x)", ""),
        ("comm.barrier()", ""),
        ("[w.wait() for w in [comm.allreduce(x, blocking=False) for _ in range(3)]]", IN_TURN),
        ("comm.recv(x, source=2, blocking=False).wait()", IN_TURN),
        ("comm.dup()", ""),
    ],
)
def test_three_of_four_go_on(mpirun: Mpirun, call: str, end: str) -> None:
    found = survivors(mpirun, ATTEMPT.format(call=call, end=end))
    assert [facts["was"] for facts in found] == [0, 1, 3]
    method = call.partition("comm.")[2].partition("(")[0]
    for facts in found:
        assert facts["error"].startswith(method)
        # The first to know sees the failure, and its shrink() revokes for the others.
        assert facts["seen"][0] in ([2], []) and (facts["seen"][1] or facts["seen"][0] == [2])
        assert ("rank 2)" in facts["error"]) == (facts["seen"][0] == [2])
        assert (facts["size"], facts["total"]) == (3, [7.0] * 4)
        assert facts["agreed"] == [True, False, 4]
        assert facts["failed"] == [[2], []]
        assert facts["revoked"] == [True, False]
    assert any(not facts["seen"][1] for facts in found)


def test_check_mode_goes_along(mpirun: Mpirun) -> None:
    """Its own communicator is revoked with the one that it checks, and the new one is checked as well."""
    code = """
if comm.rank == 2:
    die()
errors = []
for count in (4, 4 + (comm.rank == 1)):
    try:
        comm.allreduce(np.ones(count))
    except (hc.ProcessFailedError, hc.MismatchError) as error:
        errors.append(type(error).__name__)
        if len(errors) == 1:
            comm = comm.shrink()
tell(errors=errors, total=comm.allreduce(1))
comm.free()
"""
    found = survivors(mpirun, code, HPCCOLL_CHECK="1")
    assert [facts["errors"] for facts in found] == [["ProcessFailedError", "MismatchError"]] * 3
    assert [facts["total"] for facts in found] == [3] * 3


def test_the_end_does_not_wait_for_the_dead(mpirun: Mpirun) -> None:
    """Open MPI would, one time in twenty; whether its switch is set can be seen each time."""
    code = """
import ctypes
from hpccoll import gate
switch = ctypes.c_bool.in_dll(ctypes.CDLL(str(gate.library_path())), "ompi_async_mpi_finalize")
before = switch.value
comm.rank == 1 and die()
comm = comm.shrink()
tell(switch=[before, switch.value])
"""
    assert [facts["switch"] for facts in survivors(mpirun, code)] == [[False, True]] * 3


@pytest.mark.parametrize("check", ["0", "1"])
@pytest.mark.parametrize("call", ["comm.recv(x, source=1)", "comm.allreduce(x)"])
def test_revoke_wakes_a_rank_that_waits(mpirun: Mpirun, call: str, check: str) -> None:
    """Nobody is dead here: rank 0 waits for what rank 1 will never do."""
    code = f"""
try:
    if comm.rank == 0:
        {call}
    comm.revoke()
    comm.allreduce(x)
except hc.ProcessFailedError as error:
    tell(ranks=list(error.ranks), revoked=error.revoked)
comm.free()
"""
    assert survivors(mpirun, code, ranks=2, HPCCOLL_CHECK=check) == [
        {"rank": rank, "ranks": [], "revoked": True} for rank in (0, 1)
    ]


def test_ranks_die_one_after_the_other(mpirun: Mpirun) -> None:
    code = """
sizes = []
for victim in (3, 0):
    comm.agree(True)
    if comm.rank == victim:
        die()
    while True:
        try:
            comm.allreduce(x)
        except hc.ProcessFailedError:
            comm = comm.shrink()
            break
    sizes.append(comm.size)
tell(sizes=sizes, total=comm.allreduce(1))
"""
    assert survivors(mpirun, code) == [{"rank": rank, "sizes": [3, 2], "total": 2} for rank in (0, 1)]


@pytest.mark.parametrize(("leave", "status"), [("pass", 0), ("sys.exit(5)", 5)])
def test_the_ranks_that_live_end_together(mpirun: Mpirun, leave: str, status: int) -> None:
    code = f"comm.rank == 1 and die()\ncomm = comm.shrink()\ntell()\n{leave}"
    assert len(survivors(mpirun, code, status=status, before="hc.abort_on_exception()")) == 3


def test_a_program_ends_well_without_a_rank(mpirun: Mpirun) -> None:
    code = """
from hpccoll.aborting import run_program
def main(argv):
    global comm
    comm.rank == 1 and die()
    comm = comm.shrink()
    tell()
run_program(main)
"""
    assert len(survivors(mpirun, code)) == 3


def test_a_process_group_of_torch(mpirun: Mpirun) -> None:
    """Its operations raise, and the end of the others, who meet there, goes without a word about it."""
    need("torch")
    code = """
import torch.distributed as dist, torch, hpccoll.torch_backend
dist.init_process_group("hpccoll", init_method="mpi://")
comm.agree(True)
comm.rank == 1 and die()
try:
    dist.all_reduce(torch.ones(3))
except hc.ProcessFailedError as error:
    comm = comm.shrink()
    tell(runtime=isinstance(error, RuntimeError), total=comm.allreduce(1))
"""
    done = mpirun(3, "-c", JOB.format(before="", meet=MEET) + code, options=ULFM)
    assert sorted(done.stdout.splitlines()) == [
        f'{{"runtime": true, "total": 2, "rank": {rank}}}' for rank in (0, 1)
    ]
    assert "Traceback" not in done.stderr


def test_a_failure_that_nobody_catches_ends_the_job(mpirun: Mpirun) -> None:
    code = (
        JOB.format(before="hc.abort_on_exception()", meet=MEET)
        + "comm.rank == 2 and die()\ncomm.allreduce(x)"
    )
    done = mpirun(4, "-c", code, options=ULFM, check=False)
    assert done.returncode == 1
    assert "hpccoll.errors.ProcessFailedError: allreduce on rank" in done.stderr
    assert "(failed: rank 2)" in done.stderr


def test_a_job_that_was_not_started_for_it(mpirun: Mpirun) -> None:
    code = JOB.format(before="", meet="") + (
        "for call in (comm.revoke, comm.shrink, lambda: comm.agree(True), comm.failed, lambda: comm.revoked):\n"
        "    try:\n        call()\n        tell(error=None)\n"
        "    except hc.UnsupportedError as error:\n        tell(error=str(error))\n"
        "tell(total=comm.allreduce(1))"
    )
    lines = [json.loads(line) for line in mpirun(2, "-c", code).stdout.splitlines()]
    errors = [facts["error"] for facts in lines if "error" in facts]
    assert len(errors) == 10
    assert all("mpirun --with-ft ulfm" in error and "switched off" in error for error in errors)
    assert [facts["total"] for facts in lines if "total" in facts] == [2, 2]


@pytest.mark.parametrize("flag", [-1, 2**31, 0.5, None, "yes"])
def test_agree_wants_flags(mpirun: Mpirun, flag: object) -> None:
    from hpccoll.comm.surviving import Surviving
    from hpccoll.errors import ArgumentError

    with pytest.raises(ArgumentError, match="agree: `flag` must be"):
        Surviving.agree(object(), flag)  # type: ignore[arg-type]
