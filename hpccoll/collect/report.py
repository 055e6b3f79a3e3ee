"""The report: one HTML file that holds its pictures and needs nothing else."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from html import escape
from pathlib import Path

from hpccoll._version import __version__
from hpccoll.collect.figures import Picture
from hpccoll.collect.terminal import tables
from hpccoll.runs.analysis import Analysis, common_manifest
from hpccoll.runs.aside import write_aside
from hpccoll.runs.screen import Table

__all__ = ["report", "write_report"]

_MOST_ROWS = 500
_HERE = Path(__file__).parent


def write_report(path: Path, found: Analysis, pictures: list[Picture]) -> None:
    """Write the report."""
    write_aside(path, lambda aside: aside.write_text(report(found, pictures), "utf-8"))


def report(found: Analysis, pictures: list[Picture]) -> str:
    """The whole file."""
    return "\n".join(_parts(found, pictures)) + "\n"


def _parts(found: Analysis, pictures: list[Picture]) -> Iterator[str]:
    health = found.health
    title = escape(f"{health.program} on {health.size} ranks")
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<link rel="icon" href="data:,">'  # or browsers ask the server for one
    yield f"<title>{title}</title>\n<style>\n{_text('report.css')}</style>\n</head>\n<body>\n<h1>{title}</h1>"
    yield f'<div id="health" class="{"whole" if health.whole else "holes"}"><strong>{escape(health.headline)}</strong>'
    findings = [item.text for item in health.findings]
    if health.dropped_lines:
        findings.append(f"{health.dropped_lines} lines are left out of the tables")
    yield _list([*findings, *(host.text for host in found.hosts if host.stragglers)])
    yield "</div>"
    if pictures:
        yield "<h2>Pictures</h2>"
    for picture in pictures:
        data, title = base64.b64encode(picture.svg()).decode("ascii"), escape(picture.title)
        yield (
            f'<figure id="{escape(picture.name)}"><img alt="{title}" src="data:image/svg+xml;base64,{data}">'
            f"<figcaption>{title}</figcaption></figure>"
        )
    for table in tables(found):
        yield from _table(table)
    if found.reading.problems:
        yield f"<h2>Lines that are no records: {found.reading.lost}</h2>"
        yield _list([str(problem) for problem in found.reading.problems[:_MOST_ROWS]])
    yield "<h2>Manifest</h2>"
    yield f'<pre id="manifest">{escape(json.dumps(common_manifest(health), indent=1, ensure_ascii=False))}</pre>'
    yield f"<p>hpccoll {escape(__version__)}; what each number means: docs/methods.md and docs/collect.md.</p>"
    yield f"<script>\n{_text('report.js')}</script>\n</body>\n</html>"


def _list(texts: list[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>" if texts else ""


def _table(table: Table) -> Iterator[str]:
    title, titles, rows = table
    yield f'<h2>{escape(title)}</h2>\n<div class="scroll"><table>'
    yield f"<thead><tr>{''.join(f'<th>{escape(name)}</th>' for name in titles)}</tr></thead>\n<tbody>"
    for row in rows[:_MOST_ROWS]:
        yield f"<tr>{''.join(_cell(text) for text in row)}</tr>"
    yield "</tbody></table></div>"
    if len(rows) > _MOST_ROWS:
        yield f"<p>{len(rows) - _MOST_ROWS} more rows are in the JSON document.</p>"


def _cell(text: str) -> str:
    left = not text[:1].isdigit() and not text.startswith(("-", "<", "n/a"))
    return f'<td class="text">{escape(text)}</td>' if left else f"<td>{escape(text)}</td>"


def _text(name: str) -> str:
    return (_HERE / name).read_text("utf-8")
