"""Sphinx makes the site out of this directory: python -m sphinx -W --keep-going -n docs site"""

import os
import re
import sys
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import download_reference
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
# For the programs whose --help becomes a page.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
os.environ["COLUMNS"] = "88"

from hpccoll import __version__  # noqa: E402

project = "hpccoll"
author = "hpccoll developers"
project_copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.programoutput"]
myst_heading_anchors = 4
default_role = "literal"  # `x` in a docstring
exclude_patterns = ["site"]

# The site is made without an MPI library.
autodoc_mock_imports = ["mpi4py"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
# Types in docstrings are words for people.
napoleon_preprocess_types = False
nitpick_ignore_regex = [("py:.*", r".*")]

html_theme = "furo"
html_title = f"hpccoll {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False


class PagesAreOpened(SphinxPostTransform):
    """A link to an HTML file beside the pages opens it, instead of saving it."""

    default_priority = 900

    def run(self, **kwargs: object) -> None:
        for node in list(self.document.findall(download_reference)):
            if node.get("filename", "").endswith(".html"):
                depth = self.env.docname.count("/")
                target = "../" * depth + "_downloads/" + node["filename"]
                node.replace_self(nodes.reference("", "", *node.children, refuri=target, internal=False))


def one_name_a_line(
    app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]
) -> None:
    """Of attributes that share a description napoleon understands the last alone."""
    for index, line in reversed(list(enumerate(lines))):
        if found := re.fullmatch(r"(\w+(?:, \w+)+) : (.*)", line):
            lines[index : index + 1] = [f"{each} : {found[2]}" for each in found[1].split(", ")]


def setup(app: Sphinx) -> None:
    app.add_post_transform(PagesAreOpened)
    app.connect("autodoc-process-docstring", one_name_a_line, priority=400)  # before napoleon
