"""hpccoll.doctor.local: each check of a host, in order and out of order."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpccoll.doctor import local
from hpccoll.doctor.findings import ERROR, NOTE, OK, WARNING
from hpccoll.doctor.local import Place
from hpccoll.network import Interface
from hpccoll.probe import Mpi

Script = Callable[[str, str], Path]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """``script(name, body)`` makes a command in a directory that is to be all of PATH."""

    def make(name: str, body: str) -> Path:
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    return make


def mpi(flavour: str = "Open MPI", major: int = 5, mpirun: object = "") -> Mpi:
    return Mpi(flavour, major, f"{flavour} v{major}", "/x/lib/libmpi.so", str(mpirun))


def place(tmp_path: Path, **more: object) -> Place:
    return Place(**{"environ": {"PATH": str(tmp_path / "bin")}, "mpi": mpi(), **more})  # type: ignore[arg-type]


def test_mpirun(tmp_path: Path, script: Script) -> None:
    assert local.check_mpirun(place(tmp_path, mpi=None)).level == NOTE
    assert local.check_mpirun(place(tmp_path)).level == NOTE
    assert local.check_mpirun(place(tmp_path, mpi=mpi(mpirun="/x/bin/mpirun"))).level == OK
    mine = script("mpirun", "echo 'mpirun (Open MPI) 5.0.11'")
    assert local.check_mpirun(place(tmp_path, mpi=mpi(mpirun=mine))).level == OK
    mixed = local.check_mpirun(place(tmp_path, mpi=mpi("MPICH", mpirun=mine)))
    assert (mixed.level, "two MPIs lie in one environment" in mixed.result) == (ERROR, True)
    other = local.check_mpirun(place(tmp_path, mpi=mpi(mpirun="/x/bin/mpirun")))
    assert (other.level, "another installation" in other.result) == (WARNING, True)
    script("mpirun", "echo 'HYDRA build details:'")
    wrong = local.check_mpirun(place(tmp_path, mpi=mpi(mpirun="/x/bin/mpirun")))
    assert (wrong.level, wrong.fix) == (WARNING, "start jobs with /x/bin/mpirun")
    assert "MPICH against Open MPI" in wrong.result
    assert local.check_mpirun(place(tmp_path)).level == ERROR  # and there is no other
    assert local.check_mpirun(place(tmp_path, started=True)).level == WARNING


def test_slurm(tmp_path: Path, script: Script) -> None:
    assert local.check_slurm(place(tmp_path)).level == OK
    script("srun", "echo 'no configuration' >&2; exit 1")
    assert local.check_slurm(place(tmp_path)).level == NOTE
    script("srun", r"printf 'MPI plugin types are...\n\tpmi2\n\tnone\n'")
    finding = local.check_slurm(place(tmp_path))
    assert (finding.level, "pmi2" in finding.evidence) == (WARNING, True)
    assert local.check_slurm(place(tmp_path, mpi=mpi("MPICH", 5))).level == OK
    script(
        "srun",
        r"printf 'MPI plugin types are...\n\tpmix\nspecific pmix plugin versions available: pmix_v4\n'",
    )
    assert "--mpi=pmix" in local.check_slurm(place(tmp_path)).result


def test_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_free(mib: int) -> str:
        usage = SimpleNamespace(free=mib << 20, total=64 << 20)
        monkeypatch.setattr(local.shutil, "disk_usage", lambda path: usage)
        return local.check_shm(place(tmp_path, local_ranks=4)).level

    assert [with_free(mib) for mib in (4096, 64, 1)] == [OK, WARNING, ERROR]
    monkeypatch.undo()
    assert local.check_shm(place(tmp_path, shm=tmp_path / "missing")).level == WARNING


def test_tmpdir(tmp_path: Path) -> None:
    def at(path: object) -> tuple[str, str]:
        finding = local.check_tmpdir(place(tmp_path, environ={"TMPDIR": str(path)}))
        return finding.level, finding.fix

    assert at("/tmp") == (OK, "")
    assert at("/no/such/directory")[0] == ERROR
    long = tmp_path / ("long" * 20)
    long.mkdir()
    assert at(long) == (ERROR, "export TMPDIR=/tmp")


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local.resource, "getrlimit", lambda which: (256, 256))
    finding = local.check_limits(place(tmp_path))
    assert (finding.level, "ulimit -n 1024" in finding.fix) == (WARNING, True)
    monkeypatch.setattr(local.resource, "getrlimit", lambda which: (1 << 20, 1 << 20))
    assert local.check_limits(place(tmp_path)).level == OK


@pytest.mark.parametrize(
    ("found", "hosts", "level"),
    [
        (["10.0.0.1"], 2, OK),
        (["127.0.1.1", "10.0.0.1"], 2, OK),
        (["127.0.1.1"], 2, ERROR),
        (["::1"], 2, ERROR),
        (["127.0.1.1"], 1, NOTE),
        ([], 2, ERROR),
        ([], 1, NOTE),
    ],
)
def test_host_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: list[str], hosts: int, level: str
) -> None:
    monkeypatch.setattr(local, "resolve", lambda name: found)
    assert local.check_hostname(place(tmp_path, hosts=hosts)).level == level


def test_interfaces_and_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loopback = Interface("lo", "127.0.0.1", None)
    monkeypatch.setattr(local, "interfaces", lambda: [loopback])
    assert local.check_interfaces(place(tmp_path)).level == NOTE
    assert local.check_interfaces(place(tmp_path, hosts=2)).level == ERROR
    assert local.check_ports(place(tmp_path)).level == OK
    monkeypatch.setattr(local, "interfaces", lambda: [loopback, Interface("ib0", "192.0.2.77", 100_000)])
    assert "ib0 192.0.2.77 100 Gbit/s" in local.check_interfaces(place(tmp_path, hosts=2)).result
    assert local.check_ports(place(tmp_path)).level == WARNING  # the address is not this host's


def test_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local.os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)

    def with_threads(number: str, ranks: int = 2) -> str:
        return local.check_threads(
            place(tmp_path, environ={"OMP_NUM_THREADS": number}, local_ranks=ranks)
        ).level

    assert [with_threads(number) for number in ("1", "2", "3", "")] == [OK, OK, WARNING, WARNING]
    assert with_threads("", ranks=1) == NOTE


def test_versions_import_nothing() -> None:
    found = local.versions("some MPI")
    assert found["MPI"] == "some MPI"
    assert set(found) == {"Python", "hpccoll", "MPI", "mpi4py", "numpy", "torch"}
    assert found["numpy"] != "none"


def test_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local.importlib.util, "find_spec", lambda name: name)  # whether or not torch is here

    def finding(cuda_aware: bool | None, **environ: str) -> local.Finding:
        return local.check_cuda(place(tmp_path, dev=tmp_path, environ=environ, cuda_aware=cuda_aware))

    assert (finding(None).level, finding(None).result) == (OK, "no NVIDIA device here")
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    assert (finding(None).level, "2 devices" in finding(None).result) == (NOTE, True)
    assert "not known" in finding(None).result
    assert "without CUDA support" in finding(False).result
    assert "says that it is CUDA-aware" in finding(True, CUDA_VISIBLE_DEVICES="0").result
    assert finding(True, HPCCOLL_CUDA_AWARE="1").level == OK
    refused = finding(False, HPCCOLL_CUDA_AWARE="1")
    assert (refused.level, refused.fix.startswith("unset HPCCOLL_CUDA_AWARE")) == (ERROR, True)
