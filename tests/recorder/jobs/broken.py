"""Two ranks that do what the first argument says; most of it goes wrong."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

import numpy as np

import hpccoll as hc

comm = hc.world()
x = np.ones(4)
first = comm.rank == 0


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def warm_up() -> None:
    for _ in range(3):
        comm.allreduce(x, out=x)


def loop() -> None:
    if not first:
        while True:
            pass
    comm.barrier()


def early() -> None:
    if first:
        comm.barrier()
    time.sleep(1)  # rank 1 is not over its own limit yet when rank 0 asks it


def raises() -> None:
    if not first:
        raise ValueError("of rank 1")
    comm.barrier()


def thread_raises() -> None:
    if first:
        comm.barrier()
        return

    def fail() -> None:
        raise KeyError("in a thread")

    threading.Thread(target=fail).start()
    time.sleep(60)


def pending() -> None:
    """Nobody joins what is issued here, and rank 0 does not even wait for it."""
    if first:
        with hc.timeout(1.5):
            comm.broadcast(x, root=1, blocking=False)
        time.sleep(60)
    time.sleep(60)


def awaited() -> None:
    """A receive may stay posted for as long as it likes, until somebody waits for it."""
    work = comm.recv(x, source=1 - comm.rank, blocking=False)
    with hc.timeout(1.5):
        time.sleep(4)
        say("not yet")
        if first:
            work.wait()
    time.sleep(60)


def inner() -> None:
    with hc.timeout(600), hc.timeout(1.5):
        if first:
            comm.barrier()
    time.sleep(60)


def holds_gil() -> None:
    if not first:
        ctypes.PyDLL(None).sleep(60)
    comm.barrier()


def clean() -> None:
    """Whatever the limit is, nothing here is over it."""
    with hc.timeout(None):
        if not first:
            time.sleep(4)
        comm.barrier()
    posted = comm.recv(x, source=1 - comm.rank, tag=5, blocking=False)
    time.sleep(3)
    comm.send(x, dest=1 - comm.rank, tag=5)
    posted.wait()


def stopped() -> None:
    """Both processes are stopped for longer than the limit while they wait for one another."""
    pids = comm.allgather_object(os.getpid())
    if first and os.fork() == 0:
        time.sleep(0.5)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                os.kill(pid, number)
            time.sleep(6)
        os._exit(0)
    if not first:
        for _ in range(25):  # of running time, also after the stop
            time.sleep(0.1)
    comm.barrier()
    say("through")


def usr1() -> None:
    def mine(number: int, frame: object) -> None:
        say("my own handler")

    if sys.argv[2:] == ["chained"]:
        comm.barrier()  # the recorder has its handler; a user's that comes later is the only one
        signal.signal(signal.SIGUSR1, mine)
    if first:
        threading.Timer(1.0, os.kill, [os.getpid(), signal.SIGUSR1]).start()
    else:
        time.sleep(3)
    comm.barrier()
    say("went on")


def term() -> None:
    if first:
        threading.Timer(1.0, os.kill, [os.getpid(), signal.SIGTERM]).start()
    else:
        time.sleep(60)
    comm.barrier()


def forked() -> None:
    """A child neither dumps nor keeps its parent's signal handlers."""
    child = os.fork()
    if child == 0:
        own = [signal.getsignal(number) is signal.SIG_DFL for number in (signal.SIGTERM, signal.SIGUSR1)]
        sys.excepthook(ValueError, ValueError("of a child"), None)
        os._exit(0 if all(own) else 3)
    assert os.waitpid(child, 0)[1] == 0
    comm.barrier()
    say("through")


warm_up()
globals()[sys.argv[1]]()
