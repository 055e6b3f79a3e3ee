"""A program finds what goes wrong, on whichever rank and in whichever call, and ends with status 1."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bench_support import MOVES, REDUCTIONS, rows, run_several
from conftest import Mpirun

NAMES = MOVES + REDUCTIONS
SMALL = "-b 1K -e 1K -w 3 -n 20"

WRONG = re.compile(
    r"^# WRONG on rank (\d+) \(\S+\): index (\d+): expected (\S+), found (\S+)"
    r" \((\d+) of (\d+) elements wrong, call (\d+)\)",
    re.MULTILINE,
)


def failed(name: str, fault: str, names: tuple[str, ...] = NAMES, args: str = SMALL) -> str:
    """Output of a program that has to fail."""
    status, out = run_several(3, names, args, fault)[name]
    assert status == 1, out
    assert re.search(r"^# FAILED: \d+ wrong elements$", out.splitlines()[-1]), out
    assert "verified on every rank" not in out
    return out


@pytest.mark.parametrize("name", NAMES)
def test_single_element_in_a_single_late_call(name: str) -> None:
    out = failed(name, "element 17 17")
    [(rank, index, expected, found, wrong, size, call)] = WRONG.findall(out)
    assert (rank, wrong, call) == ("1", "1", "17")
    assert int(index) == int(size) // 2
    assert float(expected) != float(found)
    assert out.splitlines()[-1] == "# FAILED: 1 wrong elements"


@pytest.mark.parametrize("name", NAMES)
def test_call_that_does_nothing(name: str) -> None:
    """Right results of an earlier call are not taken for those of this one: the buffers are poisoned."""
    out = failed(name, "nothing 20 99")
    assert {call for *_, call in WRONG.findall(out)} == {"20"}


@pytest.mark.parametrize("name", ["allreduce", "alltoall"])
def test_in_place_call_that_does_nothing(name: str) -> None:
    failed(name, "nothing 20 99", ("allreduce", "alltoall"), f"{SMALL} --in-place")


@pytest.mark.parametrize("name", ["allgather", "sendrecv"])
def test_data_one_place_off(name: str) -> None:
    [(*_, wrong, size, _call)] = WRONG.findall(failed(name, "rotate 0 0", ("allgather", "sendrecv")))
    assert int(wrong) > int(size) // 2


@pytest.mark.parametrize("name", ["allreduce", "alltoall", "sendrecv"])
def test_changed_input(name: str) -> None:
    """In the last call, so that the wrong data is never sent."""
    out = failed(name, "input 22 22", ("allreduce", "alltoall", "sendrecv"))
    text = r"^# WRONG on rank 1 \(\S+\): the input was changed at index \d+: expected \S+, found \S+$"
    assert re.search(text, out, re.MULTILINE)


@pytest.mark.parametrize(("fault", "place"), [("before", "byte 1 before"), ("behind", "byte 3 behind")])
@pytest.mark.parametrize("name", ["allreduce", "broadcast", "scatter"])
def test_write_outside_the_buffer(name: str, fault: str, place: str) -> None:
    out = failed(name, f"{fault} 5 5", ("allreduce", "broadcast", "scatter"))
    text = f"the canary of the output was overwritten, {place} the buffer: expected 0xa5, found 0x0"
    assert re.search(rf"^# WRONG on rank 1 \(\S+\): {text}$", out, re.MULTILINE), out


def test_only_the_wrong_row_is_blamed() -> None:
    """The calls of the first two sizes are right, ten each."""
    out = failed("allreduce", "element 25 25", ("allreduce",), "-b 4 -e 64 -w 1 -n 9")
    assert [(row["bytes"], row["wrong"]) for row in rows(out)] == [
        ("4", "0"), ("8", "0"), ("16", "1"), ("32", "0"), ("64", "0"),
    ]  # fmt: skip


def test_barrier_that_does_not_wait() -> None:
    """Every barrier is broken: the late rank finds the others gone, also where there is no common clock."""
    out = failed("barrier", "nothing 0 999", ("barrier",), "-n 50")
    text = r"^# WRONG on rank (\d) .*: expected rank \d to wait for rank \1, found that it left early$"
    assert re.search(text, out, re.MULTILINE), out


def test_barrier_that_does_not_wait_once(mpirun: Mpirun) -> None:
    """In one of the timed calls, so that the proof with a late rank sees nothing."""
    script = Path(__file__).with_name("faulty_barrier.py")
    done = mpirun(3, script, "-n", "30", "-w", "1", "--batch", "1", check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    text = r"^# WRONG on rank \d .*: index 20: expected to leave after the last rank had entered, found that"
    assert re.search(text, done.stdout, re.MULTILINE), done.stdout
