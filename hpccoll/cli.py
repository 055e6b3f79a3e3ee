"""The console script ``hpccoll NAME ...``: the same programs as ``python -m hpccoll.NAME ...``."""

import ast
import importlib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from hpccoll import settings
from hpccoll._version import __version__
from hpccoll.aborting import run_program
from hpccoll.environment import is_first_rank

__all__ = ["main", "programs"]

_USAGE = """usage: hpccoll [-h | --version] NAME ...

Programs that measure, check and explain MPI on a cluster. `hpccoll NAME ...` is `python -m hpccoll.NAME ...`;
start it with mpirun or srun for more than one rank. `hpccoll NAME --help` shows a program's options.
"""


def programs() -> dict[str, str]:
    """The programs by name, each with the first line of its docstring, read without importing anything.

    A program is a module, or a package with a ``__main__`` module, of `hpccoll` that defines `main`.
    """
    return dict(sorted(_found()))


def _environment() -> str:
    width = max(len(setting.name) for setting in settings.ALL)
    lines = "".join(f"  {setting.name:{width}}  {setting.meaning}\n" for setting in settings.ALL)
    return f"environment variables, the same on every rank (defaults in brackets):\n{lines}"


def _found() -> Iterator[tuple[str, str]]:
    here = Path(__file__).parent
    for path in here.iterdir():
        source = path / "__main__.py" if path.is_dir() else path
        if source.suffix != ".py" or not source.is_file() or path.stem.startswith("_") or path.stem == "cli":
            continue
        tree = ast.parse(source.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body) or (
            path.is_dir() and any(_imports_main(node) for node in tree.body)
        ):
            yield path.stem, _first_line(tree, path)


def _imports_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and any(name.name == "main" for name in node.names)


def _first_line(tree: ast.Module, path: Path) -> str:
    """First line of the docstring, without the command that it may open with."""
    text = ast.get_docstring(tree)
    package = path / "__init__.py"
    if package.is_file():  # a package tells more about itself than its __main__ does
        text = ast.get_docstring(ast.parse(package.read_text(encoding="utf-8"))) or text
    line = re.sub(r"^``(?:mpirun|python -m) [^`]*``:?\s*", "", (text or "").partition("\n")[0].rstrip("."))
    return line[:1].upper() + line[1:]


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the program that the first argument names, with the rest as its arguments."""
    run_program(_dispatch, argv)


def _dispatch(argv: Sequence[str] | None) -> int | None:
    arguments = sys.argv[1:] if argv is None else list(argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        names = programs()
        width = max(map(len, names), default=0)
        listing = "".join(f"  {name:{width}}  {summary}\n" for name, summary in names.items())
        print(f"{_USAGE}\nprograms:\n{listing}\n{_environment()}", end="")
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(f"hpccoll {__version__}")
        return 0
    name = arguments[0].replace("-", "_")
    if name not in programs():
        if is_first_rank():
            print(f"hpccoll: no program {arguments[0]!r}; `hpccoll --help` lists them", file=sys.stderr)
        return 2
    module = importlib.import_module(f"hpccoll.{name}")
    if not hasattr(module, "main"):
        module = importlib.import_module(f"hpccoll.{name}.__main__")
    sys.argv = [f"hpccoll {name}", *arguments[1:]]  # what argparse shows as the program's name
    status: int | None = module.main(arguments[1:])
    return status
