"""hpccoll.settings: what each variable may be, and what is said of a wrong one or of one that is misspelt."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Mpirun

from hpccoll import settings
from hpccoll.errors import ArgumentError

PACKAGE = Path(settings.__file__).parent
NAMES = [setting.name for setting in settings.ALL]


@pytest.mark.parametrize(
    ("setting", "text", "value"),
    [
        (settings.TIMEOUT_S, " 2.5 ", 2.5),
        (settings.CHECK, "1", True),
        (settings.CHECK, "NaN", "nan"),
        (settings.CHECK, "off", False),
        (settings.RECORDER, "0", 0),
        (settings.DUMP_DIR, "a b", "a b"),
        (settings.EXIT_TIMEOUT_S, "", 30.0),
        (settings.CUDA_AWARE, "yes", True),
        (settings.TORCH_WAIT, "sleep", "sleep"),
        (settings.TORCH_ABORT, "False", False),
        (settings.ALLOW_SINGLETONS, "", False),
    ],
)
def test_values(setting: settings.Setting, text: str, value: object) -> None:
    assert setting.get({setting.name: text}) == value
    assert setting.get({}) == setting.default


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        *((settings.TIMEOUT_S, text) for text in ("0", "-1", "inf", "nan", "5m")),
        *((settings.RECORDER, text) for text in ("-1", "1e3", "²", "10000001")),
        *((each, "perhaps") for each in settings.ALL if each is not settings.DUMP_DIR),
    ],
)
def test_a_wrong_value_is_named_with_what_would_be_right(setting: settings.Setting, text: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{setting.name} must be .*; got '{text}'$"):
        settings.check({setting.name: text})
    assert setting.get_or_default({setting.name: text}) == setting.default


def test_a_limit_needs_the_recorder() -> None:
    with pytest.raises(ArgumentError, match="HPCCOLL_TIMEOUT_S needs the flight recorder"):
        settings.check({"HPCCOLL_TIMEOUT_S": "3", "HPCCOLL_RECORDER": "0"})


def test_a_misspelt_variable_is_noticed_and_a_sites_own_is_not() -> None:
    wrong = ["HPCCOLL_TIMEOUT", "hpccoll_timeout_s", "HPCCOLL_DUMPDIR", "HPCCOLL_RECORD"]
    found = settings.doubtful(dict.fromkeys([*wrong, *NAMES, "HPCCOLL_HOME", "HPCCOLL_TEST_MPICH"], "1"))
    assert len(found) == len(wrong)
    assert "HPCCOLL_TIMEOUT has no effect: hpccoll reads HPCCOLL_TIMEOUT_S" in found


def test_no_module_reads_a_variable_of_its_own() -> None:
    for path in PACKAGE.rglob("*.py"):
        named = set(re.findall(r"""["'](HPCCOLL_[A-Z_]+)["']""", path.read_text(encoding="utf-8")))
        # From one part of hpccoll to another:
        named -= {"HPCCOLL_LAUNCH_", "HPCCOLL_LAUNCH_REPORT", "HPCCOLL_MAIN"}
        assert not named or path.name == "settings.py", (path, named)


def test_every_variable_is_in_the_help() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hpccoll", "--help"], capture_output=True, text=True, timeout=60
    )
    assert [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  HPCCOLL_")] == NAMES


@pytest.mark.parametrize("name", ["HPCCOLL_TIMEOUT_S", "HPCCOLL_TORCH_WAIT"])
def test_a_program_says_it_once_and_without_a_traceback(mpirun: Mpirun, name: str) -> None:
    done = mpirun(2, "-m", "hpccoll.allreduce", "-e", "8", env={name: "soon"}, check=False)
    assert done.returncode != 0
    assert done.stderr.count(f"error: {name} must be") == 1
    assert "Traceback" not in done.stderr and not done.stdout.strip("\0\n")


def test_a_script_is_warned_of_a_misspelt_variable_and_fails_at_a_wrong_one(mpirun: Mpirun) -> None:
    script = "import hpccoll; hpccoll.world(); print('begun', flush=True)"
    done = mpirun(2, "-c", script, env={"HPCCOLL_TIMEOUT": "3"})
    assert done.stdout.count("begun") == 2
    assert done.stderr.count("HPCCOLL_TIMEOUT has no effect: hpccoll reads HPCCOLL_TIMEOUT_S") == 1
    done = mpirun(2, "-c", script, env={"HPCCOLL_CUDA_AWARE": "maybe"}, check=False)
    assert done.returncode != 0 and "begun" not in done.stdout
    assert "ArgumentError: HPCCOLL_CUDA_AWARE must be 1 (on) or 0 (off); got 'maybe'" in done.stderr


def test_a_rank_of_its_own_mind_is_named(mpirun: Mpirun) -> None:
    only_one = (
        "import os, sys\n"
        "if os.environ.get('OMPI_COMM_WORLD_RANK') == '1': os.environ['HPCCOLL_CHECK'] = 'x'\n"
        "from hpccoll.allreduce import main\n"
        "from hpccoll.aborting import run_program\n"
        "run_program(main, ['-e', '8'])\n"
    )
    done = mpirun(2, "-c", only_one, check=False, timeout_s=60)
    assert done.returncode != 0
    assert "error: rank 1: HPCCOLL_CHECK must be" in done.stderr


def test_reading_them_imports_nothing_heavy() -> None:
    code = "import sys, hpccoll.settings; assert not {'numpy', 'mpi4py', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=os.environ)
