"""The code blocks of README.md and docs/, what has to happen with each, and how it is run.

A comment right before a block says what differs from the rule, in words divided by semicolons:

    <!-- test: file sum.py -->                a program's name, for the commands below it on the page
    <!-- test: status 0 or 1 -->              exit statuses of the last command (0)
    <!-- test: on the cluster -->             run by tests/cluster/test_docs_on_cluster.py, on several hosts with Slurm
    <!-- test: run by tests/test_x.py -->     another test does what it says
    <!-- test: not run: REASON -->            nobody runs it; its words are looked at all the same
    <!-- test: rows run on 2 ranks -->        of the table below, both cells do the same
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

import hpccoll

ROOT = Path(hpccoll.__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Shown, and nothing to run; and what makes the site.
SHOWN = {"text", "json"}
DIRECTIVES = {"{toctree}", "{eval-rst}", "{program-output}"}
COMMANDS = {"sh", "console"}
_MARK = re.compile(r"<!-- test: (.*?) -->", re.DOTALL)
_COMMAND = re.compile(
    r"^\s*(\$ |[A-Z_]+=\S* )?"
    r"(bash|mpirun|mpiexec|srun|sbatch|salloc|python3?|pip|hpccoll|torchrun|pytest|module|export) ",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A block of code as it stands on a page."""

    page: Path
    line: int
    language: str
    code: str
    marks: tuple[str, ...]

    @property
    def id(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def mark(self, start: str) -> str | None:
        """What follows `start` in the comment before the block."""
        return next((mark[len(start) :].strip() for mark in self.marks if mark.startswith(start)), None)

    @property
    def statuses(self) -> set[int]:
        return {int(number) for number in re.findall(r"\d+", self.mark("status") or "0")}

    @property
    def runs_here(self) -> bool:
        return self.mark("on the cluster") is None and not any(
            mark.startswith(("not run", "run by")) for mark in self.marks
        )

    def commands(self) -> list[str]:
        """The lines of shell: of a console those behind the prompts."""
        if self.language == "sh":
            return [self.code]
        return re.findall(r"^\$ (.*)$", self.code, re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """Two cells of a table that do the same."""

    page: Path
    before: list[str]
    after: list[str]
    titles: tuple[str, str]


def _tokens(page: Path) -> list[Token]:
    return MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8"))


def _marks(token: Token | None) -> tuple[str, ...]:
    found = _MARK.search(token.content) if token is not None and token.type == "html_block" else None
    return tuple(part.strip() for part in found[1].split(";")) if found else ()


@cache
def blocks_of(page: Path) -> list[Block]:
    """All blocks of a page, in their order. Indented ones have the language "indented"."""
    tokens = _tokens(page)
    return [
        Block(
            page,
            token.map[0] + 1 if token.map else 0,
            token.info.split()[0] if token.info else "indented" if token.type == "code_block" else "",
            token.content,
            _marks(before),
        )
        for before, token in zip([None, *tokens], tokens, strict=False)
        if token.type in ("fence", "code_block")
    ]


def rows_of(page: Path) -> Iterator[Row]:
    """The rows of the page's tables that are marked to be run."""
    marked, cells, titles = False, [], ("", "")
    for before, token in zip([None, *(tokens := _tokens(page))], tokens, strict=False):
        if token.type == "table_open":
            marked = "rows run on 2 ranks" in _marks(before)
        elif token.type == "tr_open":
            cells = []
        elif token.type == "inline" and marked:
            cells.append(token)
        elif token.type == "table_close":
            marked = False
        elif token.type == "tr_close" and marked:
            code = [
                [child.content for child in cell.children or () if child.type == "code_inline"]
                for cell in cells
            ]
            if any(code):
                yield Row(page, code[0], code[1], titles)
            else:
                titles = (cells[0].content, cells[1].content)


def hidden_commands(block: Block) -> list[str]:
    """Commands in a block that is only shown."""
    return [match[0].strip() for match in _COMMAND.finditer(block.code)]


def _lines(text: str) -> Iterator[str]:
    """Whole commands: a quotation or a backslash may go on in the next line."""
    whole = ""
    for line in text.splitlines():
        whole += line
        if whole.endswith("\\"):
            whole = whole[:-1]
            continue
        try:
            shlex.split(whole, comments=True)
        except ValueError:
            whole += "\n"
            continue
        yield whole
        whole = ""
    assert not whole, whole


def calls_of(block: Block) -> Iterator[tuple[str, list[str]]]:
    """The programs of hpccoll that a block calls, each with its own arguments."""
    for line in (line for text in block.commands() for line in _lines(text)):
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        yield from _calls(list(words))


def _calls(words: list[str]) -> Iterator[tuple[str, list[str]]]:
    name, arguments, others = "", [], False
    for word in [*words, ";"]:
        match = re.fullmatch(r"hpccoll\.(\w+)", word)
        if match or set(word) <= set(";&|()<>"):
            if name:
                yield name, arguments
            name, arguments, others = match[1] if match else "", [], False
        elif word == "--":
            others = True  # what follows belongs to another program
        elif not others:
            arguments.append(word)
