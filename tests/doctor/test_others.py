"""hpccoll.doctor.others: names, routes and ssh to other hosts."""

import os
from pathlib import Path

import pytest

from hpccoll.doctor import others
from hpccoll.doctor.findings import ERROR, OK
from hpccoll.network import Interface


def test_host_names_and_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"a": ["10.0.0.1"], "b": ["127.0.1.1"]}
    monkeypatch.setattr(others, "resolve", lambda host: known.get(host, []))
    assert others.check_hosts_resolve(["a"]).level == OK
    finding = others.check_hosts_resolve(["a", "b", "c"])
    assert finding.level == ERROR
    assert "c unknown and b taken for this host" in finding.result
    eth = Interface("eth0", "10.0.0.9", None)
    monkeypatch.setattr(others, "interface_to", lambda host: eth if host == "a" else None)
    assert others.check_host_reachable(["a"]).result == "eth0 to a"
    assert others.check_host_reachable(["a", "c"]).level == ERROR


def test_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert others.check_ssh(["a"]).level == ERROR  # there is none
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.defpath}")
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(
        '#!/bin/sh\ncase "$*" in *" b true") echo "Permission denied (publickey)." >&2; exit 255;; esac\n'
    )
    ssh.chmod(0o755)
    assert others.check_ssh(["a"]).level == OK
    finding = others.check_ssh(["a", "b"])
    assert (finding.level, "cannot enter b" in finding.result) == (ERROR, True)
    assert "Permission denied" in finding.evidence
