"""Addresses, interfaces and routes of this host, as the launcher and the doctor need them."""

import array
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows, where the login node's tools may still be imported
    fcntl = None  # type: ignore[assignment]

__all__ = ["Interface", "addresses", "interface_to", "interfaces", "is_loopback", "resolve"]

_SIOCGIFADDR = 0x8915


@dataclass(frozen=True)
class Interface:
    """A network interface with an IPv4 address.

    Attributes
    ----------
    name, address : str
    speed_mbit : int or None
        As the driver states it; None where it does not.
    """

    name: str
    address: str
    speed_mbit: int | None


def interfaces() -> list[Interface]:
    """Interfaces that have an IPv4 address, in the system's order, loopback included."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = array.array("B", struct.pack("256s", name.encode()[:15]))
            try:
                fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request, True)
            except (OSError, AttributeError):
                continue
            found.append(Interface(name, socket.inet_ntoa(request[20:24].tobytes()), _speed_mbit(name)))
    return found


def _speed_mbit(name: str) -> int | None:
    try:
        speed = int(Path("/sys/class/net", name, "speed").read_text())
    except (OSError, ValueError):  # OSError: a link that is down, or has no such notion
        return None
    return speed if speed > 0 else None


def addresses() -> list[str]:
    """IPv4 addresses of this host by which others can reach it; 127.0.0.1 where there is none."""
    return [each.address for each in interfaces() if not is_loopback(each.address)] or ["127.0.0.1"]


def resolve(host: str) -> list[str]:
    """IPv4 and IPv6 addresses of `host`; empty if it is unknown."""
    try:
        return list(dict.fromkeys(str(info[4][0]) for info in socket.getaddrinfo(host, None)))
    except (OSError, UnicodeError):
        return []


def is_loopback(address: str) -> bool:
    """Whether `address` leads back to the host that uses it."""
    return address.startswith("127.") or address == "::1"


def interface_to(host: str) -> Interface | None:
    """The interface by which this host sends to `host`; None if there is no route. Nothing is sent."""
    for address in resolve(host):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address, 9))
                own = probe.getsockname()[0]
        except OSError:
            continue
        for each in interfaces():
            if each.address == own:
                return each
    return None
