"""``python -m hpccoll.compare BASE NEW`` says of every case whether NEW is slower, faster or the same.

Each side is the directory of a run (made with ``--log-dir`` and ``--launches 5`` or more), a directory that holds
several runs, or a baseline file that ``--save`` has written. Needs no MPI. Method: docs/methods.md, Comparisons.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hpccoll.output import run_alone
from hpccoll.runs.store import RunError
from hpccoll.units import format_bytes

if TYPE_CHECKING:
    from hpccoll.runs.comparing import Comparison, Side

_OK, _FAILED, _USAGE = 0, 1, 2
FORMAT = "hpccoll.compare/1"

_MOST_PERCENT = 1000
_ENOUGH_RUNS = 5


def share(text: str) -> float:
    """``5%`` or ``0.05`` as 0.05."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"a share like 5% or 0.05 is expected, got {text!r}")
    return float(match[1]) / (100 if match[2] else 1)


def condition(text: str) -> tuple[str, float | None]:
    """``slower:5%`` as a verdict and the share from which on it counts."""
    verdict, _, limit = text.partition(":")
    if verdict not in ("slower", "faster", "unsure"):
        raise argparse.ArgumentTypeError(
            f"slower, faster or unsure is expected, with :5% for a limit, got {text!r}"
        )
    return verdict, share(limit) if limit else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hpccoll compare", description=(__doc__ or "").partition("\n\n")[2], allow_abbrev=False
    )
    parser.add_argument("base", type=Path, metavar="BASE", help="a run, runs, or a baseline file")
    parser.add_argument("new", type=Path, nargs="?", metavar="NEW", help="the same; not needed with --save")
    parser.add_argument(
        "--within",
        type=share,
        default=0.05,
        metavar="SHARE",
        help="times that differ by less are the same (5%%)",
    )
    parser.add_argument(
        "--fail-on",
        type=condition,
        action="append",
        default=[],
        metavar="VERDICT[:SHARE]",
        help="status 1 if a case, or all together, is slower:5%%, faster:5%% (beyond chance) or unsure; repeatable",
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep BASE as a baseline file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the comparison; - is standard output")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status: 0, 1 for what ``--fail-on`` names, 2 for bad input."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.new is None and options.save is None:
        parser.error("name BASE and NEW, or BASE and --save FILE")
    try:
        return _run(options)
    except RunError as exc:
        print(f"hpccoll compare: error: {exc}", file=sys.stderr)
        return _USAGE


def _run(options: argparse.Namespace) -> int:
    from hpccoll.runs.aside import write_aside
    from hpccoll.runs.comparing import compare, manifest_differences, read_side, save_baseline

    base = read_side(options.base)
    if options.save is not None:
        save_baseline(options.save, base)
        print(f"wrote {options.save}", file=sys.stderr)
    if options.new is None:
        return _OK
    new = read_side(options.new)
    found = compare(base, new, options.within)
    differences = list(manifest_differences(base, new))
    failed = [item for item in found if _fails(item, options.fail_on, options.within)]
    document = {
        "format": FORMAT,
        "base": base.name,
        "new": new.name,
        "within": options.within,
        "failed": bool(failed),
        "cases": [asdict(item) for item in found],
        "differences": [dict(zip(("name", "base", "new"), item, strict=True)) for item in differences],
    }
    text = json.dumps(document, indent=1) + "\n"
    if str(options.json) == "-":
        print(text, end="")
    else:
        _print(base, new, found, differences, options.within)
        for item in failed:
            print(f"FAILED: {_name(item)}: {_percent(item.ratio)}")
        if options.json is not None:
            write_aside(options.json, lambda aside: aside.write_text(text, "utf-8"))
    return _FAILED if failed else _OK


def _fails(item: Comparison, conditions: Sequence[tuple[str, float | None]], within: float) -> bool:
    for verdict, limit in conditions:
        share_of = within if limit is None else limit
        if verdict == "unsure":
            if item.verdict == "unsure":
                return True
        elif item.is_slower(share_of) if verdict == "slower" else item.is_faster(share_of):
            return True
    return False


def _name(item: Comparison) -> str:
    case = item.case
    if not case:
        return "all cases"
    parts = (case["collective"], case["engine"], format_bytes(case["nbytes"]), case["dtype"], case["op"])
    return " ".join(str(part) for part in parts if part is not None)


def _percent(ratio: float | None) -> str:
    """The change; the interval of a few repetitions may reach much further than any number says something."""
    if ratio is None or math.isnan(ratio):
        return "n/a"
    return f"> {_MOST_PERCENT} %" if ratio > 1 + _MOST_PERCENT / 100 else f"{100 * (ratio - 1):+.1f} %"


def _advice(base: Side, new: Side, found: Sequence[Comparison]) -> str:
    """What to do about verdicts that are unsure."""
    if not base.unit == new.unit == "run":
        return "measure with more --launches, or several runs a side"
    fewest = min(min(item.base_repetitions, item.new_repetitions) for item in found)
    if fewest >= _ENOUGH_RUNS:
        return "measure more runs a side"
    return f"{fewest} run{'s' * (fewest != 1)} a side are few: measure more, {_ENOUGH_RUNS} or so"


def _print(
    base: Side,
    new: Side,
    found: Sequence[Comparison],
    differences: Sequence[tuple[str, str, str]],
    within: float,
) -> None:
    from hpccoll.runs.screen import number, print_table

    print(f"base: {base.name}\nnew:  {new.name}")
    for side in (base, new):
        for text in side.findings:
            print(f"! {side.name}: {text}")
    if base.unit != new.unit:
        print(
            f"! the base repeats in {base.unit}es, the new one in {new.unit}es: their spreads mean different things"
        )
    cells = [
        [
            _name(item),
            number(item.base_us),
            number(item.new_us),
            f"{item.base_repetitions}/{item.new_repetitions}",
            _percent(item.ratio),
            _percent(item.low),
            _percent(item.high),
            number(item.effect, ".1f"),
            item.verdict + (f" (two modes: {item.multimodal})" if item.multimodal else ""),
        ]
        for item in found
    ]
    titles = ("name", "base us", "new us", "repetitions", "change", "low", "high", "effect", "verdict")
    print_table((f"change of time; same: within {100 * within:g} %", titles, cells))
    if "launch" in (base.unit, new.unit):
        print(
            "\nThe intervals are over launches within a run; what differs from run to run is not in them.\n"
            "To have that in them too, give a directory of several runs for each side, measured in turns."
        )
    if any(item.verdict == "unsure" for item in found):
        print(f"\nunsure: not enough data; {_advice(base, new, found)}")
    if differences:
        print_table(
            (
                "what differs between the manifests",
                ("name", "base", "new"),
                [list(item) for item in differences],
            )
        )


if __name__ == "__main__":
    run_alone(main)
