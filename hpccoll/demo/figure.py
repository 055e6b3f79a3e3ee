"""The picture of the two operations: one to many; combine, then share."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence

from hpccoll.demo.operations import Step

__all__ = ["MAX_RANKS", "draw"]

MAX_RANKS = 16

# Lengths in pixels. A panel has the call, what it does, a row of boxes before, and one after.
_BOX_WIDTH, _BOX_HEIGHT, _GAP = 64, 38, 14
_MARGIN, _LABELS = 24, 58
_BEFORE_Y, _AFTER_Y, _PANEL_HEIGHT = 96, 232, 306
_LEAST_WIDTH = 390  # the longer of the calls
_WIDEST = 900  # two panels side by side

# A background of its own makes it legible on light and on dark pages.
_STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1b1f24; text-anchor: middle }
.call { font: 600 14px ui-monospace, monospace; text-anchor: start }
.what, .label { font-size: 13px; fill: #57606a; text-anchor: start }
.rank { font-size: 12px; fill: #57606a }
.value { font-weight: 600 }
.paper { fill: #ffffff; stroke: #d0d7de }
.plain { fill: #f2f4f7; stroke: #8c959f }
.source { fill: #ffd8a8; stroke: #bc4c00 }
.result { fill: #cfe8ff; stroke: #0a58ca }
.line { stroke: #57606a; stroke-width: 1.5 }
.head { fill: #57606a }
"""
_WHAT = {"broadcast": "one to many", "allreduce": "combine, then share"}


def draw(steps: Sequence[Step], caption: str) -> str:
    """Draw the steps side by side, or below one another where they are wide.

    Parameters
    ----------
    steps
        The operations, with what every rank really held.
    caption
        How the values came about: for the line below, and for people who do not see the picture.

    Returns
    -------
    str
        An SVG document: the same for the same values, without a date and without random names.

    Raises
    ------
    ValueError
        There are more than `MAX_RANKS` ranks.
    """
    ranks = len(steps[0].before)
    if ranks > MAX_RANKS:
        raise ValueError(f"the figure is for up to {MAX_RANKS} ranks, not {ranks}")
    width = max(_LEAST_WIDTH, _LABELS + ranks * (_BOX_WIDTH + _GAP) - _GAP) + 2 * _MARGIN
    beside = len(steps) * width <= _WIDEST
    columns, rows = (len(steps), 1) if beside else (1, len(steps))
    total = (columns * width, rows * _PANEL_HEIGHT + _MARGIN)
    svg = ElementTree.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {total[0]} {total[1]}",
            "width": str(total[0]),
            "height": str(total[1]),
            "role": "img",
            "aria-labelledby": "title description",
        },
    )
    _text(svg, "title", "Broadcast and allreduce", id="title")
    _text(svg, "desc", " ".join([caption, *map(_in_words, steps)]), id="description")
    _text(svg, "style", _STYLE)
    head = {"id": "head", "markerWidth": "8", "markerHeight": "8", "refX": "7", "refY": "4", "orient": "auto"}
    marker = ElementTree.SubElement(ElementTree.SubElement(svg, "defs"), "marker", head)
    _add(marker, "path", d="M0,0 L8,4 L0,8 z", **{"class": "head"})
    _add(svg, "rect", x=0.5, y=0.5, width=total[0] - 1, height=total[1] - 1, rx=8, **{"class": "paper"})
    for index, step in enumerate(steps):
        x, y = (index * width, 0) if beside else (0, index * _PANEL_HEIGHT)
        _panel(_add(svg, "g", transform=f"translate({x + _MARGIN},{y})"), step)
    _text(svg, "text", caption, x=_MARGIN, y=total[1] - 14, **{"class": "what"})
    ElementTree.indent(svg)
    return ElementTree.tostring(svg, encoding="unicode") + "\n"


def _in_words(step: Step) -> str:
    before = ", ".join(str(held.value) for held in step.before)
    after = ", ".join(str(held.value) for held in step.after)
    return f"{step.call}: before, ranks 0 to {len(step.before) - 1} hold {before}; after, {after}."


def _panel(panel: ElementTree.Element, step: Step) -> None:
    _text(panel, "text", step.call, x=0, y=34, **{"class": "call"})
    _text(panel, "text", _WHAT[step.operation], x=0, y=56, **{"class": "what"})
    middles = [_LABELS + rank * (_BOX_WIDTH + _GAP) + _BOX_WIDTH / 2 for rank in range(len(step.before))]
    top, bottom = _BEFORE_Y + _BOX_HEIGHT, _AFTER_Y - 3
    if step.operation == "broadcast":
        for x in middles:
            _line(panel, (middles[0], top), (x, bottom), head=True)
    else:
        centre, y = (middles[0] + middles[-1]) / 2, (top + bottom) / 2
        for x in middles:
            _line(panel, (x, top), (centre, y), head=False)
            _line(panel, (centre, y), (x, bottom), head=True)
        _add(panel, "rect", x=centre - 26, y=y - 14, width=52, height=28, rx=14, **{"class": "source"})
        _text(panel, "text", "SUM", x=centre, y=y + 5, **{"class": "value"})
    for label, y in (("before", _BEFORE_Y), ("after", _AFTER_Y)):
        _text(panel, "text", label, x=0, y=y + 24, **{"class": "label"})
    for rank, x in enumerate(middles):
        gives = step.operation == "allreduce" or rank == 0
        _text(panel, "text", f"rank {rank}", x=x, y=_BEFORE_Y - 8, **{"class": "rank"})
        _box(panel, x, _BEFORE_Y, step.before[rank].value, "source" if gives else "plain")
        _box(panel, x, _AFTER_Y, step.after[rank].value, "result")
        _text(panel, "text", f"rank {rank}", x=x, y=_AFTER_Y + _BOX_HEIGHT + 16, **{"class": "rank"})


def _box(parent: ElementTree.Element, x: float, y: float, value: float, kind: str) -> None:
    left = x - _BOX_WIDTH / 2
    _add(parent, "rect", x=left, y=y, width=_BOX_WIDTH, height=_BOX_HEIGHT, rx=5, **{"class": kind})
    _text(parent, "text", str(value), x=x, y=y + 24, **{"class": "value"})


def _line(
    parent: ElementTree.Element, start: tuple[float, float], end: tuple[float, float], head: bool
) -> None:
    marker = {"marker-end": "url(#head)"} if head else {}
    _add(parent, "line", x1=start[0], y1=start[1], x2=end[0], y2=end[1], **{"class": "line"}, **marker)


def _add(parent: ElementTree.Element, tag: str, **attributes: object) -> ElementTree.Element:
    texts = {
        name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in attributes.items()
    }
    return ElementTree.SubElement(parent, tag, texts)


def _text(parent: ElementTree.Element, tag: str, text: str, **attributes: object) -> None:
    _add(parent, tag, **attributes).text = text
