"""hpccoll.network: addresses, interfaces and routes of this host."""

import socket

import pytest

from hpccoll import network
from hpccoll.network import Interface


def test_interfaces() -> None:
    found = network.interfaces()
    assert "127.0.0.1" in [each.address for each in found]
    for each in found:
        socket.inet_aton(each.address)
        assert each.speed_mbit is None or each.speed_mbit > 0


def test_addresses_are_those_that_others_can_use(monkeypatch: pytest.MonkeyPatch) -> None:
    loopback, eth = Interface("lo", "127.0.0.1", None), Interface("eth0", "10.0.0.3", 1000)
    monkeypatch.setattr(network, "interfaces", lambda: [loopback, eth])
    assert network.addresses() == ["10.0.0.3"]
    monkeypatch.setattr(network, "interfaces", lambda: [loopback])
    assert network.addresses() == ["127.0.0.1"]


def test_resolve() -> None:
    assert set(network.resolve("localhost")) <= {"127.0.0.1", "::1"}
    assert network.resolve("127.0.0.1") == ["127.0.0.1"]
    assert network.resolve("no-such-host.invalid") == []
    assert network.resolve("x" * 300) == []


def test_is_loopback() -> None:
    assert [network.is_loopback(address) for address in ("127.0.1.1", "::1", "10.0.0.1", "fe80::1")] == [
        True,
        True,
        False,
        False,
    ]


def test_interface_to() -> None:
    own = network.interface_to("127.0.0.1")
    assert own is not None
    assert own.address == "127.0.0.1"
    assert network.interface_to("no-such-host.invalid") is None
