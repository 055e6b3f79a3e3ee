"""What the documentation says can be done, can be done: every block of code is run, or says why not."""

from __future__ import annotations

import doctest
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import docs_blocks
import pytest
from conftest import launch_environment, run_job
from docs_blocks import COMMANDS, DIRECTIVES, PAGES, ROOT, SHOWN, Block, blocks_of, calls_of, rows_of
from mpi_plugin import need

from hpccoll.cli import programs

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
MARKS = ("file ", "status ", "on the cluster", "run by ", "not run: ")
LIMIT_S = 300
# Names that stand for a program of the reader's.
PROGRAM = "import hpccoll\n\nhpccoll.world().barrier()\n"


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


# ---- blocks


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.id)
def test_a_block_is_run_or_says_why_not(block: Block) -> None:
    assert block.language in {"python", *COMMANDS, *SHOWN, *DIRECTIVES}, "a fence with a language is needed"
    assert all(mark.startswith(MARKS) for mark in block.marks), block.marks
    if block.language in SHOWN:
        assert not docs_blocks.hidden_commands(block), "a command among what is only shown"
    for mark in block.marks:
        if mark.startswith("run by "):
            assert names_missing(block, ROOT / mark.removeprefix("run by ")) == [], mark
    reason = block.mark("not run:")
    assert reason is None or len(reason.split()) > 2


def names_missing(block: Block, test: Path) -> list[str]:
    """The programs and scripts of a block that the test which is said to run it does not mention."""
    text = test.read_text(encoding="utf-8")
    if test.name == "test_docs_on_cluster.py":
        text = "".join(other.code for other in BLOCKS if other.mark("on the cluster") is not None)
    names = {name for name, _ in calls_of(block)} | set(re.findall(r"jobs/([\w.]+)", block.code))
    return sorted(name for name in names if name not in text)


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language == "python"], ids=lambda block: block.id
)
def test_a_program_is_python(block: Block) -> None:
    compile(block.code, block.id, "exec")


@cache
def help_of(program: str) -> str:
    command = [sys.executable, "-m", f"hpccoll.{program}", "--help"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language in COMMANDS], ids=lambda block: block.id
)
def test_commands_exist(block: Block) -> None:
    """Whether they are run or not: programs, their options, and files of the checkout."""
    for text in block.commands():
        done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        for path in re.findall(r"(?<![\w./-])(?:jobs|tests|hpccoll)/[\w./-]+", text):
            assert (ROOT / path).exists(), path
    for name, arguments in calls_of(block):
        if name == "bench":
            continue  # its parts are modules and no programs
        assert name in programs(), name
        for argument in arguments:
            if re.match(r"--?[A-Za-z]", argument):
                option = argument.partition("=")[0]
                assert re.search(rf"(?<![\w-]){option}(?![\w-])", help_of(name)), f"{name} has no {option}"


# ---- pages, from top to bottom


class Reader:
    """Somebody who does in a directory of their own what a page says."""

    def __init__(self, page: Path, place: Path) -> None:
        self.page, self.place = page, place
        for path in ROOT.iterdir():
            if not path.name.startswith("."):
                (place / path.name).symlink_to(path)
        for name in ("train.py", "my_program"):
            (place / name).write_text(f"#!/usr/bin/env python\n{PROGRAM}")
            (place / name).chmod(0o755)
        # More ranks than cores are for this page no reason to refuse.
        self.env = launch_environment(10**6)

    def follow(self) -> None:
        blocks = [block for block in blocks_of(self.page) if block.runs_here]
        commands = [text for block in blocks if block.language in COMMANDS for text in block.commands()]
        for block in blocks:
            print(f"-- {block.id}")
            if block.language == "python":
                self.save(block, commands)
            elif block.language == "sh":
                self.run(block, block.code)
            elif block.language == "console":
                self.compare(block)

    def save(self, block: Block, commands: list[str]) -> None:
        """Save a program; run it, unless a command on the page does."""
        if "torch" in block.code:
            need("torch")
        name = block.mark("file ")
        (self.place / (name or "program.py")).write_text(block.code, encoding="utf-8")
        if name is None or not any(name in command for command in commands):
            done = self.run(block, f"mpirun -n 2 python {name or 'program.py'}")
            assert "Warning" not in done.stderr, done.stderr

    def run(self, block: Block, text: str) -> subprocess.CompletedProcess[str]:
        if re.search(r"hpccoll\.(collect|compare)", text):
            need("duckdb")
        command = ["bash", "-euo", "pipefail", "-c", f": {block.id}\n{text}"]
        return run_job(command, self.env, timeout_s=LIMIT_S, statuses=block.statuses, cwd=self.place)

    def compare(self, block: Block) -> None:
        """Each command prints what the page says, where ... stands for anything."""
        parts = re.split(r"^\$ (.*)\n", block.code, flags=re.MULTILINE)[1:]
        for text, expected in zip(parts[::2], parts[1::2], strict=True):
            got = self.run(block, text).stdout
            assert doctest.OutputChecker().check_output(expected, got, doctest.ELLIPSIS), (
                f"{block.id}: $ {text}\nexpected:\n{expected}\ngot:\n{got}"
            )


@pytest.mark.parametrize(
    "page",
    [
        page
        for page in PAGES
        if any(block.runs_here and block.language in {"python", *COMMANDS} for block in blocks_of(page))
    ],
    ids=page_id,
)
def test_page(page: Path, tmp_path: Path) -> None:
    Reader(page, tmp_path).follow()


@pytest.mark.parametrize("page", [page for page in PAGES if list(rows_of(page))], ids=page_id)
def test_rows_do_the_same(page: Path, mpirun, tmp_path: Path) -> None:
    need("torch")
    rows = list(rows_of(page))
    path = tmp_path / "rows.json"
    path.write_text(
        json.dumps([{"titles": row.titles, "before": row.before, "after": row.after} for row in rows])
    )
    done = mpirun(2, ROOT / "tests" / "docs_rows.py", path, timeout_s=120)
    assert done.stdout.count(" right: ") == 2 * len(rows)


def test_the_marks_are_not_forgotten(tmp_path: Path) -> None:
    """What this file relies on, with a page that is wrong in each way."""
    page = tmp_path / "page.md"
    page.write_text(
        "    $ mpirun -n 2 python x.py\n\n"
        "```text\n$ mpirun -n 2 python x.py\n```\n\n"
        "<!-- test: on the cluster; status 0 or 3 -->\n```sh\nsrun \\\n  python -m hpccoll.demo --no  # x\n"
        "python -m hpccoll.launch -n 2 -- -m hpccoll.allreduce -e 4 && sh -c 'a\nb'\n```\n"
    )
    indented, shown, command = blocks_of(page)
    assert indented.language == "indented"
    assert docs_blocks.hidden_commands(shown)
    assert (command.runs_here, command.statuses) == (False, {0, 3})
    assert list(calls_of(command)) == [
        ("demo", ["--no"]),
        ("launch", ["-n", "2"]),
        ("allreduce", ["-e", "4"]),
    ]


# ---- links


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_links_lead_somewhere(path: Path) -> None:
    """As on a page of the repository; those of the site are in test_site.py."""
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text(encoding="utf-8")):
        assert "://" in target or (path.parent / target).exists(), target


def test_every_program_has_its_help_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "programs.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```\{program-output\} python -m hpccoll\.(\w+) --help$", text, re.MULTILINE)
    assert shown == list(programs())
