"""DDP, FSDP, tensor parallel, compile, checkpoints …: the program is jobs/training.py."""

from __future__ import annotations

from pathlib import Path

import pytest

JOB = Path(__file__).parent / "jobs" / "training.py"


@pytest.mark.parametrize("n", [2, 4])
def test_training(n, entry_points, mpirun):
    found = mpirun(n, JOB, timeout_s=240, check=False, env={"PYTHONPATH": f"{JOB.parent}:{entry_points}"})
    assert found.returncode == 0, found.stdout + found.stderr
    assert " passed, 0 failed" in found.stdout
