"""Which ranks are where, and what has become of their processes."""

import os
import signal
import subprocess
import sys
import time

from hpccoll.recorder import places


def test_hosts_and_neighbours() -> None:
    where = [
        ("a", 10, "n"),
        ("a", 11, "n"),
        ("b", 12, "n"),
        ("a", 13, "n"),
        ("a", 14, "container"),
        ("b", 15, "n"),
    ]
    hosts = {"a": "0-1,3-4", "b": "2,5"}
    assert places.laid_out(where, 0) == (hosts, {1: 11, 3: 13})
    assert places.laid_out(where, 2) == (hosts, {5: 15})
    assert places.laid_out(where, 4) == (hosts, {})  # its numbers are not those of the others


def test_without_namespaces_nobody_is_looked_at() -> None:
    assert places.laid_out([("a", 10, ""), ("a", 11, "")], 0) == ({"a": "0-1"}, {})


def test_states_of_processes() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    def state() -> object:
        (found,) = places.states_of({3: process.pid})
        assert (found["rank"], found["pid"]) == (3, process.pid)
        return found["state"]

    def becomes(wanted: str) -> bool:
        return any(state() == wanted or time.sleep(0.05) for _ in range(600))

    try:
        assert becomes("S")
        process.send_signal(signal.SIGSTOP)
        assert becomes("T")
        process.kill()
        assert becomes("Z")
    finally:
        process.kill()
        process.wait()
    assert state() == "gone"


def test_own() -> None:
    assert places.own()[1] == os.getpid()
