"""What is known of a run as tables, and the health of the run before them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpccoll.runs.analysis import Analysis
from hpccoll.runs.lateness import HostRow, RankRow
from hpccoll.runs.nodeset import fold_ranks
from hpccoll.runs.screen import Table, number, print_table
from hpccoll.runs.tables import CaseRow
from hpccoll.units import format_bytes, format_time_us

__all__ = ["case_table", "print_analysis", "tables"]

_MOST_ROWS = 20
_MOST_METRICS = 8


def case_table(rows: Sequence[CaseRow]) -> Table:
    """The statistics per collective, engine and bytes."""
    titles = (
        *(
            "collective",
            "engine",
            "bytes",
            "dtype",
            "op",
            "mode",
            "ranks",
            "launches",
            "samples",
            "incomplete",
        ),
        *("time us", "ci95 low", "ci95 high", "p95", "p99", "max", "algbw GB/s", "busbw GB/s"),
        *("wrong", "modes", "flags"),
    )
    cells = [
        [
            row.collective,
            row.engine + (" (histogram)" if row.source == "histogram" else ""),
            format_bytes(row.nbytes),
            row.dtype or "",
            row.op or "",
            row.mode,
            str(row.ranks),
            str(row.launches),
            str(row.iterations),
            str(row.incomplete),
            number(row.time_us),
            number(row.ci_low_us),
            number(row.ci_high_us),
            number(row.time_p95_us),
            number(row.time_p99_us),
            number(row.time_max_us),
            number(row.algbw_gb_per_s),
            number(row.busbw_gb_per_s),
            str(row.wrong),
            "several" if row.multimodal else "",
            row.flags,
        ]
        for row in rows
    ]
    return _narrow("times per call, of the slowest rank", titles, cells)


_OFTEN_ONE = ("collective", "dtype", "op", "mode", "ranks", "launches")


def _narrow(title: str, titles: Sequence[str], cells: list[list[str]]) -> Table:
    """Without columns that say nothing in any row; what is the same in all rows is in the title."""
    kept, same = [], []
    for column, name in enumerate(titles):
        values = {row[column] for row in cells}
        if values <= {"", "n/a"} or (name in ("incomplete", "wrong") and values == {"0"}):
            continue
        if name in _OFTEN_ONE and len(values) == 1 and len(cells) > 1:
            (value,) = values
            unit = {"ranks": "rank", "launches": "launch"}.get(name)
            same.append(f"{value} {unit if value == '1' else name}" if unit else value)
        else:
            kept.append(column)
    rows = [[row[column] for column in kept] for row in cells]
    return ": ".join(filter(None, (title, ", ".join(same)))), [titles[column] for column in kept], rows


def tables(found: Analysis, most: int | None = None) -> Iterator[Table]:
    """Every table that has rows; `most` limits those with a row per rank."""
    if found.cases:
        yield case_table(found.cases)
    if found.ranks:
        yield _rank_table(found, most)
    if len(found.hosts) > 1:
        yield (
            f"hosts: {len(found.hosts)}",
            ("host", "ranks", "late", "stragglers", "late by", "known within", "came last in"),
            [
                [
                    row.host,
                    str(row.ranks),
                    str(row.late),
                    str(row.stragglers),
                    *_lateness(row),
                    f"{100 * row.last_share:.0f} %",
                ]
                for row in found.hosts[:most]
            ],
        )
    if found.fits:
        yield _fit_table(found)
    if found.metrics:
        yield (
            "metrics",
            (
                *("name", "ranks", "steps", "median", "at first step", "at last step"),
                *("least rank", "least", "most rank", "most", "slowdown", "nan/inf"),
            ),
            [
                [
                    row.name, str(row.ranks), str(row.steps), number(row.median), number(row.first), number(row.last),
                    number(row.low_rank, "d"), number(row.low), number(row.high_rank, "d"), number(row.high),
                    number(row.slowdown, ".3f"), str(row.not_finite),
                ]
                for row in found.metrics
            ],
        )  # fmt: skip
        if any(len(row.by_rank) > 1 for row in found.metrics):
            yield _metrics_by_rank(found, most)
    if found.events:
        yield (
            "events",
            ("level", "kind", "events", "on ranks", "first"),
            [
                [
                    item["level"],
                    item["kind"],
                    str(item["events"]),
                    fold_ranks(item["ranks"]),
                    item["first"][:120],
                ]
                for item in found.events[:most]
            ],
        )


def _lateness(row: RankRow | HostRow) -> tuple[str, str]:
    """Late by, and known within; below its uncertainty a lateness is not claimed."""
    if row.lateness_us is None or row.uncertainty_us is None:
        return "n/a", "n/a"
    bound = format_time_us(row.uncertainty_us)
    return format_time_us(row.lateness_us) if row.lateness_us > row.uncertainty_us else f"< {bound}", bound


def _rank_table(found: Analysis, most: int | None) -> Table:
    """Stragglers first, then by lateness."""
    order = sorted(found.ranks, key=lambda row: (not row.straggler, -(row.lateness_us or 0.0), row.rank))
    shown = order[:most]
    title = f"ranks: {len(found.stragglers)} of {len(order)} stragglers"
    if len(shown) < len(order):
        title += f"; the first {len(shown)}, --json has all"
    rows = [
        [
            str(row.rank),
            row.host,
            "yes" if row.straggler else "",
            *_lateness(row),
            f"{100 * row.last_share:.0f} %",
            f"{100 * row.cost:.0f} %",
            f"{row.call_ratio:.3f}",
        ]
        for row in shown
    ]
    titles = (
        "rank",
        "host",
        "straggler",
        "late by",
        "known within",
        "came last in",
        "cost",
        "in calls / median rank",
    )
    return title, titles, rows


def _metrics_by_rank(found: Analysis, most: int | None) -> Table:
    """Metrics that one rank alone has (an evaluation of all of them) are in the other table."""
    rows = [row for row in found.metrics if len(row.by_rank) > 1][:_MOST_METRICS]
    ranks = sorted({rank for row in rows for rank in row.by_rank})
    title = f"metrics of {len(ranks)} ranks, median over the steps"
    if len(ranks[:most]) < len(ranks):
        title += f"; the first {most}, --json has all"
    hosts = {rank: host for host, members in found.health.hosts.items() for rank in members}
    cells = [
        [str(rank), hosts.get(rank, ""), *(number(row.by_rank.get(rank)) for row in rows)]
        for rank in ranks[:most]
    ]
    return title, ("rank", "host", *(row.name for row in rows)), cells


def _fit_table(found: Analysis) -> Table:
    rows = [
        [
            fit["collective"],
            fit["engine"],
            fit["dtype"] or "",
            fit["op"] or "",
            f"{format_bytes(part['first_nbytes'])} to {format_bytes(part['last_nbytes'])}",
            number(part["alpha_us"]),
            number(part["gb_per_s"]),
            f"{100 * part['residual']:.0f} %",
        ]
        for fit in found.fits
        for part in fit["segments"]
    ]
    titles = ("collective", "engine", "dtype", "op", "bytes", "latency us", "1/beta GB/s", "residual")
    return "fit: time = latency + bytes * beta", titles, rows


def print_analysis(found: Analysis) -> None:
    """Health first, then the tables."""
    print(found.health.headline)
    for finding in found.health.findings:
        print(f"! {finding.text}")
    if found.health.dropped_lines:
        print(f"! {found.health.dropped_lines} lines of the run are left out of the tables")
    for host in found.hosts:
        if host.stragglers:
            print(f"! {host.text}")
    for table in tables(found, _MOST_ROWS):
        print_table(table)
