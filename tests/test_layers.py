"""Imports point only downwards, and programs never import one another."""

import ast
import re
from pathlib import Path

import pytest

import hpccoll
from hpccoll.cli import programs

PACKAGE = Path(hpccoll.__file__).parent

# Modules and packages right below hpccoll. Programs are layer 3; modules that are named nowhere are parts of Comm.
FOUNDATION = {
    *(
        "_version",
        "aside",
        "environment",
        "errors",
        "fit",
        "network",
        "nodelist",
        "output",
        "recorder",
        "records",
        "runs",
        "settings",
        "stats",
        "units",
    ),
}
COMMUNICATION = 1
LAYERS = {
    **dict.fromkeys(FOUNDATION, 0),
    "comm": COMMUNICATION,
    **dict.fromkeys(("bench", "torch_backend"), 2),
    **dict.fromkeys(("__main__", "cli"), 3),
}


def layer_of(name: str) -> int:
    if name in LAYERS:
        return LAYERS[name]
    if name in programs():
        return 3
    if (PACKAGE / name).is_dir():
        pytest.fail(f"the package hpccoll.{name} has no layer: add it to LAYERS in {Path(__file__).name}")
    return COMMUNICATION


def sources() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def unit_of(path: Path) -> str:
    """``bench/case.py`` belongs to ``bench``, ``comm.py`` is ``comm``."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_units(path: Path) -> set[str]:
    """What a file imports from hpccoll, at the top or in a function, by the first name below hpccoll."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = ("hpccoll", *path.relative_to(PACKAGE).parent.parts)
                base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [base])])
            names |= {f"{base}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("hpccoll.")}


def modules_named(names: set[str]) -> set[str]:
    """Without the public names that ``from hpccoll import Comm`` brings."""
    return {name for name in names if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()}


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path: Path) -> None:
    unit = unit_of(path)
    found = imported_units(path)
    assert found == modules_named(found), "inside the package, name the module that defines the name"
    wrong = {name for name in found if layer_of(name) > layer_of(unit)}
    assert not wrong, f"hpccoll.{unit} is in layer {layer_of(unit)}, and these are above it: {sorted(wrong)}"


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_programs_do_not_import_programs(path: Path) -> None:
    wrong = (imported_units(path) & set(programs())) - {unit_of(path)}
    assert not wrong, f"these are programs: {sorted(wrong)}"


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_private_names_of_torch_stay_in_the_backend(path: Path) -> None:
    if unit_of(path) == "torch_backend":
        return
    text = path.read_text(encoding="utf-8")
    assert not re.findall(r"\btorch(?:\.\w+)*\._(?!_version__)\w+|_distributed_c10d", text)


def test_collect_runs_without_mpi() -> None:
    """Its place is the login node, where there may be none."""
    for path in sources():
        if unit_of(path) in ("collect", "compare"):
            assert {layer_of(name) for name in imported_units(path) - {unit_of(path)}} <= {0}
