"""The programs in the documentation, run as they stand there, print what it says they print."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from mpi_plugin import need

HOME = Path(__file__).parents[1]
DOCUMENTS = [HOME / "README.md", *sorted((HOME / "docs").glob("*.md"))]


class Program(NamedTuple):
    code: str
    ranks: int
    options: list[str]
    output: list[str] | None


# Some have under them the command that runs them, indented, with what it prints.
_PROGRAM = re.compile(
    r"^```python\n(?P<code>.*?)^```\n"
    r"(?:\n    \$ mpirun -n (?P<ranks>\d+)(?P<options> --with-ft ulfm)? python \w+\.py\n"
    r"(?P<output>(?:    [^\n]*\n)+))?",
    re.MULTILINE | re.DOTALL,
)


def programs() -> list[object]:
    found = []
    for path in DOCUMENTS:
        for match in _PROGRAM.finditer(text := path.read_text(encoding="utf-8")):
            output = match["output"] and [line[4:] for line in match["output"].splitlines()]
            line = text.count("\n", 0, match.start()) + 1
            found.append(
                pytest.param(
                    Program(
                        match["code"], int(match["ranks"] or 2), (match["options"] or "").split(), output
                    ),
                    id=f"{path.name}:{line}",
                )
            )
    return found


@pytest.mark.parametrize("program", programs())
def test_program(program: Program, mpirun, tmp_path: Path) -> None:
    if "torch" in program.code:
        need("torch")
    path = tmp_path / "program.py"
    path.write_text(program.code, encoding="utf-8")
    done = mpirun(program.ranks, path, timeout_s=120, cwd=tmp_path, options=program.options)
    assert "Warning" not in done.stderr
    if program.output is not None:
        assert done.stdout.splitlines() == program.output


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text(encoding="utf-8")):
        assert "://" in target or (path.parent / target).exists(), target
