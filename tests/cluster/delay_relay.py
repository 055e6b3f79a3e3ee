#!/usr/bin/env python3
"""delay_relay.py IF_A IF_B DELAY_MS: a small netem for kernels without sch_netem.

Carries Ethernet frames between two interfaces, each DELAY_MS after it came (one way, so the round trip gets twice
that). PACKET_VNET_HDR keeps the veth's checksum and segmentation offloads whole, so frames of 64 KiB pass as one.
"""

import collections
import os
import select
import socket
import sys
import time

SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING, ETH_P_ALL = 263, 15, 23, 3
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33


def opened(name: str) -> socket.socket:
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    end.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    end.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    for force in (SO_SNDBUFFORCE, SO_RCVBUFFORCE):
        end.setsockopt(socket.SOL_SOCKET, force, 16 << 20)
    end.bind((name, ETH_P_ALL))
    end.setblocking(False)
    return end


def relay(name_a: str, name_b: str, delay_s: float) -> None:
    a, b = opened(name_a), opened(name_b)
    other = {a: b, b: a}
    # By the socket to send on; in the order in which they came.
    waiting: dict[socket.socket, collections.deque[tuple[float, bytes]]] = {
        end: collections.deque() for end in other
    }
    poll = select.epoll()
    by_descriptor = {end.fileno(): end for end in other}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.EPOLLIN)
    try:  # ahead of the ranks that poll
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        pass
    print("ready", flush=True)
    while True:
        first = min((queue[0][0] for queue in waiting.values() if queue), default=None)
        left_s = None if first is None else first - time.monotonic()
        # epoll counts whole milliseconds: sleep up to the last one, then spin.
        events = poll.poll(-1 if left_s is None else max(0, int(left_s * 1000)) / 1000)
        now = time.monotonic()
        for descriptor, _ in events:
            receive(by_descriptor[descriptor], waiting[other[by_descriptor[descriptor]]], now + delay_s)
        now = time.monotonic()
        for end, queue in waiting.items():
            while queue and queue[0][0] <= now:
                send(end, queue.popleft()[1])


def receive(end: socket.socket, queue: collections.deque[tuple[float, bytes]], due: float) -> None:
    for _ in range(64):
        try:
            queue.append((due, end.recv(1 << 17)))
        except BlockingIOError:
            return
        except OSError:
            sys.exit("interface went down")


def send(end: socket.socket, frame: bytes) -> None:
    try:
        end.send(frame)
    except BlockingIOError:
        select.select([], [end], [], 0.01)
    except OSError:
        pass


if __name__ == "__main__":
    relay(sys.argv[1], sys.argv[2], float(sys.argv[3]) / 1e3)
