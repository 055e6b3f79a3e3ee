"""The command line of `python -m hpccoll.collect`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hpccoll.runs.store import RunError

__all__ = ["main"]

_FILES = ("html", "plots", "csv", "json", "parquet", "trace")
_OK, _NOT_WHOLE, _USAGE = 0, 1, 2
_DESCRIPTION = """Turn the records of a run (--log-dir, or hpccoll.records in a job of yours) into tables, a report
and a trace; or merge the plain logs of many ranks. Needs no MPI. docs/collect.md has examples."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hpccoll collect", description=_DESCRIPTION, allow_abbrev=False)
    parser.add_argument(
        "directories",
        nargs="*",
        type=Path,
        metavar="RUN_DIR",
        help="directories that hold the record files of one run; or one directory above several runs",
    )
    parser.add_argument(
        "--text",
        nargs="+",
        metavar="FILES",
        help="merge plain logs instead: files, quoted patterns, or directories (Open MPI's --output dir=)",
    )
    parser.add_argument(
        "--strict", action="store_true", help="status 1 unless the run is whole and every result right"
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="the report, one file that needs no network"
    )
    parser.add_argument("--plots", type=Path, metavar="DIR", help="the report's pictures as PNG and SVG")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="the table of times")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all tables; - is standard output")
    parser.add_argument("--parquet", type=Path, metavar="FILE", help="every sample")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="a timeline for ui.perfetto.dev, one lane per rank"
    )
    parser.add_argument(
        "--memory",
        type=float,
        default=2.5,
        metavar="GB",
        help="of the database, before it goes on in $TMPDIR (2.5)",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="of the database (all cores)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status: 0, 1 with ``--strict`` for a run that is not whole, 2 for bad input."""
    parser = _parser()
    options = parser.parse_args(argv)
    if bool(options.directories) == bool(options.text):
        parser.error("name one or more RUN_DIR, or --text FILES")
    try:
        return _merge(options) if options.text else _collect(options)
    except RunError as exc:
        print(f"hpccoll collect: error: {exc}", file=sys.stderr)
        return _USAGE


def _merge(options: argparse.Namespace) -> int:
    from hpccoll.collect.text import merge_texts, ranked_files, render
    from hpccoll.runs.screen import progress_bar

    step, stop = progress_bar("reading")
    try:
        groups, ranks, notes = merge_texts(ranked_files(options.text), step)
    finally:
        stop()
    for line in render(groups, ranks, notes):
        print(line)
    return _NOT_WHOLE if options.strict and (notes or any(group.error for group in groups)) else _OK


def _collect(options: argparse.Namespace) -> int:
    from hpccoll.runs.reading import find_runs

    several = find_runs(options.directories[0]) if len(options.directories) == 1 else []
    if len(several) < 2:
        return _collect_one(options, options.directories)
    for name in _FILES:
        if getattr(options, name) is not None:
            runs = ", ".join(str(path) for path in several[:4])
            raise RunError(
                f"--{name} is for one run, and {options.directories[0]} holds {len(several)}: name one, {runs} ..."
            )
    statuses = []
    for path in several:
        print(f"{'' if path is several[0] else chr(10)}==== {path.relative_to(options.directories[0])}")
        statuses.append(_collect_one(options, [path]))
    return max(statuses)


def _collect_one(options: argparse.Namespace, directories: Sequence[Path]) -> int:
    from hpccoll.collect.terminal import print_analysis
    from hpccoll.runs.analysis import analyse
    from hpccoll.runs.screen import progress_bar
    from hpccoll.runs.store import Store

    step, stop = progress_bar("reading")
    with Store(options.memory, options.threads) as store:
        try:
            found = analyse(store, directories, step)
        finally:
            stop()
        if str(options.json) == "-":
            import json

            from hpccoll.collect.outputs import document

            print(json.dumps(document(found), indent=1))
        else:
            print_analysis(found)
        for path, write in _outputs(options, store, found):
            write()
            print(f"wrote {path}", file=sys.stderr)
    return _NOT_WHOLE if options.strict and not found.health.whole else _OK


def _outputs(
    options: argparse.Namespace, store: object, found: object
) -> list[tuple[Path, Callable[[], None]]]:
    from hpccoll.collect import outputs, trace

    made: list[tuple[Path, Callable[[], None]]] = []

    def add(path: Path | None, write: Callable[..., None], *args: object) -> None:
        if path is not None and str(path) != "-":
            made.append((path, lambda: write(path, *args)))

    add(options.csv, outputs.write_csv, found)
    add(options.json, outputs.write_json, found)
    add(options.parquet, outputs.write_parquet, store)
    add(options.trace, trace.write_trace, store, found.health)  # type: ignore[attr-defined]
    if options.html is not None or options.plots is not None:
        from hpccoll.collect import figures, report

        pictures = figures.draw(found, store)  # type: ignore[arg-type]
        add(options.html, report.write_report, found, pictures)
        add(options.plots, figures.write_plots, pictures)
    return made
