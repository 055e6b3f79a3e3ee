"""The site is made without a warning, its links lead to pages and anchors, and the reference has every public name."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
from mpi_plugin import need

import hpccoll

ROOT = Path(hpccoll.__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for module in ("sphinx", "myst_parser", "furo", "sphinxcontrib.programoutput", "torch"):
        need(module)
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-d", target / "trees"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, DOCS, target / "html"], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target / "html"


class Page(HTMLParser):
    """What a page refers to, and what can be referred to in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.references: list[str] = []
        self.anchors: set[str] = set()
        self.images_without_words: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {value for name, value in attrs if name in ("id", "name") and value}
        if tag in ("a", "img", "link", "script"):
            self.references += [value for name in ("href", "src") if (value := found.get(name))]
        if tag == "img" and not found.get("alt"):
            self.images_without_words.append(found.get("src") or "")


def test_links_and_anchors(site: Path) -> None:
    """Within the site. Other sites are not asked: the tests need no network."""
    pages = {path: Page(path) for path in site.rglob("*.html") if "_downloads" not in path.parts}
    assert {path.relative_to(site).with_suffix("") for path in pages} >= {
        path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md")
    }
    broken, followed = [], 0
    for path, page in pages.items():
        for reference in page.references:
            if urlsplit(reference).scheme:
                continue
            address, anchor = urldefrag(reference)
            target = (path.parent / unquote(urlsplit(address).path)).resolve() if address else path
            known = pages.get(target)
            followed += 1
            if not target.exists() or (anchor and known is not None and unquote(anchor) not in known.anchors):
                broken.append(f"{path.relative_to(site)}: {reference}")
    assert not broken
    assert followed > 500
    assert not [words for page in pages.values() for words in page.images_without_words]


def test_pages_beside_the_site_open(site: Path) -> None:
    """They are not offered for saving."""
    page = Page(site / "collect.html")
    (report,) = {name for name in page.references if name.endswith("example_report.html")}
    assert (site / report).read_bytes() == (DOCS / "example_report.html").read_bytes()
    assert 'download=""' not in (site / "collect.html").read_text(encoding="utf-8")


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    anchors = Page(site / "reference" / "python.html").anchors
    wanted = {f"hpccoll.{name}" for name in hpccoll.__all__ if name != "__version__"}
    wanted = {name.replace("hpccoll.", "hpccoll.errors.") if is_error(name) else name for name in wanted}
    for module in ("records", "environment", "gradients", "nodelist", "torch_backend"):
        found = importlib.import_module(f"hpccoll.{module}")
        wanted |= {f"hpccoll.{module}.{name}" for name in found.__all__ if callable(getattr(found, name))}
    methods = [name for name in dir(hpccoll.Comm) if not name.startswith("_")]
    wanted |= {f"hpccoll.Comm.{name}" for name in methods if callable(getattr(hpccoll.Comm, name))}
    assert sorted(wanted - anchors) == []


def is_error(name: str) -> bool:
    value = getattr(hpccoll, name.partition(".")[2])
    return isinstance(value, type) and issubclass(value, Exception)


def test_help_of_a_program_is_the_program_s_own(site: Path) -> None:
    text = (site / "reference" / "programs.html").read_text(encoding="utf-8")
    assert "FILE.svg" in text
    assert "Traceback" not in text
