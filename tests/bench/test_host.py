"""Memory limits are read from wherever the system states them, and the least counts."""

from __future__ import annotations

from pathlib import Path

from hpccoll.bench.header import _unbound
from hpccoll.bench.host import available_nbytes, binding

GIB = 2**30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = f"MemTotal: {8 * 2**20} kB\nMemFree: 1 kB\nMemAvailable: {4 * 2**20} kB\n"


def test_nothing_is_known(tmp_path: Path) -> None:
    assert available_nbytes(tmp_path) is None


def test_free_memory(tmp_path: Path) -> None:
    assert available_nbytes(write(tmp_path, {"proc/meminfo": MEMINFO})) == 4 * GIB


def test_control_group_of_the_job(tmp_path: Path) -> None:
    """The limit is on the parent group, and its page cache can be given back."""
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/slurm/job_7/step_0\n",
        "sys/fs/cgroup/slurm/job_7/step_0/memory.max": "max\n",
        "sys/fs/cgroup/slurm/job_7/step_0/memory.current": "5\n",
        "sys/fs/cgroup/slurm/job_7/memory.max": f"{3 * GIB}\n",
        "sys/fs/cgroup/slurm/job_7/memory.current": f"{2 * GIB}\n",
        "sys/fs/cgroup/slurm/job_7/memory.stat": f"anon 1\ninactive_file {GIB}\n",
    }
    assert available_nbytes(write(tmp_path, files)) == 2 * GIB


def test_control_group_of_version_1(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/1\n0::/\n",
        "sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": f"{GIB}\n",
        "sys/fs/cgroup/memory/docker/1/memory.usage_in_bytes": f"{GIB // 4}\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "5\n",
    }
    assert available_nbytes(write(tmp_path, files)) == GIB // 4 * 3


def test_exhausted_group(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/a\n",
        "sys/fs/cgroup/a/memory.max": "100\n",
        "sys/fs/cgroup/a/memory.current": "150\n",
    }
    assert available_nbytes(write(tmp_path, files)) == 0


def test_this_host() -> None:
    found = available_nbytes()
    assert found is not None
    assert found > 0
    assert 1 <= len(binding().allowed) <= binding().cores


def test_unbound() -> None:
    assert _unbound([(0, 1), (0, 1)])
    assert not _unbound([(0,), (1,)])
    assert not _unbound([(0, 1), (2, 3)])
    assert not _unbound([(0, 1)])
    # Two ranks on one core are too many for it, but they stay where they are.
    assert not _unbound([(0,), (0,)])
