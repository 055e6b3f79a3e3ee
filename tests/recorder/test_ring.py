"""The ring: what is kept, how operations are numbered, where they were called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PRELUDE = """
import json, os, threading
import numpy as np
import hpccoll as hc
from hpccoll.recorder import dump, ring
comm = hc.world()
x = np.ones((2, 3), dtype="float32")
def operations():
    dump.write("signal", "a test")
    with open(os.path.join(os.environ["HPCCOLL_DUMP_DIR"], "rank000000.json")) as file:
        return json.load(file)
"""


def run(tmp_path: Path, program: str, **env: str) -> Any:
    """Run a program on one rank; what it has dumped last."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program],
        env={**os.environ, "HPCCOLL_DUMP_DIR": str(tmp_path), **env},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    dump = json.loads((tmp_path / "rank000000.json").read_text())
    dump["operations"] = [each for each in dump["operations"] if each["comm"] != "MPI_COMM_WORLD"]
    return dump


def test_every_kind_of_operation(tmp_path: Path) -> None:
    dump = run(
        tmp_path,
        """
comm.allreduce(x, out=x, op="max")
comm.broadcast(x)
comm.reduce(3.5, op="prod")
comm.barrier()
comm.allgather_object({})
comm.sendrecv(x, dest=0, tag=7)
work = comm.recv(x, blocking=False); comm.send(x, dest=0, tag=2); work.wait()
comm.scatter(None, out=x[:1][0]) if comm.rank else comm.scatter(np.ones((1, 4)))
comm.allreduce(x, blocking=False).wait()
try: comm.allreduce(x, op="nonsense")
except hc.ArgumentError: pass
with comm.dup() as twin: twin.barrier()
comm.split(0, 0); comm.leaders()
hc.Comm(comm.mpi).barrier(); hc.Comm(comm.mpi).barrier()
operations()
""",
    )
    found = [
        (each["comm"], each["seq"], each["method"], each["dtype"], each["count"], each["nbytes"])
        for each in dump["operations"]
    ]
    assert found == [
        ("world", 1, "allreduce", "float32", 6, 24),
        ("world", 2, "broadcast", "float32", 6, 24),
        ("world", 3, "reduce", "float", 1, None),
        ("world", 4, "barrier", None, None, None),
        ("world", 5, "allgather_object", None, None, None),
        ("world", 1, "sendrecv", "float32", 6, 24),
        ("world", 2, "recv", "float32", 6, 24),
        ("world", 3, "send", "float32", 6, 24),
        ("world", 6, "scatter", "float64", 4, 32),
        ("world", 7, "allreduce", "float32", 6, 24),
        ("world", 8, "dup", None, None, None),
        ("world/dup8", 1, "barrier", None, None, None),
        ("world/dup8", 2, "free", None, None, None),
        ("world", 9, "split", None, None, None),
        ("world", 10, "node", None, None, None),
        ("world/node10.0", 1, "free", None, None, None),
        ("world", 11, "split", None, None, None),
        ("wrapped:0/1#1", 1, "barrier", None, None, None),
        ("wrapped:0/1#1", 2, "barrier", None, None, None),
    ]
    assert {each["state"] for each in dump["operations"]} == {"done"}
    by = {(each["method"], each["kind"]): each for each in reversed(dump["operations"])}
    assert by["allreduce", "collective"]["op"] == "max"
    assert by["reduce", "collective"]["root"] == 0
    assert by["reduce", "collective"]["op"] == "prod"
    sendrecv = by["sendrecv", "p2p"]
    assert (sendrecv["dest"], sendrecv["source"], sendrecv["tag"]) == (0, "any", 7)
    assert (by["recv", "p2p"]["source"], by["recv", "p2p"]["tag"]) == ("any", "any")
    assert by["send", "p2p"]["tag"] == 2
    for each in dump["operations"]:
        assert each["issued_s"] <= each["started_s"] <= each["ended_s"] <= dump["written_s"]
    communicators = {each["id"]: each for each in dump["communicators"]}
    assert communicators["world"]["issued"] == communicators["world"]["completed"] == 11
    assert communicators["world/dup8"]["freed"]


def test_the_call_site_is_the_users(tmp_path: Path) -> None:
    (tmp_path / "library.py").write_text(
        "def step(comm, x):\n    comm.allreduce(\n        x,\n        op='max',\n    )\n    return comm.leaders()\n"
    )
    dump = run(
        tmp_path, "import sys; sys.path.insert(0, '.'); import library; library.step(comm, x); operations()"
    )
    sites = {each["method"]: (each["site"], each["function"]) for each in dump["operations"]}
    assert sites["allreduce"] == ("library.py:2", "step")
    assert sites["node"] == sites["split"] == ("library.py:6", "step")


def test_the_last_ones_are_kept_and_what_is_under_way(tmp_path: Path) -> None:
    dump = run(
        tmp_path,
        """
posted = comm.recv(x, tag=3, blocking=False)
for _ in range(10): comm.barrier()
operations()
comm.send(x, dest=0, tag=3); posted.wait()
""",
        HPCCOLL_RECORDER="4",
    )
    assert [(each["method"], each["seq"], each["state"]) for each in dump["operations"]] == [
        ("recv", 1, "running"),
        ("barrier", 7, "done"),
        ("barrier", 8, "done"),
        ("barrier", 9, "done"),
        ("barrier", 10, "done"),
    ]
    assert dump["dropped"] == 7


def test_a_buffer_is_not_kept_alive(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
import gc, weakref
class Array(np.ndarray): pass
for blocking in (True, False):
    big = np.ones(1000).view(Array)
    known = weakref.ref(big)
    work = comm.allreduce(big, out=big, blocking=blocking)
    if not blocking: work.wait()
    del big, work
    gc.collect()
    assert known() is None, blocking
operations()
""",
    )


def test_callbacks_count_in_the_order_of_the_communicator(tmp_path: Path) -> None:
    """What a callback issues runs before what the program has queued meanwhile, and is numbered so."""
    dump = run(
        tmp_path,
        """
ready = threading.Event()
first = comm.run("first", ready.wait, blocking=False)
first.add_done_callback(lambda work: comm.allreduce(x, blocking=False))
last = comm.reduce(x, blocking=False)
ready.set()
last.wait()
operations()
""",
    )
    assert {each["method"]: each["seq"] for each in dump["operations"]} == {
        "first": 1,
        "allreduce": 2,
        "reduce": 3,
    }


def test_a_failed_operation(tmp_path: Path) -> None:
    dump = run(
        tmp_path,
        """
def fail(): raise KeyError("inside")
for blocking in (True, False):
    try:
        work = comm.run("own", fail, blocking)
        work.wait()
    except KeyError: pass
operations()
""",
    )
    assert [(each["method"], each["seq"], each["state"]) for each in dump["operations"]] == [
        ("own", 1, "failed"),
        ("own", 2, "failed"),
    ]
    assert [each["completed"] for each in dump["communicators"] if each["id"] == "world"] == [1]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [(range(4), "0-3"), (range(2, 3), "2"), ([0, 1, 2, 7], "0-2,7"), ([3, 1, 2], "3,1,2"), ([5], "5")],
)
def test_ranks_in_few_words(ranks: Any, text: str) -> None:
    from hpccoll.recorder.places import folded

    assert folded(ranks) == text


def test_a_lighter_dump_does_not_replace_a_weightier_one(tmp_path: Path) -> None:
    dump = run(
        tmp_path,
        """
for reason in ("signal", "peer", "timeout", "terminated", "exit", "peer", "signal"):
    dump.write(reason, "because of " + reason)
""",
    )
    assert dump["reason"] == "timeout"
    assert dump["message"] == "because of timeout"
    assert [path.name for path in tmp_path.iterdir()] == ["rank000000.json"]
