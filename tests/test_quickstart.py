"""jobs/quickstart.sh: two commands on a machine that has python3, pip and bash."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hpccoll
from hpccoll.environment import usable_cores

ROOT = Path(hpccoll.__file__).parents[1]
FILES = ("setup.cfg", "pyproject.toml", "constraints.txt", "README.md", "LICENSE")

pytestmark = pytest.mark.skipif(not (ROOT / "jobs").is_dir(), reason="not in a source tree")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy in a path with spaces, without an environment."""
    return copy_to(tmp_path / "my repos" / "hpc coll")


def copy_to(tree: Path) -> Path:
    tree.mkdir(parents=True)
    for name in FILES:
        shutil.copy(ROOT / name, tree)
    for name in ("hpccoll", "jobs"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tree


def quickstart(
    repository: Path, *arguments: str, cwd: Path | None = None, **env: str
) -> "subprocess.CompletedProcess[str]":
    # As on a fresh machine: nothing of the environment that runs the tests.
    names = ("OMPI_", "PRTE_", "PMIX_", "HPCCOLL_", "VIRTUAL_ENV", "PYTHON", "RANKS", "OMP_NUM", "PYTEST")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    path = os.pathsep.join(
        part for part in clean["PATH"].split(os.pathsep) if not part.startswith(os.path.realpath(sys.prefix))
    )
    return subprocess.run(
        ["bash", str(repository / "jobs" / "quickstart.sh"), *arguments],
        env={**clean, "PATH": path, **env},
        cwd=cwd or repository.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
    )


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)
    return path


def test_from_nothing_to_a_measurement(repository: Path, tmp_path: Path) -> None:
    """The whole way once: what an interrupted run left, installation, run, run again, another status."""
    half_made = repository / ".venv"
    (half_made / "bin").mkdir(parents=True)
    (half_made / "pyvenv.cfg").write_text("home = /nowhere\n")
    (half_made / "bin" / "python").symlink_to("/nowhere/python3")
    # What modules and conda leave behind.
    elsewhere = tmp_path / "other mpi"
    (elsewhere / "lib").mkdir(parents=True)
    for name in ("libmpi.so.40", "libopen-pal.so.80"):
        (elsewhere / "lib" / name).write_text("not a library")
    other_mpirun = executable(elsewhere / "bin" / "mpirun", "echo the wrong mpirun; exit 99")
    shutil.copy(other_mpirun, other_mpirun.with_name("prterun"))
    polluted = {
        "PATH": f"{elsewhere / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(elsewhere / "lib"),
        "PYTHONPATH": str(elsewhere),
        "MPI4PY_MPIABI": "mpich",
    }
    options = ("-b", "8", "-e", "1K", "-n", "3", "-w", "1", "--json", "here.jsonl")

    first = quickstart(repository, *options, cwd=tmp_path, **polluted)
    assert first.returncode == 0, first.stdout[-3000:] + first.stderr[-3000:]
    assert "making" in first.stderr
    assert "busbw" in first.stdout
    assert "ignoring PYTHONPATH" in first.stderr
    assert (repository / ".venv" / "bin" / "mpirun").is_file()
    assert (tmp_path / "here.jsonl").is_file(), "the program does not run in the caller's directory"

    again = quickstart(repository, *options, cwd=tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "making" not in again.stderr
    assert "pip" not in again.stdout + again.stderr
    shared = f"4 ranks share {usable_cores()} cores"
    assert (shared in again.stderr) == (usable_cores() < 4)

    alone = quickstart(repository, *options, RANKS="1")
    assert alone.returncode == 0, alone.stdout + alone.stderr
    assert "share" not in alone.stderr

    bad = quickstart(repository, "--no-such-option", RANKS="2")
    assert bad.returncode == 2
    assert "--no-such-option" in bad.stderr


def test_python_too_old(repository: Path, tmp_path: Path) -> None:
    old = executable(
        tmp_path / "bin" / "python3", 'if [[ $1 == --version ]]; then echo "Python 3.9.2"; fi; exit 1'
    )
    # Nothing else on the PATH but what the script itself calls.
    for name in ("bash", "dirname", "cat", "env"):
        (old.parent / name).symlink_to(shutil.which(name) or pytest.fail(f"no {name}"))
    done = quickstart(repository, PATH=str(old.parent))
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "quickstart: Python 3.10 or later is needed, but there is Python 3.9.2; "
        "name one with PYTHON=/path/to/python3"
    ]
    named = quickstart(repository, PYTHON=str(old))
    assert named.returncode == 1
    assert "is older than Python 3.10" in named.stderr
    assert not (repository / ".venv").exists()


def test_no_venv_module(repository: Path, tmp_path: Path) -> None:
    text = f'case "$*" in *venv*) exit 1 ;; esac; exec {sys.executable} "$@"'
    python = executable(tmp_path / "bin" / "python3", text)
    for name in ("bash", "dirname", "cat", "env"):
        (python.parent / name).symlink_to(shutil.which(name) or pytest.fail(f"no {name}"))
    done = quickstart(repository, PATH=str(python.parent))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "apt install python3-venv" in done.stderr


def test_nothing_can_put_pip_in(repository: Path, tmp_path: Path) -> None:
    text = f'case "$*" in *ensurepip*|*"-m pip"*) exit 1 ;; esac; exec {sys.executable} "$@"'
    done = quickstart(repository, PYTHON=str(executable(tmp_path / "bin" / "python3", text)))
    assert done.returncode == 1
    assert "apt install python3-venv" in done.stderr.splitlines()[-1]


def test_an_environment_of_somebody_else_is_left_alone(repository: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(repository / ".venv")], check=True)
    before = sorted((repository / ".venv").rglob("*"))
    done = quickstart(repository)
    assert done.returncode == 1
    assert "was not made by this script" in done.stderr
    assert sorted((repository / ".venv").rglob("*")) == before


def test_pip_fails(repository: Path, tmp_path: Path) -> None:
    """The message is the last line, and the next run starts over."""
    empty = tmp_path / "index"
    empty.mkdir()
    done = quickstart(
        repository,
        PYTHON=sys.executable,
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS=str(empty),
        PIP_CONFIG_FILE=os.devnull,
    )
    assert done.returncode == 1
    assert "pip could not install hpccoll" in done.stderr.splitlines()[-1]
    assert not (repository / ".venv" / ".hpccoll-stamp").exists()


@pytest.mark.parametrize("ranks", ["0", "x", "-1", "4.5"])
def test_ranks_must_be_a_number(repository: Path, ranks: str) -> None:
    done = quickstart(repository, RANKS=ranks)
    assert done.returncode == 1
    assert "RANKS" in done.stderr
