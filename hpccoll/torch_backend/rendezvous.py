"""Meeting over MPI instead of an address and a port: the ``mpi://`` init method, and the store behind it."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

import hpccoll

_CONNECT_S = 3.0
_LOOPBACK = "127.0.0.1"  # not "localhost": asking a name server for its IPv6 address can take seconds


def rendezvous(url: str, **kwargs: Any) -> Iterator[tuple[Any, int, int]]:
    """torch's handler for ``init_method="mpi://"``: gives a store, and this process's rank and size."""
    from hpccoll.torch_backend import torch_internals

    comm = hpccoll.world()
    _check_given(url, comm)
    yield make_store(comm, kwargs.get("timeout") or torch_internals.default_timeout()), comm.rank, comm.size
    raise RuntimeError(
        "mpi:// cannot meet a second time: the ranks of an MPI job are there from start to end"
    )


def _check_given(url: str, comm: hpccoll.Comm) -> None:
    given = dict(part.split("=", 1) for part in url.partition("?")[2].split("&") if "=" in part)
    for name, actual in (("rank", comm.rank), ("world_size", comm.size)):
        if name in given and int(given[name]) not in (-1, actual):
            raise ValueError(
                f"init_process_group: {name}={given[name]} was given, but MPI says {actual}; leave it out with mpi://"
            )


def make_store(comm: hpccoll.Comm, timeout: timedelta) -> Any:
    """Make a TCPStore that all ranks of `comm` share. Every rank has to call it.

    Rank 0 binds a free port first; the others learn it, and an address that reaches rank 0, over MPI.
    """
    server = None
    failure = ""
    if comm.rank == 0:
        try:
            server = dist.TCPStore(_LOOPBACK, 0, is_master=True, wait_for_workers=False, timeout=timeout)
        except Exception as error:
            failure = f"rank 0 on {socket.gethostname()} could not open a store: {error}"
    port, failure = comm.broadcast_object((server.port if server is not None else None, failure))
    if failure:
        raise RuntimeError(failure)
    address = _reachable_address(comm, port)
    if server is not None:
        return server
    return dist.TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timeout)


def _reachable_address(comm: hpccoll.Comm, port: int) -> str:
    """The first of rank 0's addresses that every node can connect to."""
    with comm.node() as node:
        is_leader, one_node = node.rank == 0, node.size == comm.size
    if comm.allreduce(int(one_node), op="min"):
        return _LOOPBACK
    candidates = comm.broadcast_object(addresses() if comm.rank == 0 else None)
    for address in candidates:
        reached = not is_leader or _connects(address, port)
        if comm.allreduce(int(reached), op="min"):
            return str(address)
    raise RuntimeError(
        f"none of the addresses of rank 0's host ({', '.join(candidates) or 'none but loopback'}) can be reached on "
        f"port {port} from every node; a firewall between the nodes?"
    )


def _connects(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=_CONNECT_S):
            return True
    except OSError:
        return False


def addresses() -> list[str]:
    """This host's addresses that other hosts may reach, the likeliest first; never loopback."""
    found: list[str] = []
    host = socket.gethostname()
    for name in (host, host.partition(".")[0]):
        try:
            found += [str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
        except OSError:
            pass
    found += _of_interfaces()
    usable = dict.fromkeys(address for address in found if _is_routable(address))
    return sorted(usable, key=lambda address: ":" in address)  # a stable sort: IPv4 first


def _is_routable(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return not (parsed.is_loopback or parsed.is_unspecified or parsed.is_link_local or parsed.is_multicast)


def _of_interfaces() -> list[str]:
    """The addresses of the network interfaces; a host's name often stands for 127.0.1.1 only."""
    found = []
    for family, target in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:  # connecting a datagram socket sends nothing; it only chooses the interface towards a far address
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))
                found.append(str(probe.getsockname()[0]))
        except OSError:
            pass
    return found + _of_linux_interfaces()


def _of_linux_interfaces() -> list[str]:
    try:
        import fcntl
    except ImportError:
        return []
    get_address = 0x8915  # SIOCGIFADDR
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(any_socket.fileno(), get_address, name.encode()[:15].ljust(40, b"\0"))
                found.append(socket.inet_ntoa(answer[20:24]))
            except OSError:
                pass
    return found
