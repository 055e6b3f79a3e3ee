"""Correct programs that nobody wrote, with one fault in them: the report names the rank that has it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_dumps import Call, End, Job, allreduce, barrier, broadcast, recv, send

from hpccoll.diagnose.reading import read
from hpccoll.diagnose.verdicts import Diagnosis, diagnose

FAULTS = (
    "computing", "raised", "exited", "killed", "operation", "count", "dtype", "op", "left out", "no send", "tag",
)  # fmt: skip
Programs = dict[int, list[Call | End]]


@st.composite
def programs(draw: st.DrawFn) -> tuple[Programs, dict[str, Sequence[int]]]:
    """A correct program for 4 to 6 ranks: collectives on two communicators, and messages with tags of their own."""
    size = draw(st.integers(4, 6))
    part = draw(st.permutations(range(size)))[: draw(st.integers(3, size))]
    comms: dict[str, Sequence[int]] = {"part": list(part)}
    found: Programs = {rank: [] for rank in range(size)}
    for step in range(draw(st.integers(1, 12))):
        line = 100 + step
        if draw(st.integers(0, 3)) == 0:
            sender, receiver = draw(st.permutations(range(size)))[:2]
            found[sender].append(send(receiver, tag=step, line=line))
            found[receiver].append(recv(sender, tag=step, line=line + 100))
        else:
            comm = draw(st.sampled_from(["world", "part"]))
            make = draw(st.sampled_from([allreduce, broadcast, barrier]))
            for rank in range(size) if comm == "world" else part:
                found[rank].append(make(line, comm=comm))
    for rank in range(size):
        found[rank] += [allreduce(90, count=8), barrier(91)]
    return found, comms


def examine(found: Programs, comms: dict[str, Sequence[int]], eager: bool) -> Diagnosis:
    with tempfile.TemporaryDirectory() as directory:
        return diagnose(read([Job(found, comms, eager=eager).write(Path(directory) / "dumps")]))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(programs())
def test_nothing_is_found_in_a_correct_program(case: tuple[Programs, dict[str, Sequence[int]]]) -> None:
    found = examine(*case, eager=True)
    assert found.kind == "nothing", found.findings


@settings(max_examples=200, deadline=None, derandomize=True)
@given(programs(), st.sampled_from(FAULTS), st.data())
def test_the_guilty_rank_is_named(
    case: tuple[Programs, dict[str, Sequence[int]]], fault: str, data: st.DataObject
) -> None:
    calls, comms = case
    guilty = data.draw(st.integers(0, len(calls) - 1), label="guilty")
    if not places(calls[guilty], fault):
        fault = "computing"  # it has no message to spoil
    broken = data.draw(st.sampled_from(places(calls[guilty], fault)), label="place")
    calls[guilty] = spoilt(calls[guilty], broken, fault)
    found = examine(calls, comms, eager=data.draw(st.booleans()))
    assert found.findings, "nothing was found"
    first = found.findings[0]
    assert guilty in first.ranks, found.findings
    if first.kind in (
        "unmatched-message",
        "cycle",
    ):  # what is missing at one rank may be too much at the other
        assert fault in ("no send", "tag", "left out"), found.findings
        assert first.kind == "cycle" or len(first.ranks) == 2, found.findings
    else:
        assert first.ranks == [guilty], found.findings


def places(program: list[Call | End], fault: str) -> list[int]:
    """Where a fault of that kind can be; the last calls of every program are collectives of all."""
    fitting = {
        "operation": lambda call: not call.is_message,
        "left out": lambda call: not call.is_message,
        "count": lambda call: call.method in ("allreduce", "broadcast"),
        "dtype": lambda call: call.method in ("allreduce", "broadcast"),
        "op": lambda call: call.method == "allreduce",
        "no send": lambda call: call.dest is not None,
        "tag": lambda call: call.dest is not None,
    }.get(fault, lambda call: True)
    return [i for i, call in enumerate(program) if isinstance(call, Call) and fitting(call)]


def spoilt(program: list[Call | End], i: int, fault: str) -> list[Call | End]:
    call = program[i]
    assert isinstance(call, Call)
    if fault in ("computing", "raised", "killed"):
        return [*program[:i], End(fault, "ValueError: bad")]
    if fault == "exited":
        return program[:i]
    if fault in ("left out", "no send"):
        return [*program[:i], *program[i + 1 :]]
    changes = {
        "operation": {"method": "reduce" if call.method != "reduce" else "scan", "line": 77},
        "count": {"count": 5},
        "dtype": {"dtype": "int8"},
        "op": {"op": "prod"},
        "tag": {"tag": 999},
    }
    return [*program[:i], replace(call, **changes[fault]), *program[i + 1 :]]
