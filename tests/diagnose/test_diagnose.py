"""What the report says of jobs whose fault is known."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from synthetic_dumps import (
    BEGIN_S,
    Call,
    End,
    Job,
    allreduce,
    barrier,
    broadcast,
    recv,
    send,
    write_document,
)

from hpccoll.diagnose.__main__ import groups, main
from hpccoll.diagnose.dumps import SCHEMA
from hpccoll.diagnose.findings import KINDS
from hpccoll.diagnose.reading import read
from hpccoll.diagnose.verdicts import Diagnosis, diagnose

STEP = [allreduce(10), broadcast(11), allreduce(12, op="max")]
TWO = {"rows": range(4), "cols": range(4)}


def four(
    odd: Sequence[Call | End], usual: Sequence[Call | End] = (*STEP, allreduce(88)), **options: Any
) -> Job:
    """Three ranks with the usual program, and rank 3 with another."""
    return Job({0: usual, 1: usual, 2: usual, 3: odd}, **options)


def diagnosis(directory: Path) -> Diagnosis:
    return diagnose(read([directory]))


def all_texts(found: Diagnosis) -> str:
    return "\n".join(line for item in found.findings for line in item.lines)


CASES: dict[str, tuple[Job, str, list[int], list[str]]] = {
    "missing": (
        four([*STEP, End("computing")]),
        "missing-rank",
        [3],
        [
            "ranks [0-2] wait in allreduce #4 of world at train.py:88 (float32, 4 elements, sum) for rank 3",
            "last operation was allreduce #3 of world at train.py:12",
            "train.py:61 in work, in a loop: while True:",
        ],
    ),
    "sleeping": (four([*STEP, End("computing", "time.sleep(9)")]), "missing-rank", [3], ["in work, sleeping: time"]),
    "missing, several": (
        Job({rank: [*STEP, allreduce(88) if rank < 5 else End("computing")] for rank in range(8)}),
        "missing-rank",
        [5, 6, 7],
        ["ranks [0-4] wait", "for ranks [5-7]"],
    ),
    "operation": (
        four([*STEP, broadcast(61)]),
        "operation-mismatch",
        [3],
        [
            "ranks [0-2] are in allreduce #4 of world at train.py:88",
            "rank 3 is in broadcast #4 of world at train.py:61",
        ],
    ),
    "operation, two ranks": (
        Job({0: [allreduce(88)], 1: [broadcast(61)]}),
        "operation-mismatch",
        [0, 1],
        ["rank 0 is in allreduce #1", "rank 1 is in broadcast #1"],
    ),
    "count": (four([allreduce(9, count=2)], [allreduce(8)]), "argument-mismatch", [3], ["the count differs", "2 elem"]),
    "dtype": (
        four([allreduce(9, dtype="float64")], [allreduce(8)]),
        "argument-mismatch",
        [3],
        ["the dtype differs", "float64"],
    ),
    "op": (four([allreduce(9, op="max")], [allreduce(8)]), "argument-mismatch", [3], ["the op differs", "max"]),
    "root": (four([broadcast(9, root=1)], [broadcast(8)]), "argument-mismatch", [3], ["the root differs", "root 1"]),
    "left out": (
        four([*STEP, STEP[0], STEP[2]], STEP * 3),
        "skipped-collective",
        [3],
        ["it left out broadcast #5 at train.py:11"],
    ),
    "left out, and passed": (
        four([STEP[0], STEP[2], *STEP], [STEP[0], STEP[2].at(13), STEP[2], *STEP]),
        "skipped-collective",
        [3],
        ["it left out allreduce #2 at train.py:13"],
    ),
    "one too many": (
        four([STEP[0], allreduce(50), STEP[2], barrier()], [STEP[0], STEP[2], barrier()]),
        "skipped-collective",
        [3],
        ["made one call too many: allreduce #2 at train.py:50"],
    ),
    "swapped": (
        four(
            [*STEP, allreduce(21, comm="cols"), allreduce(20, comm="rows")],
            [*STEP, allreduce(20, comm="rows"), allreduce(21, comm="cols")],
            comms=TWO,
        ),
        "order-swapped",
        [3],
        [
            "ranks [0-2] wait in allreduce #1 of rows at train.py:20 (float32, 4 elements, sum) for rank 3",
            "rank 3 waits in allreduce #1 of cols at train.py:21 (float32, 4 elements, sum) for ranks [0-2]",
        ],
    ),
    "raised": (
        four([*STEP, End("raised", "ValueError: bad")]),
        "rank-raised",
        [3],
        ["rank 3 raised ValueError: bad", "at train.py:61 in work"],
    ),
    "exited": (four(STEP), "rank-exited", [3], ["rank 3 came to its end", "its last operation was allreduce #3"]),
    "killed": (four([*STEP, End("killed")]), "no-dump", [3], ["rank 3 left no dump", "killed, out of memory, stopped"]),
    "host lost": (
        Job({**{key: [*STEP] for key in (0, 1, 4, 5)}, **{key: [End("killed")] for key in (2, 3)}}),
        "no-dump",
        [2, 3],
        ["ranks [2-3] would be all of 1 host"],
    ),
    "never sent": (
        Job({0: [barrier(12)], 1: [recv(0, tag=7, line=30), barrier(12)], 2: [barrier(12)]}),
        "unmatched-message",
        [0, 1],
        ["rank 1 waits in recv from rank 0 with tag 7 of world at train.py:30", "it is in barrier #1"],
    ),
    "never received": (
        Job({0: [send(1, line=30), barrier(12)], 1: [barrier(12)], 2: [barrier(12)]}, eager=False),
        "unmatched-message",
        [0, 1],
        ["rank 0 waits in send to rank 1", "rank 1 has no such message under way"],
    ),
    "tag": (
        Job({0: [send(1, tag=5), barrier()], 1: [recv(0, tag=7), barrier()], 2: [barrier()]}),
        "unmatched-message",
        [0, 1],
        ["rank 0 has made send to rank 1 with tag 5", "rank 1 is in recv from rank 0 with tag 7", "tags differ"],
    ),
    "tag, both waiting": (
        Job({0: [send(1, tag=5), barrier()], 1: [recv(0, tag=7), barrier()], 2: [barrier()]}, eager=False),
        "unmatched-message",
        [0, 1],
        ["rank 0 is in send to rank 1 with tag 5", "their tags differ"],
    ),
    "circle": (
        Job({0: [recv(2), send(1)], 1: [recv(0), send(2)], 2: [recv(1), send(0)], 3: [barrier()]}),
        "cycle",
        [0, 1, 2],
        [
            "rank 0 waits in recv from rank 2 with tag 0 of world at train.py:14 (float32, 4 elements) for rank 2",
            "rank 2 waits in recv from rank 1",
            "rank 1 waits in recv from rank 0",
        ],
    ),
    "circle of sendrecv": (
        Job({r: [Call("sendrecv", dest=(r + 1) % 4, source=(r + 1) % 4, line=40)] for r in range(4)}),
        "cycle",
        [0, 1, 2, 3],
        ["rank 0 waits in sendrecv to rank 1 from rank 1", "for rank 1"],
    ),
    "consequences": (
        Job({0: [recv(1), barrier()], 1: [recv(2), barrier()], 2: [End("computing")], 3: [barrier()]}),
        "missing-rank",
        [2],
        ["rank 1 waits in recv from rank 2", "rank 3 waits in barrier #1"],
    ),
    "another communicator": (
        Job({**{r: [allreduce(20, comm="part")] for r in (1, 2)}, 3: [End("computing")], 0: [barrier(30)]},
            comms={"part": [3, 1, 2]}),
        "missing-rank",
        [3],
        ["ranks [1-2] wait in allreduce #1 of part"],
    ),
    "exited before a receive": (
        Job({0: [recv(1, line=30)], 1: []}),
        "rank-exited",
        [1],
        ["rank 0 waits in recv from rank 1 with tag 0 of world at train.py:30"],
    ),
    "nothing": (four([*STEP, allreduce(88)]), "nothing", [], []),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_kind(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, kind, ranks, parts = CASES[name]
    found = diagnosis(job.write(tmp_path / "dumps"))
    text = all_texts(found)
    assert found.kind == kind, text
    assert (found.findings[0].ranks if found.findings else []) == ranks, text
    for part in parts:
        assert part in text
    assert main([str(tmp_path / "dumps")]) == KINDS[kind][0]
    printed = capsys.readouterr().out
    assert f"verdict: {kind}" in printed
    for part in parts:
        assert part in printed


def test_all_inside(tmp_path: Path) -> None:
    """The network, or a rank that is frozen: nobody is to blame."""
    job = four([*STEP, allreduce(88)])
    for rank in range(4):
        write_document(tmp_path, unfinished(job, rank))
    found = diagnosis(tmp_path)
    assert found.kind == "all-inside"
    assert found.findings[0].ranks == [0, 1, 2, 3]
    assert "the network, or a rank is frozen inside" in all_texts(found)
    done = job.document(3)
    assert done is not None
    write_document(tmp_path, {**done, "reason": "peer", "stacks": unfinished(job, 0)["stacks"]})
    assert "rank 3 has been there and gone on" in all_texts(diagnosis(tmp_path))


def unfinished(job: Job, rank: int) -> dict[str, Any]:
    """The dump of a rank that has come to its end, as if it were still in its last operation."""
    document = job.document(rank)
    assert document is not None
    document["operations"][-1].update(state="running", ended_s=None)
    frames = [{"file": "train.py", "line": 88, "function": "step", "text": "comm.allreduce(x)"}]
    return {**document, "reason": "timeout", "stacks": [{"thread": "MainThread", "frames": frames}]}


def test_the_ring_has_gone_round(tmp_path: Path) -> None:
    """Rank 3 went past the operation that the others are in, but what it called there is lost."""
    job = four([barrier(5)] * 40, [barrier(5)] * 40, ring=8)
    for rank in range(3):
        document = unfinished(job, rank)
        stuck = {**document["operations"][0], "seq": 10, "state": "running", "ended_s": None}
        write_document(
            tmp_path,
            {
                **document,
                "operations": [stuck],
                "communicators": [{**document["communicators"][0], "issued": 10}],
                "dropped": 9,
            },
        )
    document = job.document(3)
    assert document is not None
    write_document(tmp_path, {**document, "reason": "peer"})
    found = diagnosis(tmp_path)
    assert found.kind == "unknown"
    assert found.findings[0].ranks == [3]
    assert "HPCCOLL_RECORDER" in all_texts(found)


def test_check_mode_refused(tmp_path: Path) -> None:
    job = four(
        [*STEP, End("raised", "NanError: rank 3 brings a NaN")], [*STEP, End("raised", "NanError: rank 3")]
    )
    for rank in range(4):
        document = job.document(rank)
        assert document is not None
        write_document(
            tmp_path, {**document, "reason": "check", "message": "rank 3 brings a NaN to allreduce"}
        )
    found = diagnosis(tmp_path)
    assert found.kind == "check"
    assert "rank 3 brings a NaN to allreduce" in all_texts(found)


def test_a_refusal_of_check_mode_is_told_in_one_line(tmp_path: Path) -> None:
    text = "hpccoll.errors.MismatchError: the ranks differ in the method. Nothing has been sent. Called were"
    job = four([*STEP, End("raised", text)], reason="check")
    job.write(tmp_path)
    found = diagnosis(tmp_path)
    told = [text for ranks, text in groups(found) if ranks == [3]]
    assert told == [
        "raised hpccoll.errors.MismatchError: the ranks differ in the method at train.py:61 in work"
    ]


def test_what_follows_from_an_exception_is_no_cause(tmp_path: Path) -> None:
    """The others' waits ran out because of rank 3, and raised too."""
    job = four([*STEP, End("raised", "ValueError: bad")])
    for rank in range(4):
        document = job.document(rank)
        assert document is not None
        if rank < 3:
            document["operations"][-1]["state"] = "failed"
            document.update(
                reason="exception",
                exception='Traceback ...\n  File "x", line 3, in y\nhpccoll.errors.WaitTimeout: 3 s\n',
            )
        write_document(tmp_path, document)
    found = diagnosis(tmp_path)
    assert (found.kind, found.findings[0].ranks) == ("rank-raised", [3])


def test_ended_from_outside(tmp_path: Path) -> None:
    job = four([*STEP, End("computing")], [*STEP, End("computing")], reason="terminated")
    found = diagnosis(job.write(tmp_path))
    assert found.kind == "terminated"
    assert found.findings[0].ranks == [0, 1, 2, 3]


def test_a_look_at_a_healthy_job(tmp_path: Path) -> None:
    job = four([*STEP, End("computing")], [*STEP, End("computing")], reason="signal")
    assert diagnosis(job.write(tmp_path)).kind == "nothing"


def test_a_rank_that_computes_while_others_have_ended(tmp_path: Path) -> None:
    found = diagnosis(four([*STEP, End("computing")], STEP).write(tmp_path))
    assert (found.kind, found.findings[0].ranks) == ("missing-rank", [3])
    assert "came to the end of the program" in all_texts(found)


def test_what_came_after_the_first_gave_up(tmp_path: Path) -> None:
    """A stopped rank is woken to be ended, and then does what it had been missed for."""
    four([*STEP, End("computing")]).write(tmp_path)
    document = four([*STEP, allreduce(88)]).document(3)
    assert document is not None
    document["operations"][-1].update(issued_s=BEGIN_S + 66, started_s=BEGIN_S + 66)
    write_document(tmp_path, {**document, "reason": "terminated", "written_s": BEGIN_S + 67})
    found = diagnosis(tmp_path)
    assert (found.kind, found.findings[0].ranks) == ("missing-rank", [3])
    assert "6.0 s after the first rank had given up" in all_texts(found)
    assert found.findings[0].sites == ["train.py:88"]


def test_a_wait_in_torch(tmp_path: Path) -> None:
    """Non-blocking collectives: a rank waits if it is inside torch or hpccoll, and computes if it is in user code."""
    job = four([*STEP, End("computing")], [*STEP, allreduce(88, blocking=False)])
    job.write(tmp_path)
    assert diagnosis(tmp_path).kind == "missing-rank"
    for rank in range(3):
        document = job.document(rank)
        assert document is not None
        document["stacks"][0]["frames"].append(
            {"file": "/opt/site-packages/torch/nn/functional.py", "line": 1, "function": "linear", "text": ""}
        )
        document["stacks"][0]["frames"] = [
            f for f in document["stacks"][0]["frames"] if "hpccoll" not in f["file"]
        ]
        write_document(tmp_path, document)
    assert diagnosis(tmp_path).graph.waiting == {}


def test_hosts_and_processes(tmp_path: Path) -> None:
    job = Job({**dict.fromkeys((0, 1, 4), STEP), **{key: [End("killed")] for key in (2, 3, 5)}})
    for rank in (0, 1, 4):
        document = job.document(rank)
        assert document is not None
        document["hosts"] = {"node1": "0-1", "node2": "2-3", "node3": "4-5"}
        document["neighbours"] = [{"rank": 5, "pid": 1005, "state": "T"}] if rank == 4 else []
        write_document(tmp_path, document)
    text = all_texts(diagnosis(tmp_path))
    assert "all ranks of node2 (ranks [2-3]) left none: the host is lost" in text
    assert "rank 5: its process is stopped (SIGSTOP or a debugger)" in text


def test_blocks_of_different_lengths(tmp_path: Path) -> None:
    job = Job(
        {r: [Call("allgather", count=r + 1, extra=(("uneven", True),)), allreduce(88)] for r in range(4)}
    )
    assert diagnosis(job.write(tmp_path)).kind == "nothing"
    job = Job({r: [Call("allgather", count=4 if r else 3), allreduce(88)] for r in range(4)})
    assert diagnosis(job.write(tmp_path)).findings[0].ranks == [0]


def test_the_root_of_a_gather_brings_what_it_likes(tmp_path: Path) -> None:
    gathers = {r: [Call("gather", count=4 if r else 16, root=0), allreduce(88)] for r in range(4)}
    assert diagnosis(Job(gathers).write(tmp_path)).kind == "nothing"
    gathers[2] = [Call("gather", count=5, root=0), allreduce(88)]
    assert diagnosis(Job(gathers).write(tmp_path)).findings[0].ranks == [2]


# ---- files


def test_files_that_are_no_dumps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    four([*STEP, End("computing")]).write(tmp_path)
    whole = json.loads((tmp_path / "rank000003.json").read_text())
    for number, text in enumerate(
        [
            "", '{"schema": "hpccoll.dump/1", "rank": 3, "si', "[1, 2]", '{"schema": "else/1"}', "\0\xff" * 40,
            json.dumps({**whole, "schema": "hpccoll.dump/2"}), json.dumps({**whole, "rank": 99}),
            json.dumps({**whole, "operations": [{"comm": 7}]}), json.dumps({**whole, "stacks": 3}),
            json.dumps({**whole, "communicators": [{"id": "world", "ranks": "9-99999999999", "issued": 1}]}),
        ],
        start=4,
    ):  # fmt: skip
        (tmp_path / f"rank{number:06d}.json").write_text(text, encoding="latin-1")
    (tmp_path / "rank000050.json").mkdir()
    (tmp_path / ".rank000000.json.abc").write_text("half")
    assert main([str(tmp_path)]) == KINDS["missing-rank"][0]
    printed = capsys.readouterr().out
    for part in (
        "rank000004.json: is empty",
        "rank000005.json: is torn, or no JSON",
        "rank000006.json: is no dump of hpccoll: it has no schema",
        "rank000007.json: is no dump of hpccoll: its schema is 'else/1'",
        "written by a newer hpccoll: its schema is hpccoll.dump/2",
        "rank000010.json: does not keep to the schema",
        "rank000050.json: cannot be read",
        "dumps of 4 of 4 ranks",
    ):
        assert part in printed


def test_nothing_to_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none")]) == 3
    assert main([str(tmp_path)]) == 3
    (tmp_path / "rank000000.json").write_text("{")
    assert main([str(tmp_path)]) == 3
    assert "is torn, or no JSON" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2


def test_remains_of_other_runs(tmp_path: Path) -> None:
    four([*STEP, allreduce(88)]).write(tmp_path)
    for rank in range(3):
        document = four([*STEP, End("killed")]).document(rank)
        assert document is not None
        write_document(tmp_path, {**document, "started_s": BEGIN_S + 1000, "written_s": BEGIN_S + 1060})
    found = diagnosis(tmp_path)
    assert (found.kind, found.findings[0].ranks) == ("no-dump", [3])
    assert any("ranks 3: of an older run" in note for note in found.job.notes)
    document = four(STEP).document(3)
    assert document is not None
    write_document(
        tmp_path, {**document, "run": "abc", "started_s": BEGIN_S + 1000, "written_s": BEGIN_S + 1050}
    )
    assert any("of another run" in note for note in diagnosis(tmp_path).job.notes)


def test_the_newest_directory(tmp_path: Path) -> None:
    four(STEP).write(tmp_path / "hpccoll-dump-1")
    new = four([*STEP, End("computing")]).write(tmp_path / "hpccoll-dump-2")
    for path in new.iterdir():
        os.utime(path, (BEGIN_S + 10, BEGIN_S + 10))
    found = diagnosis(tmp_path)
    assert found.kind == "missing-rank"
    assert found.job.notes == ["the newest dump directory of 2: hpccoll-dump-2; older: hpccoll-dump-1"]


def test_directories_of_several_hosts(tmp_path: Path) -> None:
    four([*STEP, End("computing")]).write(tmp_path / "a")
    (tmp_path / "b").mkdir()
    for rank in (2, 3):
        shutil.move(tmp_path / "a" / f"rank{rank:06d}.json", tmp_path / "b")
    found = diagnose(read([tmp_path / "a", tmp_path / "b"]))
    assert (found.kind, found.findings[0].ranks, found.job.missing) == ("missing-rank", [3], [])


# ---- output


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dumps = four([*STEP, broadcast(61)]).write(tmp_path / "dumps")
    status = main([str(dumps), "--json", str(tmp_path / "found.json")])
    document = json.loads((tmp_path / "found.json").read_text())
    assert "verdict: operation-mismatch" in capsys.readouterr().out
    assert document["format"] == "hpccoll.diagnose/1"
    assert document["status"] == status == 10
    assert document["verdict"] == "operation-mismatch"
    assert document["findings"][0]["ranks"] == "3"
    assert document["findings"][0]["sites"] == ["train.py:61"]
    assert document["findings"][0]["waiting"] == "[0-2]"
    assert [group["ranks"] for group in document["groups"]] == ["3", "[0-2]"]
    assert main([str(dumps), "--json", "-"]) == 10
    assert json.loads(capsys.readouterr().out) == document
    assert main([str(dumps), "--json", os.devnull]) == 10
    assert not Path(os.devnull).is_file()
    assert main([str(dumps), "--json", str(tmp_path / "none" / "found.json")]) == 10
    assert "--json" in capsys.readouterr().err


def test_statuses_are_documented() -> None:
    guide = Path(__file__).parents[2] / "docs" / "hangs.md"
    for kind, (status, _) in KINDS.items():
        assert f"| {status} | `{kind}` |" in guide.read_text(encoding="utf-8")
    statuses = [status for status, _ in KINDS.values()]
    assert len(set(statuses)) == len(statuses)
    assert not {1, 2, 3} & set(statuses)


def test_thousands_of_ranks_in_a_few_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usual, size = [*STEP, allreduce(88)], 3000
    few = Job({0: usual, 1: [*STEP, End("computing")]})
    for rank in range(size):
        document = few.document(rank in (17, 1042))
        assert document is not None
        document.update(rank=rank, size=size, host=f"node{rank // 64:03d}")
        document["communicators"][0].update(ranks=f"0-{size - 1}")
        write_document(tmp_path, document)
    assert main([str(tmp_path)]) == KINDS["missing-rank"][0]
    printed = capsys.readouterr().out
    assert "ranks [0-16,18-1041,1043-2999] wait in allreduce #4" in printed
    assert "verdict: missing-rank, ranks [17,1042]" in printed
    assert len(printed.splitlines()) < 20


def test_the_schema_is_the_recorders() -> None:
    from hpccoll.recorder import dump

    assert dump.SCHEMA == SCHEMA
