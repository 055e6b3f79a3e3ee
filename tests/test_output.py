"""What a program does when its standard output cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import launch_environment

PROGRAMS = {
    "listing": ["-m", "hpccoll", "--help"],
    "allreduce": ["-m", "hpccoll.allreduce", "-e", "64"],
    "demo": ["-m", "hpccoll.demo", "--backend", "numpy"],
    "doctor": ["-m", "hpccoll.doctor", "--timeout", "5"],
    "collect": ["-m", "hpccoll.collect", "run"],
    "collect --json": ["-m", "hpccoll.collect", "run", "--json", "-"],
    "collect, as a console script has it": ["-m", "hpccoll", "collect", "run"],
    "compare": ["-m", "hpccoll.compare", "run", "run"],
    "diagnose": ["-m", "hpccoll.diagnose", "dumps"],
    "a script": ["-m", "hpccoll.run", "-c", "print('found')"],
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the programs find the records of a run and the dump of a process."""
    made = tmp_path_factory.mktemp("output")
    dumping = (
        "import os, signal, time, hpccoll as hc; hc.world().barrier(); "
        "os.kill(os.getpid(), signal.SIGUSR1); time.sleep(1)"
    )
    for command, variables in (
        (["-m", "hpccoll.allreduce", "-e", "64", "--launches", "2", "--log-dir", "run"], {}),
        (["-c", dumping], {"HPCCOLL_DUMP_DIR": "dumps", "HPCCOLL_TIMEOUT_S": "60"}),
    ):
        environment = {**launch_environment(1), **variables}
        subprocess.run(
            [sys.executable, *command], cwd=made, env=environment, check=True, timeout=120, stdout=-3
        )
    assert list((made / "dumps").rglob("rank*.json"))
    return made


def ended(name: str, directory: Path, stdout: int, unbuffered: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *PROGRAMS[name]], cwd=directory, stdout=stdout, stderr=subprocess.PIPE, text=True,
        timeout=120, env={**launch_environment(1), "PYTHONUNBUFFERED": unbuffered}, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_full_disk_is_one_line(name: str, unbuffered: str, directory: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = ended(name, directory, full.fileno(), unbuffered)
    assert done.stderr.splitlines()[-1] == "error: standard output cannot be written: No space left on device"
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.returncode == 74


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_reader_that_is_gone_ends_it_quietly(name: str, unbuffered: str, directory: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = ended(name, directory, writing, unbuffered)
    finally:
        os.close(writing)
    assert "Traceback" not in done.stderr
    assert "roken" not in done.stderr
    assert "cannot be written" not in done.stderr
    # A benchmark has all ranks end the measurement, which has verified what it has done.
    assert done.returncode == (0 if name == "allreduce" else 141)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_a_script_deals_with_is_its_own_affair(unbuffered: str, directory: Path) -> None:
    code = "import os\ntry: print('x', flush=True)\nexcept OSError: os.dup2(os.open('/dev/null', 1), 1)"
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hpccoll.run", "-c", code], stdout=full, stderr=subprocess.PIPE, text=True,
            timeout=60, env={**launch_environment(1), "PYTHONUNBUFFERED": unbuffered}, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_the_errors_of_other_files_stay_what_they_are(directory: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hpccoll.run", "-c", "open('/dev/full', 'w').write('x')\nopen('/no/file')"],
        capture_output=True, text=True, timeout=60, env=launch_environment(1), check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "FileNotFoundError" in done.stderr
    assert "standard output" not in done.stderr
