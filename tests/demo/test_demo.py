"""The worked example: what it prints, what it draws, and that it notices a wrong value."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from mpi_plugin import need

import hpccoll
from hpccoll.demo.figure import draw
from hpccoll.demo.operations import Held, Step

DOCS = Path(hpccoll.__file__).parents[1] / "docs"
DEMO = ("-m", "hpccoll.demo")
SVG = "{http://www.w3.org/2000/svg}"

NUMPY_ON_3 = """\
hpccoll.Comm on NumPy arrays, 3 ranks

comm = hpccoll.world()

comm.broadcast(array, root=0)
  rank 0  before array([123.])  after array([123.])
  rank 1  before array([0.])    after array([123.])
  rank 2  before array([0.])    after array([123.])

comm.allreduce(array, op="sum", out=array)
  rank 0  before array([0.])  after array([3.])
  rank 1  before array([1.])  after array([3.])
  rank 2  before array([2.])  after array([3.])

all values are right on every rank
"""
TORCH_ON_3 = """\
torch.distributed, backend mpi, 3 ranks

dist.init_process_group("mpi")

dist.broadcast(tensor, src=0)
  rank 0  before tensor([123.])  after tensor([123.])
  rank 1  before tensor([0.])    after tensor([123.])
  rank 2  before tensor([0.])    after tensor([123.])

dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
  rank 0  before tensor([0.])  after tensor([3.])
  rank 1  before tensor([1.])  after tensor([3.])
  rank 2  before tensor([2.])  after tensor([3.])

"""


@pytest.fixture
def no_torch(tmp_path: Path) -> dict[str, str]:
    """An environment in which ``import torch`` fails."""
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    home = str(Path(hpccoll.__file__).parents[1])
    return {"PYTHONPATH": f"{tmp_path}:{home}"}


def test_what_it_prints_and_the_picture_in_the_documentation(mpirun, tmp_path: Path) -> None:
    need("torch")
    done = mpirun(3, *DEMO, "--figure", tmp_path / "broadcast.svg", timeout_s=120)
    assert done.stdout == TORCH_ON_3 + NUMPY_ON_3
    assert (tmp_path / "broadcast.svg").read_bytes() == (DOCS / "images" / "broadcast.svg").read_bytes()


def test_gloo(mpirun) -> None:
    need("torch")
    done = mpirun(2, *DEMO, "--backend", "gloo", timeout_s=120)
    assert 'backend gloo, 2 ranks\n\ndist.init_process_group("gloo", init_method="mpi://")\n' in done.stdout
    assert "  rank 1  before tensor([1.])  after tensor([1.])\n" in done.stdout


def test_without_torch(mpirun, no_torch: dict[str, str]) -> None:
    assert mpirun(3, *DEMO, "--backend", "numpy", env=no_torch).stdout == NUMPY_ON_3
    done = mpirun(2, *DEMO, env=no_torch, check=False)
    assert done.returncode == 2
    assert "--backend mpi needs PyTorch (no torch here): pip install torch, or --backend numpy" in done.stderr
    assert "[rank 0, 1]" in done.stderr
    assert not done.stdout


def test_no_gpus(mpirun) -> None:
    torch = need("torch")
    if torch.cuda.device_count() > 1:
        pytest.skip("there are GPUs")
    done = mpirun(2, *DEMO, "--backend", "nccl", check=False, timeout_s=120)
    assert done.returncode == 2
    assert "nccl" in done.stderr
    assert "--backend mpi" in done.stderr
    assert not done.stdout


FAULTY = """
import {module} as place
from hpccoll.aborting import run_program
from hpccoll.comm import world
from hpccoll.demo.__main__ import main

right = place.{name}

def faulty(*arguments, **keywords):
    right(*arguments, **keywords)
    if world().rank == 1:
        arguments[-1][0] = 55

place.{name} = faulty
run_program(main)
"""


@pytest.mark.parametrize(
    ("module", "name", "call", "expected"),
    [
        ("torch.distributed", "all_reduce", "dist.all_reduce(tensor, op=dist.ReduceOp.SUM)", 1.0),
        ("hpccoll.comm.communicator", "Comm.broadcast", "comm.broadcast(array, root=0)", 123.0),
    ],
)
def test_a_wrong_value_is_noticed(
    mpirun, tmp_path: Path, module: str, name: str, call: str, expected: float
) -> None:
    need("torch")
    (tmp_path / "faulty.py").write_text(FAULTY.format(module=module, name=name))
    backend = "mpi" if module.startswith("torch") else "numpy"
    options = ("--backend", backend, "--figure", tmp_path / "f.svg")
    done = mpirun(2, tmp_path / "faulty.py", *options, check=False, timeout_s=120)
    assert done.returncode == 1
    assert f"error: {call}: rank 1 holds 55.0, and should hold {expected}\n" in done.stderr
    assert "all values are right" not in done.stdout
    assert not (tmp_path / "f.svg").exists()


def test_options_that_cannot_be_met(mpirun, tmp_path: Path) -> None:
    target = tmp_path / "absent" / "f.svg"
    done = mpirun(17, *DEMO, "--backend", "numpy", "--figure", target, check=False, timeout_s=120)
    assert done.returncode == 2
    assert "--figure is for up to 16 ranks, and there are 17 [rank 0]" in done.stderr
    assert f"--figure: there is no directory {target.parent} [rank 0]" in done.stderr
    assert not done.stdout
    done = mpirun(2, *DEMO, "--figure", "f.png", check=False)
    assert done.returncode == 2
    assert "'f.png' does not end with .svg" in done.stderr


@pytest.mark.parametrize("ranks", [1, 4, 16])
def test_the_figure_shows_what_was_seen(ranks: int) -> None:
    held = [Held(rank + 0.5, "") for rank in range(ranks)]
    steps = [
        Step(name, f"{name}(<x>)", held, [Held(9.25, "")] * ranks, 9.25)
        for name in ("broadcast", "allreduce")
    ]
    text = draw(steps, "a caption")
    assert text == draw(steps, "a caption")
    root = ElementTree.fromstring(text)
    values = [node.text for node in root.iter(f"{SVG}text") if node.get("class") == "value"]
    assert sorted(values) == sorted(2 * [str(one.value) for one in held] + 2 * ranks * ["9.25"] + ["SUM"])
    assert sum(node.get("marker-end") is not None for node in root.iter(f"{SVG}line")) == 2 * ranks
    assert "broadcast(<x>)" in {node.text for node in root.iter(f"{SVG}text")}
    assert root.findtext(f"{SVG}title") and "9.25" in (root.findtext(f"{SVG}desc") or "")
    # Nothing is drawn outside of the picture.
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    for group in root.iter(f"{SVG}g"):
        x, y = map(float, group.get("transform", "")[len("translate(") : -1].split(","))
        for node in group.iter(f"{SVG}rect"):
            left, top, wide, high = (float(node.get(key, 0)) for key in ("x", "y", "width", "height"))
            assert x + left >= 0 and x + left + wide <= width
            assert y + top >= 0 and y + top + high <= height


def test_too_many_ranks_for_a_figure() -> None:
    held = [Held(0.0, "")] * 17
    with pytest.raises(ValueError, match="up to 16 ranks, not 17"):
        draw([Step("broadcast", "call", held, held, 0.0)], "")
