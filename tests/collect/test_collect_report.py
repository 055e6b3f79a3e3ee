"""The report in a real browser: headless Chromium, which needs no network for it."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import Synthetic

from hpccoll.collect.program import main
from hpccoll.records import rank_file

# What follows --headless stops the traffic that a browser has of its own.
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"),
    *("--disable-default-apps", "--disable-extensions", "--disable-domain-reliability", "--no-pings"),
    *("--disable-client-side-phishing-detection", "--metrics-recording-only", "--no-default-browser-check"),
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--virtual-time-budget=10000",
)

# Runs in the page before anything else of it, and reports through the page's own text.
_BEFORE = """<script>
window.problems = [];
addEventListener("error", (event) => problems.push(String(event.message || event.target.outerHTML.slice(0, 80))), true);
for (const name of ["error", "warn"]) { console[name] = (...words) => problems.push(name + ": " + words.join(" ")); }
</script>"""
_AFTER = """<script>
addEventListener("load", () => {
  const columns = (table) => [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent));
  const tables = [...document.querySelectorAll("table")].map((table) => {
    const heads = [...table.tHead.rows[0].cells];
    const sorted = heads.map((head, number) => {
      const found = [];
      for (let turn = 0; turn < 2; ++turn) {
        head.click();
        found.push([head.getAttribute("aria-sort"), columns(table).map((row) => row[number])]);
      }
      return found;
    });
    return {titles: heads.map((head) => head.textContent), sorted};
  });
  const result = {
    problems, tables,
    images: [...document.images].map((image) => [image.alt, image.complete, image.naturalWidth]),
    width: document.documentElement.scrollWidth, view: innerWidth,
    first: document.querySelector("h1").nextElementSibling.id,
    requests: performance.getEntriesByType("resource").map((entry) => entry.name.slice(0, 60)),
  };
  const note = document.createElement("pre");
  note.id = "result";
  note.textContent = JSON.stringify(result);
  document.body.append(note);
});
</script>"""


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        reason = "no Chromium here (Debian: apt install chromium): the report was not looked at in a browser"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("report")
    sizes = tuple(8 << (3 * power) for power in range(7))
    run = Synthetic(
        ranks=16, per_host=4, sizes=sizes, engines=("numpy", "c"), late_us={9: 300.0}, iterations=20
    )
    run.write(
        directory / "run", leave_out=[14], change=lambda rank, lines: ["<b>&", *lines] if rank == 3 else lines
    )
    with open(directory / "run" / rank_file(3), "a") as stream:
        metric = {
            "type": "metric",
            "rank": 3,
            "step": 1,
            "unix_ns": 1,
            "values": {"<script>alert(1)</script>": 1.0},
        }
        stream.write(json.dumps(metric) + "\n")
    assert main([str(directory / "run"), "--html", str(directory / "report.html")]) == 0
    return directory / "report.html"


def browse(chromium: str, path: Path, profile: Path, *flags: str) -> str:
    done = subprocess.run(
        [chromium, *_FLAGS, f"--user-data-dir={profile}", *flags, path.as_uri()],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
        start_new_session=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def look(chromium: str, page: Path, tmp_path: Path, *flags: str) -> dict[str, Any]:
    text = page.read_text("utf-8")
    watched = tmp_path / "watched.html"
    watched.write_text(
        text.replace("<head>", "<head>" + _BEFORE, 1).replace("</body>", _AFTER + "</body>", 1), "utf-8"
    )
    shown = browse(chromium, watched, tmp_path / "profile", "--dump-dom", *flags)
    found = re.search(r'<pre id="result">(.*?)</pre>', shown, re.DOTALL)
    assert found, shown[-2000:]
    result: dict[str, Any] = json.loads(html.unescape(found[1]))
    return result


def number_of(text: str) -> float | None:
    match = re.match(r"(?:< )?(-?[0-9.]+(?:e[+-]?\d+)?)\s*([a-zA-Z%]*)", text)
    scale = {"": 1, "%": 1, "us": 1e-6, "ms": 1e-3, "s": 1, "K": 2**10, "M": 2**20, "G": 2**30}
    return float(match[1]) * scale[match[2]] if match and match[2] in scale else None


def test_in_a_browser(chromium: str, page: Path, tmp_path: Path) -> None:
    found = look(chromium, page, tmp_path)
    assert found["problems"] == []
    assert found["first"] == "health"
    assert [name for name in found["requests"] if not name.startswith("data:")] == []
    titles = [alt for alt, *_ in found["images"]]
    assert len(titles) == 5
    assert titles[0].startswith("Time of allreduce")
    assert titles[2].startswith("Lateness of every rank")
    assert all(complete and width > 300 for _, complete, width in found["images"])


def test_the_tables_sort(chromium: str, page: Path, tmp_path: Path) -> None:
    tables = look(chromium, page, tmp_path)["tables"]
    assert len(tables) == 5
    checked = 0
    for table in tables:
        for up, down in table["sorted"]:
            assert [up[0], down[0]] == ["ascending", "descending"]
            numbers = [number_of(text) for text in up[1]]
            if None not in numbers:
                assert numbers == sorted(numbers)  # type: ignore[type-var]
                checked += len(set(numbers)) > 1
            assert sorted(up[1]) == sorted(down[1])
    assert checked > 10


def test_on_a_phone(chromium: str, page: Path, tmp_path: Path) -> None:
    found = look(chromium, page, tmp_path, "--window-size=500,900")
    assert found["view"] <= 500
    assert found["width"] <= found["view"]  # wide tables scroll for themselves


def test_printed(chromium: str, page: Path, tmp_path: Path) -> None:
    browse(chromium, page, tmp_path / "profile", f"--print-to-pdf={tmp_path / 'report.pdf'}")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "report.pdf").stat().st_size > 20_000


def test_what_the_records_say_is_text(page: Path) -> None:
    text = page.read_text("utf-8")
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_nothing_is_fetched(page: Path) -> None:
    text = page.read_text("utf-8")
    assert not re.findall(r'(?:src|href)="(?!data:)', text)
    assert not re.findall(r"@import|url\(|fetch\(|XMLHttpRequest", text)
