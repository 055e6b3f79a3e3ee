"""The pictures of the report, by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpccoll.runs.analysis import Analysis
from hpccoll.runs.store import RunError, Store, need
from hpccoll.runs.tables import CASE_KEY, CaseRow
from hpccoll.units import format_bytes

__all__ = ["Picture", "draw", "write_plots"]

_GROUP = tuple(name for name in CASE_KEY if name not in ("engine", "nbytes", "count"))
_WIDTH_INCHES = 7.0
_MOST_METRICS = 6
_MOST_POINTS = 1000
_MARKERS = "osD^v<>P"
_RC = {
    "svg.fonttype": "none",  # text stays text: smaller, and it can be found and copied
    "svg.hashsalt": "hpccoll",
    "font.size": 9.0,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "figure.constrained_layout.use": True,
}

# Median and range at each step, or over stretches of steps where there are too many.
_STEPS = """
WITH shown AS (SELECT * FROM numbers WHERE name = $name AND isfinite(value)),
ends AS (SELECT min(step) AS first, max(step) - min(step) + 1 AS width FROM shown)
SELECT min(step), median(value), min(value), max(value) FROM shown, ends
GROUP BY CASE WHEN width > $most THEN (step - first) * $most // width ELSE step END ORDER BY 1
"""


@dataclass(frozen=True)
class Picture:
    """One figure.

    Attributes
    ----------
    name : str
        For its file.
    title : str
        What it shows, in a line.
    figure
        A matplotlib figure.
    """

    name: str
    title: str
    figure: Any

    def svg(self) -> bytes:
        """The picture as SVG, the same for the same data."""
        return self._saved("svg", metadata={"Date": None, "Creator": None})

    def png(self) -> bytes:
        """The picture as PNG."""
        return self._saved("png", dpi=150)

    def _saved(self, form: str, **options: Any) -> bytes:
        stream = io.BytesIO()
        with need("matplotlib").rc_context(_RC):
            self.figure.savefig(stream, format=form, **options)
        return stream.getvalue()


def write_plots(directory: Path, pictures: list[Picture]) -> None:
    """Write every picture as PNG and as SVG."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for picture in pictures:
            (directory / f"{picture.name}.svg").write_bytes(picture.svg())
            (directory / f"{picture.name}.png").write_bytes(picture.png())
    except OSError as exc:
        raise RunError(f"cannot write into {directory}: {exc.strerror or exc}") from exc


def draw(found: Analysis, store: Store) -> list[Picture]:
    """Every picture for which there is something to show."""
    need("matplotlib.figure")
    with need("matplotlib").rc_context(_RC):
        return list(_all(found, store))


def _all(found: Analysis, store: Store) -> Iterator[Picture]:
    groups: dict[tuple[Any, ...], list[CaseRow]] = {}
    for row in found.cases:
        if row.time_us is not None:
            groups.setdefault(tuple(getattr(row, name) for name in _GROUP), []).append(row)
    for number, rows in enumerate(groups.values(), 1):
        what = _words(rows[0])
        if any(row.nbytes for row in rows):
            title = f"Time of {what} against size, with 95 % intervals and fits"
            yield Picture(f"time-{number}", title, _times(rows, found.fits))
            yield Picture(f"bandwidth-{number}", f"Bandwidth of {what} against size", _bandwidth(rows))
        else:
            yield Picture(f"time-{number}", f"Time of {what}", _bars(rows))
    if any(row.lateness_us is not None for row in found.ranks):
        yield Picture("lateness", "Lateness of every rank, by host and rank on it", _heatmap(found))
        title = "Distribution of lateness over the ranks, and what the clocks can tell"
        yield Picture("ranks", title, _over_ranks(found))
    if found.metrics:
        yield Picture(
            "metrics", "Metrics: median over the ranks at each step, and their range", _metrics(found, store)
        )


def _words(row: CaseRow) -> str:
    parts = [row.collective, row.dtype, row.op, "in place" if row.in_place else None, f"mode {row.mode}"]
    return ", ".join(str(part) for part in parts if part)


def _new(height: float, **options: Any) -> tuple[Any, Any]:
    figure = need("matplotlib.figure").Figure(figsize=(_WIDTH_INCHES, height))
    return figure, figure.subplots(**options)


def _by_engine(rows: list[CaseRow]) -> dict[str, list[CaseRow]]:
    engines: dict[str, list[CaseRow]] = {}
    for row in sorted(rows, key=lambda row: row.nbytes):
        engines.setdefault(row.engine, []).append(row)
    return engines


def _size_axis(axes: Any, rows: list[CaseRow]) -> None:
    sizes = sorted({row.nbytes for row in rows if row.nbytes})
    axes.set_xscale("log", base=2)
    shown = sizes[:: max(1, len(sizes) // 10)]
    axes.set_xticks(shown, [format_bytes(size) for size in shown])
    axes.minorticks_off()
    axes.set_xlabel("bytes")


def _log_axis(axes: Any) -> None:
    """A logarithmic y axis that has two numbers at least: within one decade there may be no power of ten."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if np.floor(np.log10(high)) - np.ceil(np.log10(low)) < 1:
        ticker = need("matplotlib.ticker")
        axes.yaxis.set_major_locator(ticker.MaxNLocator(nbins=6, min_n_ticks=3))
        axes.yaxis.set_major_formatter(ticker.ScalarFormatter(useOffset=False))
        axes.yaxis.set_minor_locator(ticker.NullLocator())


def _times(rows: list[CaseRow], fits: list[dict[str, Any]]) -> Any:
    engines = _by_engine(rows)
    several = len(engines) > 1
    rows_of_axes = {"nrows": 1 + several, "height_ratios": [3, 1.4][: 1 + several]}
    figure, axes = _new(5.5 if several else 4.0, sharex=True, squeeze=False, **rows_of_axes)
    top = axes[0, 0]
    for marker, (engine, its) in zip(_cycle(), engines.items(), strict=False):
        sized = [row for row in its if row.nbytes]
        x, y = [row.nbytes for row in sized], [row.time_us or 0.0 for row in sized]
        low = [(row.time_us or 0.0) - (row.ci_low_us or row.time_us or 0.0) for row in sized]
        high = [(row.ci_high_us or row.time_us or 0.0) - (row.time_us or 0.0) for row in sized]
        # Of few launches the interval may reach below 0, which a logarithmic axis does not have.
        bars = [np.clip(low, 0, 0.9 * np.array(y)), np.maximum(high, 0)]
        line = top.errorbar(x, y, bars, marker=marker, ms=4, lw=1.2, capsize=2, label=engine)
        for fit in fits:
            if fit["engine"] == engine and all(fit[name] == getattr(sized[0], name) for name in _GROUP):
                for part in fit["segments"]:
                    ends = np.geomspace(part["first_nbytes"], part["last_nbytes"], 20)
                    fitted = part["alpha_us"] + part["us_per_byte"] * ends
                    top.plot(ends, fitted, ls=":", lw=1, color=line[0].get_color())
    _log_axis(top)
    top.set_ylabel("time of the slowest rank, us")
    top.legend()
    _size_axis(axes[-1, 0], rows)
    if several:
        _ratios(axes[1, 0], engines)
    return figure


def _ratios(axes: Any, engines: dict[str, list[CaseRow]]) -> None:
    first, *others = engines.items()
    base = {row.nbytes: row.time_us for row in first[1]}
    axes.axhline(1.0, color="black", lw=0.8)
    axes.plot([], [], marker=_MARKERS[0])  # the first engine's colour stays its own
    for marker, (engine, its) in zip(_MARKERS[1:] * 4, others, strict=False):
        both = [row for row in its if row.nbytes and base.get(row.nbytes)]
        ratios = [(row.time_us or 0.0) / (base[row.nbytes] or 1.0) for row in both]
        axes.plot([row.nbytes for row in both], ratios, marker=marker, ms=4, lw=1.2, label=engine)
    axes.set_ylabel(f"time relative\nto {first[0]}")


def _cycle() -> str:
    return _MARKERS * 4


def _bandwidth(rows: list[CaseRow]) -> Any:
    figure, axes = _new(3.6)
    bus = any(row.busbw_gb_per_s is not None for row in rows)
    for marker, (engine, its) in zip(_cycle(), _by_engine(rows).items(), strict=False):
        sized = [(row.nbytes, row.busbw_gb_per_s if bus else row.algbw_gb_per_s) for row in its if row.nbytes]
        x, y = [size for size, _ in sized], [rate or np.nan for _, rate in sized]
        axes.plot(x, y, marker=marker, ms=4, lw=1.2, label=engine)
    _log_axis(axes)
    axes.set_ylabel(f"{'busbw' if bus else 'algbw'}, GB/s")
    axes.legend()
    _size_axis(axes, rows)
    return figure


def _bars(rows: list[CaseRow]) -> Any:
    figure, axes = _new(1.0 + 0.4 * len(rows))
    axes.barh([row.engine for row in rows], [row.time_us or 0.0 for row in rows])
    axes.set_xlabel("time of the slowest rank, us")
    return figure


def _heatmap(found: Analysis) -> Any:
    hosts: dict[str, list[float]] = {}
    for row in found.ranks:
        hosts.setdefault(row.host, []).append(np.nan if row.lateness_us is None else row.lateness_us)
    width = max(map(len, hosts.values()))
    grid = np.full((len(hosts), width), np.nan)
    for number, values in enumerate(hosts.values()):
        grid[number, : len(values)] = values
    figure, axes = _new(min(9.0, 1.5 + 0.25 * len(hosts)))
    axes.grid(False)
    image = axes.imshow(grid, aspect="auto", interpolation="nearest", cmap="viridis")
    figure.colorbar(image, ax=axes, label="late by, us")
    step = max(1, len(hosts) // 30)
    names = list(hosts)[::step]
    axes.set_yticks(range(0, len(hosts), step), names)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("rank on the host")
    return figure


def _over_ranks(found: Analysis) -> Any:
    figure, axes = _new(3.2)
    known = sorted(
        (row for row in found.ranks if row.lateness_us is not None), key=lambda row: row.lateness_us or 0.0
    )
    place = np.unique(np.linspace(0, len(known) - 1, min(len(known), _MOST_POINTS)).round().astype(int))
    values = np.array([known[i].lateness_us or 0.0 for i in place])
    bounds = np.array([known[i].uncertainty_us or 0.0 for i in place])
    axes.fill_between(place, -bounds, bounds, alpha=0.25, label="not told apart by the clocks", step="mid")
    marker = "o" if len(known) <= 100 else ""
    axes.plot(place, values, marker=marker, ms=3, lw=1, label="lateness (median over the samples)")
    axes.set_xlabel("ranks, the latest on the right")
    axes.set_ylabel("us")
    if len(known) <= 16:
        axes.set_xticks(place, [str(row.rank) for row in known])
    axes.legend()
    return figure


def _metrics(found: Analysis, store: Store) -> Any:
    names = [row.name for row in found.metrics][:_MOST_METRICS]
    figure, axes = _new(2.2 * len(names), nrows=len(names), sharex=True, squeeze=False)
    for panel, name in zip(axes[:, 0], names, strict=True):
        data = np.array(
            store.db.execute(_STEPS, {"name": name, "most": _MOST_POINTS}).fetchall(), dtype=float
        )
        data = data.reshape(-1, 4)
        panel.fill_between(data[:, 0], data[:, 2], data[:, 3], alpha=0.25)
        panel.plot(data[:, 0], data[:, 1], lw=1.2)
        panel.set_ylabel(name)
    axes[-1, 0].set_xlabel("step")
    return figure
