"""Hears from the wrapper of every rank how its program ended; a connection that is lost is news too."""

from __future__ import annotations

import json
import resource
import secrets
import selectors
import socket
from dataclasses import dataclass, field

from hpccoll.launch.rank import keep_alive
from hpccoll.network import addresses

__all__ = ["Monitor", "Rank"]


@dataclass
class Rank:
    """What is known of one rank: its host, and its exit status once it has told."""

    number: int
    host: str
    status: int | None = None
    lost: bool = False


@dataclass
class Monitor:
    """Listens to the ranks' wrappers. Entering it opens the port.

    Attributes
    ----------
    size : int
        Ranks that are expected.
    local : bool
        All of them run on this host.
    ranks : dict
        Those that have started, by number.
    order : list
        Those that have ended, or were lost, in the order in which it happened.
    """

    size: int
    local: bool
    ranks: dict[int, Rank] = field(default_factory=dict)
    order: list[Rank] = field(default_factory=list)

    def __enter__(self) -> Monitor:
        _allow_descriptors(self.size)
        self._token = secrets.token_hex(16)
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1" if self.local else "", 0), backlog=4096)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._partial: dict[socket.socket, bytes] = {}
        self._rank_of: dict[socket.socket, Rank] = {}
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()
        self._listener.close()
        self._selector.close()

    @property
    def report(self) -> str:
        """Value of the variable by which the wrappers find this monitor."""
        places = ["127.0.0.1"] if self.local else [*addresses(), socket.gethostname()]
        return " ".join([self._token, str(self._listener.getsockname()[1]), *places])

    @property
    def complete(self) -> bool:
        """Every rank has ended and said so."""
        return sum(rank.status is not None for rank in self.order) == self.size

    @property
    def lost(self) -> list[Rank]:
        """Ranks whose connection ended before they did."""
        return sorted((rank for rank in self.ranks.values() if rank.lost), key=lambda rank: rank.number)

    def listen(self, timeout_s: float) -> None:
        """Take in what has come, waiting at most `timeout_s` for something."""
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._listener:
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                keep_alive(connection)
                self._partial[connection] = b""
                self._selector.register(connection, selectors.EVENT_READ)
            elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._partial:
                self._receive(key.fileobj)

    def _receive(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(65536)
        except BlockingIOError:
            return
        except OSError:  # reset, or no answer any more
            data = b""
        *lines, rest = (self._partial[connection] + data).split(b"\n")
        self._partial[connection] = rest
        if not all(self._take(connection, line) for line in lines) or len(rest) > 4096 or not data:
            self._drop(connection)

    def _take(self, connection: socket.socket, line: bytes) -> bool:
        """Note one message; False for one that is not from our wrappers."""
        try:
            words = json.loads(line)
            if connection not in self._rank_of:
                if not secrets.compare_digest(str(words["token"]), self._token):
                    return False
                rank = Rank(int(words["rank"]), str(words["host"]))
                self._rank_of[connection] = self.ranks[rank.number] = rank
            else:
                rank = self._rank_of[connection]
                rank.status = int(words["status"])
                self.order.append(rank)
        except (ValueError, KeyError, TypeError):
            return False
        return True

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()
        del self._partial[connection]
        rank = self._rank_of.pop(connection, None)
        if rank is not None and rank.status is None:
            rank.lost = True
            self.order.append(rank)

    def signal(self, number: int) -> None:
        """Have every rank's program get the signal `number`."""
        for connection in list(self._rank_of):
            try:
                connection.send(bytes([number]))
            except OSError:
                pass

    def hang_up(self) -> None:
        """End all connections; the wrappers then end their programs."""
        for connection in list(self._partial):
            self._selector.unregister(connection)
            connection.close()
        self._partial.clear()
        self._rank_of.clear()


def _allow_descriptors(ranks: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ranks + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
