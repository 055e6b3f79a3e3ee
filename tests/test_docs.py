"""The programs in the documentation, run as they stand there, print what it says they print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mpi_plugin import need

HOME = Path(__file__).parents[1]
DOCUMENTS = [HOME / "README.md", *sorted((HOME / "docs").glob("*.md"))]

# A fenced program, and under it the command that runs it, indented, with its output.
EXAMPLE = re.compile(
    r"^```python\n(?P<code>.*?)^```\n\n"
    r"    \$ mpirun -n (?P<ranks>\d+) python (?P<name>\w+\.py)\n(?P<output>(?:    [^\n]*\n)+)",
    re.MULTILINE | re.DOTALL,
)
EXAMPLES = [
    pytest.param(found, id=f"{path.name}-{found['name']}")
    for path in DOCUMENTS
    for found in EXAMPLE.finditer(path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_example(example: re.Match[str], mpirun, tmp_path: Path) -> None:
    if "torch" in example["code"]:
        need("torch")
    program = tmp_path / example["name"]
    program.write_text(example["code"], encoding="utf-8")
    done = mpirun(int(example["ranks"]), program, timeout_s=120)
    assert done.stdout.splitlines() == [line[4:] for line in example["output"].splitlines()]


def test_every_program_of_the_readme_is_run() -> None:
    text = DOCUMENTS[0].read_text(encoding="utf-8")
    assert text.count("```python") == sum("README" in example.id for example in EXAMPLES) > 0


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text(encoding="utf-8")):
        assert "://" in target or (path.parent / target).exists(), target
