"""The programs of docs/torch.md run as they are written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "torch.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.DOTALL | re.MULTILINE)


def test_there_are_programs():
    assert len(PROGRAMS) == 4


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_program(number, mpirun, tmp_path, entry_points):
    path = tmp_path / "program.py"
    path.write_text(PROGRAMS[number], encoding="utf-8")
    found = mpirun(2, path, timeout_s=60, env={"PYTHONPATH": entry_points})
    assert "Warning" not in found.stderr
    if "print" in PROGRAMS[number]:
        assert len(found.stdout.splitlines()) == 2
