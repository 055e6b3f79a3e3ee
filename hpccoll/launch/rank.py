"""Wraps one rank: runs its program as a child and tells the launcher how it ended.

The launcher's own exit status is not enough: Open MPI 5.0.11 exits 0 after losing a host. A rank that says
nothing is lost. And where the launcher is gone, nobody would end the program: here the closed connection does.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from hpccoll.environment import detect, hostname

__all__ = ["REPORT", "keep_alive", "main"]

# "TOKEN PORT ADDRESS ADDRESS ..." of the launcher.
REPORT = "HPCCOLL_LAUNCH_REPORT"
_CONNECT_S = 5.0
# How long a program that was asked to end may take.
TERM_S = 3.0
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
_CANNOT_RUN = 126
_PR_SET_PDEATHSIG = 1


def keep_alive(connection: socket.socket) -> None:
    """Have a cut link noticed: 3 s of silence, then 3 probes a second apart."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 3),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 6000),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def main(argv: Sequence[str] | None = None) -> int:
    """``rank [--output-dir DIR] -- PROGRAM...``; returns the program's status, 128 + N for signal N."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    split = arguments.index("--")
    directory = arguments[split - 1] if split else None
    return _run(arguments[split + 1 :], directory)


def _run(program: list[str], directory: str | None) -> int:
    launch = detect()
    rank = launch.rank if launch else 0
    try:
        connection = _connect(os.environ.get(REPORT, ""))
    except OSError as error:
        print(
            f"hpccoll launch: rank {rank} on {hostname()} cannot reach the launcher: {error}\n"
            "  fix: let the compute nodes connect to the host that launches, or use --no-monitor, "
            "which trusts the exit status of mpirun or srun alone",
            file=sys.stderr,
        )
        return _CANNOT_RUN
    # Signals become readable, so that the one loop below sees them, the program's end, and the launcher's words.
    wake, waker = socket.socketpair()
    for end in (wake, waker):
        end.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    for number in (*_FORWARDED, signal.SIGCHLD):
        signal.signal(number, _nothing)
    token = os.environ.pop(REPORT, "").partition(" ")[0]  # not the program's business
    _tell(connection, rank=rank, host=hostname(), token=token)
    try:
        child = _start(program, directory, rank)
    except OSError as error:
        print(f"hpccoll launch: rank {rank} on {hostname()}: {error}", file=sys.stderr)
        _tell(connection, status=_CANNOT_RUN)
        return _CANNOT_RUN
    status = _attend(child, wake, connection)
    _tell(connection, status=status)
    return status


def _nothing(number: int, frame: FrameType | None) -> None:
    pass


def _start(program: list[str], directory: str | None, rank: int) -> subprocess.Popen[bytes]:
    # A launcher may hand the rank a descriptor (PMI_FD), so they stay open.
    if directory is None:
        return subprocess.Popen(program, close_fds=False, preexec_fn=_die_with_parent)
    Path(directory).mkdir(parents=True, exist_ok=True)
    # Appended, because a requeued job goes on in the same directory.
    with (
        open(Path(directory, f"rank-{rank:05d}.out"), "ab") as out,
        open(Path(directory, f"rank-{rank:05d}.err"), "ab") as err,
    ):
        return subprocess.Popen(program, stdout=out, stderr=err, close_fds=False, preexec_fn=_die_with_parent)


def _die_with_parent() -> None:
    """Where this process is killed with SIGKILL, so is its program (Linux)."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _connect(report: str) -> socket.socket | None:
    if not report:
        return None
    _, port, *addresses = report.split(" ")
    last: OSError = OSError(f"{REPORT} names no address")
    for address in addresses:
        try:
            connection = socket.create_connection((address, int(port)), timeout=_CONNECT_S)
        except OSError as error:
            last = OSError(f"{address} port {port}: {error}")
            continue
        connection.settimeout(_CONNECT_S)
        keep_alive(connection)
        return connection
    raise last


def _tell(connection: socket.socket | None, **words: object) -> None:
    if connection is not None:
        try:
            connection.sendall(json.dumps(words).encode() + b"\n")
        except OSError:
            pass  # the launcher is gone; there is nobody to tell


def _attend(child: subprocess.Popen[bytes], wake: socket.socket, connection: socket.socket | None) -> int:
    """Hand on signals and the launcher's words until the program has ended; its status."""
    listening = [wake, *([connection] if connection is not None else [])]
    kill_at: float | None = None
    while child.poll() is None:
        if kill_at is not None and time.monotonic() >= kill_at:
            child.kill()
            kill_at = None
        # A timeout too, in case a signal came between poll and select.
        ready, _, _ = select.select(listening, [], [], 0.5)
        if wake in ready:
            for number in wake.recv(4096):
                if number != signal.SIGCHLD:
                    child.send_signal(number)
        if connection is not None and connection in ready:
            words = _received(connection)
            if not words:  # closed, or the link is cut: the launcher has given up
                listening.remove(connection)
                words = bytes([signal.SIGTERM])
                kill_at = time.monotonic() + TERM_S
            for number in words:
                child.send_signal(number)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _received(connection: socket.socket) -> bytes:
    """The numbers of the signals to hand on; empty when the connection has ended."""
    try:
        return connection.recv(4096)
    except OSError:
        return b""


if __name__ == "__main__":
    sys.exit(main())
