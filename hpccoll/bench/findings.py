"""What the rows of a run tell together: fits, guidelines, predictions; as lines and as fields of the document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpccoll.bench.case import Case
from hpccoll.bench.fit import Fit, Segment, fit_times
from hpccoll.bench.guidelines import find_violations
from hpccoll.bench.model import link_of, predict_us
from hpccoll.bench.options import Options, UsageError
from hpccoll.bench.results import FORMAT, Header, Row
from hpccoll.units import format_bytes, format_time_us

__all__ = ["Findings", "find", "late_ranks", "read_model"]

_LATE_SHARE, _LATE_SAMPLES = 0.5, 30


class Findings:
    """Lines to print, and fields of the JSON document."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.fields: dict[str, Any] = {}


def find(
    case: Case, options: Options, header: Header, rows: list[Row], model: dict[str, Any] | None
) -> Findings:
    """Everything that `options` ask for."""
    found = Findings()
    found.lines += late_ranks(rows)
    measured = [row for row in rows if row.time_us is not None]
    hints = find_violations(case.name, measured)
    if options.guidelines:
        found.fields["hints"] = hints
        found.lines += hints or ["guidelines: the collective was nowhere slower than its compositions"]
    fits = dict(_fits(case, measured))
    if options.fit:
        found.fields["fits"] = [_fit_fields(key, fit) for key, fit in fits.items()]
        found.lines += [line for key, fit in fits.items() for line in _fit_lines(key, fit)]
    if options.predict:
        table = [row for key, fit in fits.items() for row in _predictions(case, options, header, key, fit)]
        found.fields["predictions"] = table
        found.lines += _prediction_lines(header.ranks, table)
    if model is not None:
        table = list(_checks(case, header, measured, model))
        found.fields["model_check"] = table
        found.lines += _check_lines(model["header"]["ranks"], header.ranks, table)
    return found


# ---- Who is late


def late_ranks(rows: list[Row]) -> list[str]:
    """One line for each rank that entered last by more than chance and clocks can explain, with its worst row."""
    worst: dict[int, Row] = {}
    for row in rows:
        if row.last_rank is None or row.time_us is None or not _stands_out(row):
            continue
        known = worst.get(row.last_rank)
        if known is None or (known.last_after_us or 0.0) < (row.last_after_us or 0.0):
            worst[row.last_rank] = row
    return [
        f"rank {rank} ({row.last_host}) came last in {100 * (row.last_share or 0):.0f} % of the calls of"
        f" {format_bytes(row.nbytes)}, {format_time_us(row.last_after_us or 0)} after the first; the others' wait"
        f" for it is in the times (clocks within {format_time_us(row.clock_uncertainty_us or 0)})"
        for rank, row in sorted(worst.items())
    ]


def _stands_out(row: Row) -> bool:
    after, share = row.last_after_us or 0.0, row.last_share or 0.0
    return (
        share > _LATE_SHARE
        and row.iterations >= _LATE_SAMPLES
        and after > 2 * (row.clock_uncertainty_us or 0.0)
        and after > 0.5 * (row.time_us or 0.0)
    )


# ---- Fits


_Key = tuple[str, str | None, str | None, int | None]


def _fits(case: Case, rows: list[Row]) -> Iterator[tuple[_Key, Fit]]:
    groups: dict[_Key, list[Row]] = {}
    for row in rows:
        if ":" not in row.engine:  # no compositions
            groups.setdefault((row.engine, row.dtype, row.op, row.root), []).append(row)
    for key, its in groups.items():
        if not case.sized:
            time_us = its[0].time_us or 0.0
            yield key, Fit((Segment(0, 0, 1, time_us, 0.0, 0.0),))
            continue
        fit = fit_times([row.nbytes for row in its], [row.time_us or 0.0 for row in its])
        if fit is not None:
            yield key, fit


def _named(key: _Key) -> dict[str, Any]:
    return dict(zip(("engine", "dtype", "op", "root"), key, strict=True))


def _fit_fields(key: _Key, fit: Fit) -> dict[str, Any]:
    segments = [{**asdict(segment), "gb_per_s": segment.gb_per_s} for segment in fit.segments]
    return {**_named(key), "segments": segments, "switch_points": fit.switch_points}


def _title(key: _Key) -> str:
    return " ".join(str(part) for part in key[:3] if part is not None)


def _fit_lines(key: _Key, fit: Fit) -> list[str]:
    lines = [f"fit of {_title(key)}: time = alpha + beta * bytes"]
    for segment in fit.segments:
        rate = "n/a" if segment.gb_per_s is None else f"{segment.gb_per_s:.3g} GB/s"
        lines.append(
            f"  {format_bytes(segment.first_nbytes):>6} to {format_bytes(segment.last_nbytes):>6}:"
            f" alpha {format_time_us(segment.alpha_us)}, 1/beta {rate}, residual {100 * segment.residual:.0f} % at most"
        )
    switches = ", ".join(f"{format_bytes(a)} to {format_bytes(b)}" for a, b in fit.switch_points)
    return lines + ([f"  it switches between {switches}"] if switches else [])


# ---- Predictions


def _predictions(
    case: Case, options: Options, header: Header, key: _Key, fit: Fit
) -> Iterator[dict[str, Any]]:
    link = link_of(case.name, header.ranks, fit)
    if link is None:
        return
    sizes = sorted({size for segment in fit.segments for size in (segment.first_nbytes, segment.last_nbytes)})
    for ranks in options.predict:
        for nbytes in sizes:
            for algorithm, time_us in predict_us(
                case.name, link, nbytes, ranks, max(header.ranks_per_host)
            ).items():
                yield {
                    **_named(key),
                    "ranks": ranks,
                    "nbytes": nbytes,
                    "algorithm": algorithm,
                    "model_time_us": time_us,
                }


def _prediction_lines(ranks: int, table: list[dict[str, Any]]) -> list[str]:
    if not table:
        return ["MODEL: nothing to predict from one rank, or one size"]
    lines = [f"MODEL, not measured: from the fit on {ranks} ranks; formulas in docs/methods.md"]
    lines.append(f"{'engine':>10} {'ranks':>8} {'bytes':>8} {'algorithm':>20} {'model':>10}")
    lines += [
        f"{row['engine']:>10} {row['ranks']:>8} {format_bytes(row['nbytes']):>8} {row['algorithm']:>20}"
        f" {format_time_us(row['model_time_us']):>10}"
        for row in table
    ]
    return lines


# ---- A prediction against a larger run


def read_model(case: Case, path: Path) -> dict[str, Any]:
    """The JSON document of a run on fewer ranks.

    Raises
    ------
    UsageError
        It cannot be read, or is of another collective.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        collective, ranks, there = (
            content["header"]["collective"],
            content["header"]["ranks"],
            content["format"],
        )
        rows = [Row(**row) for row in content["rows"]]
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise UsageError(f"argument --model: cannot read {path}: {exc}") from None
    if there != FORMAT or collective != case.name:
        raise UsageError(f"argument --model: {path} is a run of {collective} ({there}), not of {case.name}")
    if ranks < 2 or not any(row.time_us for row in rows):
        raise UsageError(f"argument --model: {path} has no times on several ranks")
    return {**content, "rows": rows}


def _checks(case: Case, header: Header, rows: list[Row], model: dict[str, Any]) -> Iterator[dict[str, Any]]:
    fits = dict(_fits(case, [row for row in model["rows"] if row.time_us is not None]))
    for row in rows:
        fit = fits.get((row.engine, row.dtype, row.op, row.root))
        link = None if fit is None else link_of(case.name, model["header"]["ranks"], fit)
        if link is None or row.time_us is None:
            continue
        times = predict_us(case.name, link, row.nbytes, header.ranks, max(header.ranks_per_host))
        algorithm = min(times, key=times.__getitem__)
        yield {
            "engine": row.engine,
            "nbytes": row.nbytes,
            "algorithm": algorithm,
            "model_time_us": times[algorithm],
            "time_us": row.time_us,
            "ratio": row.time_us / times[algorithm] if times[algorithm] else None,
        }


def _check_lines(from_ranks: int, ranks: int, table: list[dict[str, Any]]) -> list[str]:
    lines = [f"MODEL from {from_ranks} ranks against this run on {ranks}: the best algorithm of the model"]
    lines.append(f"{'engine':>10} {'bytes':>8} {'algorithm':>20} {'model':>10} {'measured':>10} {'ratio':>7}")
    for row in table:
        ratio = "n/a" if row["ratio"] is None else f"{row['ratio']:.2f}"
        lines.append(
            f"{row['engine']:>10} {format_bytes(row['nbytes']):>8} {row['algorithm']:>20}"
            f" {format_time_us(row['model_time_us']):>10} {format_time_us(row['time_us']):>10} {ratio:>7}"
        )
    return lines
