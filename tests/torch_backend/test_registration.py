"""What ``import torch`` gets, costs and survives."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
from mpi_plugin import need


def python(code, pythonpath, *options, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_COMM", "PMI", "SLURM"))}
    found = subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(code)],
        env={**clean, "PYTHONPATH": pythonpath, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.returncode == 0, found.stderr
    return found


def test_import_torch_makes_mpi_available_and_starts_none(entry_points):
    code = """
        import sys
        import torch
        import torch.distributed as dist
        assert dist.is_mpi_available()
        assert dist.is_backend_available("mpi")
        assert "mpi4py" not in sys.modules and "hpccoll.torch_backend.process_group" not in sys.modules
    """
    assert python(code, entry_points, "-W", "error::UserWarning").stderr == ""


def test_autoload_can_be_switched_off(entry_points):
    code = """
        import torch.distributed as dist
        assert not dist.is_mpi_available()
        import hpccoll.torch_backend
        assert dist.is_mpi_available()
    """
    python(code, entry_points, TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def test_cost_of_loading(entry_points):
    """At most 20 ms of `import torch`; the best of several, as machines are busy."""
    code = """
        import time
        import torch
        start = time.perf_counter()
        from hpccoll.torch_backend.autoload import autoload
        autoload()
        print(time.perf_counter() - start)
    """
    times = [
        float(python(code, entry_points, TORCH_DEVICE_BACKEND_AUTOLOAD="0").stdout.split()[-1])
        for _ in range(3)
    ]
    assert min(times) < 0.020, times


@pytest.mark.parametrize(
    "broken",
    [
        "sys.modules['hpccoll.torch_backend.torch_internals'] = None",  # whatever fails on import
        "import warnings; warnings.simplefilter('error')",
    ],
)
def test_import_torch_survives(entry_points, broken):
    found = python(f"import sys; {broken}\nimport torch\nprint(torch.ones(1))", entry_points)
    assert "tensor([1.])" in found.stdout


def test_import_torch_survives_other_internals(entry_points):
    """A torch that has none of the names: the own name still works, and importing says nothing."""
    code = """
        import torch, torch.distributed as dist
        from torch.distributed import distributed_c10d as c10d
        for name in ("_new_group_with_tag", "split_group", "monitored_barrier", "_MPI_AVAILABLE"):
            delattr(c10d, name)
        import hpccoll.torch_backend
        dist.init_process_group("hpccoll")
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
    """
    python(code, entry_points, TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def test_a_native_backend_keeps_the_name(entry_points):
    code = """
        import torch
        class Native:
            pass
        torch._C._distributed_c10d.ProcessGroupMPI = Native
        from torch.distributed import distributed_c10d as c10d
        c10d.ProcessGroupMPI = Native
        import hpccoll.torch_backend
        from hpccoll.torch_backend import torch_internals
        assert not torch_internals.serves_mpi()
        assert c10d.ProcessGroupMPI is Native
        hpccoll.torch_backend.use()
        assert torch_internals.serves_mpi()
        torch.distributed.init_process_group("mpi")
        assert type(torch.distributed.group.WORLD).__name__ == "MpiProcessGroup"
        torch.distributed.destroy_process_group()
    """
    python(code, entry_points, TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def test_other_backends_are_left_alone(entry_points):
    code = """
        import tempfile, torch, torch.distributed as dist
        dist.init_process_group("gloo", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1)
        assert dist.get_backend() == "gloo" and type(dist.group.WORLD) is dist.ProcessGroup
        dist.all_reduce(torch.ones(1))
        try:
            dist.split_group(split_ranks=[[0]])
        except RuntimeError as error:
            assert "No device associated" in str(error)
        dist.destroy_process_group()
    """
    python(code, entry_points)


def test_addresses_are_never_loopback():
    need("torch")
    from hpccoll.torch_backend import rendezvous

    assert not any(address.startswith("127.") or address == "::1" for address in rendezvous.addresses())
    assert rendezvous._is_routable("10.0.0.1")
    for address in ("127.0.1.1", "::1", "0.0.0.0", "169.254.1.1", "fe80::1%eth0", "nonsense"):
        assert not rendezvous._is_routable(address)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4096"}, "1"),  # more ranks than this node has cores
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2048"}, None),  # several nodes
        (
            {"OMPI_COMM_WORLD_LOCAL_SIZE": "4096", "OMPI_MCA_mpi_yield_when_idle": "0"},
            "0",
        ),  # the user's word holds
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4096", "HPCCOLL_TORCH_WAIT": "sleep"}, None),
    ],
)
def test_open_mpi_yields_on_a_crowded_node(environment, expected, monkeypatch):
    need("torch")
    from hpccoll.torch_backend import registration

    found = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("OMPI", "PMI", "SLURM", "HPCCOLL"))},
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "4096",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        **environment,
    }
    monkeypatch.setattr(os, "environ", found)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    registration._yield_on_a_crowded_node()
    assert found.get("OMPI_MCA_mpi_yield_when_idle") == expected


def test_a_torch_that_is_too_old_is_told(entry_points):
    code = """
        import torch.distributed as dist
        class Options:
            pass
        dist.AllreduceOptions = Options
        try:
            dist.init_process_group("mpi")
        except RuntimeError as error:
            assert "too old for the mpi backend" in str(error)
        else:
            raise AssertionError
    """
    python(code, entry_points)
