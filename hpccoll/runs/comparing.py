"""Is a run slower than another, and what else differs between them: docs/methods.md, Comparisons."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpccoll.runs.analysis import analyse, common_manifest
from hpccoll.runs.aside import write_aside
from hpccoll.runs.reading import find_runs
from hpccoll.runs.store import RunError, Store
from hpccoll.runs.tables import CASE_KEY

__all__ = [
    "ALL",
    "BASELINE",
    "Comparison",
    "Side",
    "compare",
    "manifest_differences",
    "read_side",
    "save_baseline",
]

BASELINE = "hpccoll.baseline/1"
ALL = "all cases"

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a run, several runs, or a baseline kept from them.

    Attributes
    ----------
    name : str
    unit : str
        What the repetitions are: ``launch``, or ``run`` where there are several.
    size : int
    cases : dict
        By key (`CASE_KEY`) the time of each repetition in us; nan where one is missing.
    multimodal : set
        Keys whose samples fall into two groups.
    manifest : dict
    findings : list of str
        What is wrong with the runs.
    """

    name: str
    unit: str
    size: int
    cases: dict[tuple[Any, ...], list[float]]
    multimodal: set[tuple[Any, ...]]
    manifest: dict[str, Any]
    findings: list[str]


@dataclass(frozen=True)
class Comparison:
    """One case of two sides.

    Attributes
    ----------
    case : dict
        The fields of `CASE_KEY`; empty for all cases together.
    base_us, new_us : float
        Geometric means over the repetitions.
    base_repetitions, new_repetitions : int
    ratio : float
        new / base.
    low, high : float or None
        Its interval; 95 % for all cases of a comparison together. None with a single repetition on a side.
    effect : float or None
        The difference of the logarithms in units of their pooled standard deviation.
    verdict : str
        ``same``: the whole interval is within the given share. ``slower``, ``faster``: the ratio is beyond the share,
        and the interval beyond 1. ``unsure``: not enough data.
    multimodal : str
        ``base``, ``new``, ``both`` or nothing.
    """

    case: dict[str, Any]
    base_us: float
    new_us: float
    base_repetitions: int
    new_repetitions: int
    ratio: float
    low: float | None
    high: float | None
    effect: float | None
    verdict: str
    multimodal: str

    def is_slower(self, share: float) -> bool:
        """Whether it is slower beyond chance, and by `share` at least."""
        return self.low is not None and self.low > 1 and self.ratio >= 1 + share

    def is_faster(self, share: float) -> bool:
        """Whether it is faster beyond chance, and by `share` at least."""
        return self.high is not None and self.high < 1 and self.ratio <= 1 / (1 + share)


# ---- Reading


def read_side(path: Path, memory_gb: float = 2.5) -> Side:
    """A side from a run's directory, a directory of several runs, or a baseline file.

    Raises
    ------
    RunError
        It is none of these.
    """
    if path.is_file():
        return _baseline(path)
    runs = [_read_run(run, memory_gb) for run in find_runs(path)]
    if len(runs) == 1:
        return runs[0]
    sizes = {run.size for run in runs}
    if len(sizes) > 1:
        raise RunError(
            f"{path} holds runs of {sorted(sizes)} ranks; name one, or keep those of one size together"
        )
    keys = {key for run in runs for key in run.cases}
    return Side(
        name=path.name,
        unit="run",
        size=runs[0].size,
        # Launches of one run have their processes in common, so a run counts once.
        cases={key: [_middle(run.cases.get(key, [])) for run in runs] for key in keys},
        multimodal=set().union(*(run.multimodal for run in runs)),
        manifest=runs[0].manifest,
        findings=[f"{run.name}: {text}" for run in runs for text in run.findings],
    )


def _read_run(path: Path, memory_gb: float) -> Side:
    with Store(memory_gb) as store:
        found = analyse(store, [path])
    timed = [row for row in found.cases if row.time_us is not None]
    if not timed:
        raise RunError(f"{path}: no complete sample of any case")
    return Side(
        name=found.health.run,
        unit="launch",
        size=found.health.size,
        cases={row.key: list(row.launch_us) for row in timed},
        multimodal={row.key for row in timed if row.multimodal},
        manifest=common_manifest(found.health),
        findings=[item.text for item in found.health.findings],
    )


def _middle(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values)))) if values else math.nan


def save_baseline(path: Path, side: Side) -> None:
    """Keep what a later comparison needs in one small file."""
    content = {
        "format": BASELINE,
        "name": side.name,
        "unit": side.unit,
        "size": side.size,
        "cases": [
            {
                **dict(zip(CASE_KEY, key, strict=True)),
                "times_us": [None if math.isnan(value) else value for value in times],
                "multimodal": key in side.multimodal,
            }
            for key, times in side.cases.items()
        ],
        "manifest": side.manifest,
        "findings": side.findings,
    }
    write_aside(path, lambda aside: aside.write_text(json.dumps(content, indent=1) + "\n", "utf-8"))


def _baseline(path: Path) -> Side:
    try:
        content = json.loads(path.read_text("utf-8"))
        if content["format"] != BASELINE:
            raise RunError(f"{path} has the format {content['format']!r}, expected {BASELINE}")
        cases = {tuple(case[name] for name in CASE_KEY): case for case in content["cases"]}
        return Side(
            name=str(content["name"]),
            unit=str(content["unit"]),
            size=int(content["size"]),
            cases={
                key: [math.nan if value is None else float(value) for value in case["times_us"]]
                for key, case in cases.items()
            },
            multimodal={key for key, case in cases.items() if case["multimodal"]},
            manifest=dict(content["manifest"]),
            findings=list(content["findings"]),
        )
    except OSError as exc:
        raise RunError(f"cannot read {path}: {exc.strerror or exc}") from exc
    except (ValueError, KeyError, TypeError) as exc:
        raise RunError(f"{path} is no baseline ({type(exc).__name__}: {exc}); --save writes one") from exc


# ---- Comparing


def compare(base: Side, new: Side, within: float) -> list[Comparison]:
    """All cases together first, then every case that both sides have.

    Parameters
    ----------
    within
        Up to which ratio, less 1, two times are the same.

    Raises
    ------
    RunError
        There is no such case.
    """
    common = [key for key in base.cases if key in new.cases]
    if not common:
        raise RunError(f"{base.name} and {new.name} have no case in common")
    level = 1 - (1 - _CONFIDENCE) / len(common)
    single = [
        _compare(
            dict(zip(CASE_KEY, key, strict=True)),
            np.log(base.cases[key]),
            np.log(new.cases[key]),
            level,
            within,
            _modes(key, base, new),
        )
        for key in common
    ]
    if len(single) == 1:
        return single
    sides = [_joint(side, common) for side in (base, new)]
    return [_compare({}, sides[0], sides[1], _CONFIDENCE, within, ""), *single]


def _joint(side: Side, keys: Sequence[tuple[Any, ...]]) -> np.ndarray:
    """The mean logarithm over the cases, for each repetition that has them all."""
    repetitions = min(len(side.cases[key]) for key in keys)
    table = np.log([side.cases[key][:repetitions] for key in keys])
    return np.asarray(table.mean(axis=0))


def _modes(key: tuple[Any, ...], base: Side, new: Side) -> str:
    which = (key in base.multimodal, key in new.multimodal)
    return {(True, True): "both", (True, False): "base", (False, True): "new"}.get(which, "")


def _compare(
    case: dict[str, Any], base: np.ndarray, new: np.ndarray, level: float, within: float, multimodal: str
) -> Comparison:
    """Welch's interval of the difference of the mean logarithms."""
    base, new = base[np.isfinite(base)], new[np.isfinite(new)]
    if not base.size or not new.size:
        nan = math.nan
        return Comparison(case, nan, nan, base.size, new.size, nan, None, None, None, "unsure", multimodal)
    difference = float(new.mean() - base.mean())
    low = high = effect = None
    if base.size > 1 and new.size > 1:
        parts = np.array([base.var(ddof=1) / base.size, new.var(ddof=1) / new.size])
        error = math.sqrt(parts.sum())
        if error > 0:
            freedom = float(parts.sum() ** 2 / np.sum(parts**2 / (np.array([base.size, new.size]) - 1)))
            margin = t_quantile(freedom, (1 + level) / 2) * error
            pooled = math.sqrt((base.var(ddof=1) + new.var(ddof=1)) / 2)
            effect = difference / pooled
        else:
            margin = 0.0
        low, high = math.exp(difference - margin), math.exp(difference + margin)
    return Comparison(
        case=case,
        base_us=math.exp(float(base.mean())),
        new_us=math.exp(float(new.mean())),
        base_repetitions=base.size,
        new_repetitions=new.size,
        ratio=math.exp(difference),
        low=low,
        high=high,
        effect=effect,
        verdict=_verdict(math.exp(difference), low, high, within),
        multimodal=multimodal,
    )


def _verdict(ratio: float, low: float | None, high: float | None, within: float) -> str:
    if low is None or high is None:
        return "unsure"
    if 1 / (1 + within) <= low and high <= 1 + within:
        return "same"
    if low > 1 and ratio > 1 + within:
        return "slower"
    return "faster" if high < 1 and ratio < 1 / (1 + within) else "unsure"


def t_quantile(freedom: float, probability: float) -> float:
    """Quantile of Student's t for a probability above one half, by bisection of its distribution function.

    The degrees of freedom are rounded down (to 1 at least), for which the distribution function is a finite sum
    (Abramowitz and Stegun, 26.7.3 and 26.7.4).
    """
    whole = max(1, math.floor(freedom))
    low, high = 0.0, 1.0
    while _t_below(high, whole) < probability:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_below(middle, whole) < probability else (low, middle)
    return high


def _t_below(t: float, freedom: int) -> float:
    """P(T <= t) for t >= 0."""
    angle = math.atan2(t, math.sqrt(freedom))
    square = math.cos(angle) ** 2
    term = total = math.cos(angle) if freedom % 2 else 1.0
    for k in range(2 + freedom % 2, freedom - 1, 2):
        term *= square * (k - 1) / k
        total += term
    if freedom == 1:
        inside = 2 * angle / math.pi
    elif freedom % 2:
        inside = 2 / math.pi * (angle + math.sin(angle) * total)
    else:
        inside = math.sin(angle) * total
    return 0.5 + inside / 2


# ---- Manifests


def manifest_differences(base: Side, new: Side) -> Iterator[tuple[str, str, str]]:
    """Name, value of the base, value of the new one; nothing that differs between any two runs (times, ids)."""
    left_out = ("run", "started", "job", "launcher")
    one, two = (dict(_flat("", side.manifest)) for side in (base, new))
    for name in sorted({*one, *two}):
        if name.split(".")[0] not in left_out and one.get(name) != two.get(name):
            if name == "argv" and isinstance(one.get(name), list) and isinstance(two.get(name), list):
                yield from _arguments_that_differ(one[name], two[name])
            else:
                yield name, _shown(one, name), _shown(two, name)


def _arguments_that_differ(base: Sequence[str], new: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """One row, if any but the place of the records differ."""
    one, two = Counter(_options_of(base)), Counter(_options_of(new))
    texts = [" ".join(more.elements()) or "without" for more in (one - two, two - one)]
    if one != two:
        yield "argv", _cut(texts[0]), _cut(texts[1])


def _options_of(arguments: Sequence[str]) -> list[str]:
    """The arguments, each option with the values that follow it, without --log-dir."""
    found: list[str] = []
    for argument in map(str, arguments):
        if found and found[-1].startswith("-") and not argument.startswith("-"):
            found[-1] += f" {argument}"
        else:
            found.append(argument)
    return [option for option in found if re.split("[ =]", option)[0] != "--log-dir"]


def _shown(values: dict[str, Any], name: str) -> str:
    text = json.dumps(values[name], ensure_ascii=False) if name in values else "not set"
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= 120 else text[:117] + "..."


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else str(name), item)
    else:
        yield prefix, value
