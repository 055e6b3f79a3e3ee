"""The database that the lines of a run are read into: DuckDB, in memory, and on disk once that is full."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpccoll.errors import HpccollError
from hpccoll.records import FIELDS, Field

if TYPE_CHECKING:
    import duckdb

__all__ = ["CASE", "RunError", "Store", "literal", "need", "select_list"]

CASE = (
    "collective",
    "engine",
    "nbytes",
    "count",
    "dtype",
    "op",
    "root",
    "in_place",
    "mode",
    "launch",
    "calls",
)
"""Fields of a sample that say what was called; `iteration` counts within them."""

_COLUMN = {
    "str": "VARCHAR",
    "int": "BIGINT",
    "float": "DOUBLE",
    "bool": "BOOLEAN",
    "list": "JSON",
    "dict": "JSON",
}


class RunError(HpccollError):
    """There are no records to read, or what reads them is missing."""


def need(module: str) -> Any:
    """Import an optional library of the ``report`` extra.

    Raises
    ------
    RunError
        It is not installed; the message says how to get it.
    """
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as exc:
        package = module.partition(".")[0]
        raise RunError(
            f"{package} is needed for this and cannot be imported ({exc}); install it with "
            f"`pip install duckdb matplotlib rich`"
        ) from exc


def literal(text: str | Path) -> str:
    """A text as SQL has it."""
    return "'" + str(text).replace("'", "''") + "'"


def select_list(names: tuple[str, ...] | list[str], table: str = "") -> str:
    """Column names as SQL has them."""
    prefix = f"{table}." if table else ""
    return ", ".join(f'{prefix}"{name}"' for name in names)


def columns() -> dict[str, str]:
    """Every field of every type of line, with the column type that holds it."""
    found = {"type": "VARCHAR"}
    for fields in FIELDS.values():
        for field in fields:
            found.setdefault(field.name, _COLUMN[field.kind.rstrip("?")])
    return found


def _wrong(field: Field) -> str:
    """SQL for: this field is not what the schema wants."""
    kind = field.kind.rstrip("?")
    shape = {"list": "'ARRAY'", "dict": "'OBJECT'"}.get(kind)
    name = f'"{field.name}"'
    if shape is None:
        return "false" if field.kind.endswith("?") else f"{name} IS NULL"
    null = f"coalesce(json_type({name}), 'NULL')"
    allowed = f"{shape}, 'NULL'" if field.kind.endswith("?") else shape
    return f"{null} NOT IN ({allowed})"


def sound() -> str:
    """SQL for: this row is a record of the schema."""
    cases = " ".join(
        f"WHEN {literal(kind)} THEN NOT ({' OR '.join(_wrong(field) for field in fields)})"
        for kind, fields in FIELDS.items()
    )
    return f"coalesce(CASE type {cases} ELSE false END, false)"


class Store:
    """Tables of one run.

    ======== =====================================================================================
    samples  `file`, `rank`, `key` (of the case), `iteration`, `start_ns`, `end_ns`, `verified`
    cases    `key` and the fields of `CASE`
    metrics  `file`, `rank`, `step`, `unix_ns`, `values`
    others   every other line, with all fields of the schema as columns, and `file`
    ======== =====================================================================================

    Parameters
    ----------
    memory_gb
        Above it the database goes on in temporary files.
    threads
        None for as many as there are cores.
    """

    def __init__(self, memory_gb: float = 3.0, threads: int | None = None) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="hpccoll-")
        try:
            self.db: duckdb.DuckDBPyConnection = need("duckdb").connect(":memory:")
        except BaseException:
            self._directory.cleanup()
            raise
        self.db.execute(f"SET temp_directory={literal(self._directory.name)}")
        self.db.execute(f"SET memory_limit='{int(memory_gb * 1000)}MB'")
        self.db.execute("SET preserve_insertion_order=false")
        self.db.execute("SET enable_progress_bar=false")
        if threads is not None:
            self.db.execute(f"SET threads={threads}")
        spec = ", ".join(f'"{name}" {kind}' for name, kind in columns().items())
        self.db.execute(f"CREATE TABLE others (file INTEGER, {spec})")
        self.db.execute(
            "CREATE TABLE samples (file INTEGER, rank INTEGER, key UBIGINT, iteration BIGINT, start_ns BIGINT,"
            " end_ns BIGINT, verified BOOLEAN)"
        )
        known = columns()
        case = ", ".join(f'"{name}" {known[name]}' for name in CASE)
        self.db.execute(f"CREATE TABLE cases (key UBIGINT PRIMARY KEY, {case}, flags VARCHAR)")
        self.db.execute(
            'CREATE TABLE metrics (file INTEGER, rank INTEGER, step BIGINT, unix_ns BIGINT, "values" JSON)'
        )

    @property
    def directory(self) -> Path:
        """For temporary files; goes with the store."""
        return Path(self._directory.name)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a query gives."""
        return self.db.execute(query).fetchall()

    def dicts(self, query: str) -> list[dict[str, Any]]:
        """What a query gives, by column name."""
        done = self.db.execute(query)
        names = [item[0] for item in done.description or []]
        return [dict(zip(names, row, strict=True)) for row in done.fetchall()]

    def arrays(self, query: str) -> dict[str, Any]:
        """What a query gives, as NumPy arrays."""
        found: dict[str, Any] = self.db.execute(query).fetchnumpy()
        return found

    def close(self) -> None:
        """Forget everything."""
        self.db.close()
        self._directory.cleanup()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
