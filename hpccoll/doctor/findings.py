"""What the checks say, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

__all__ = [
    "ERROR",
    "LEVELS",
    "NOTE",
    "OK",
    "WARNING",
    "Finding",
    "as_json",
    "exit_status",
    "merged",
    "report",
    "shortened",
]

OK, NOTE, WARNING, ERROR = LEVELS = ("ok", "note", "warning", "error")
_STATUS = {OK: 0, NOTE: 0, WARNING: 1, ERROR: 3}


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Attributes
    ----------
    check : str
        Name of the check.
    level : str
        ``ok``, ``note``, ``warning`` (it runs, but slowly or not for sure) or ``error`` (it will fail, or be wrong).
    result : str
        One line.
    evidence : str
        What was seen, with the command or file that shows it.
    fix : str
        What to do, in one line.
    hosts : tuple of str
        Where; empty for the job as a whole.
    """

    check: str
    level: str
    result: str
    evidence: str = ""
    fix: str = ""
    hosts: tuple[str, ...] = ()


def shortened(names: Sequence[object], most: int = 6) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(map(str, names[:most]))
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """The same finding of several hosts becomes one of all of them, and each check that is well one line."""
    by_key: dict[tuple[str, ...], Finding] = {}
    for finding in findings:
        key: tuple[str, ...] = (finding.check, finding.level)
        if finding.level in (WARNING, ERROR):
            # What differs from host to host, such as its name, is told by the first.
            key += (finding.fix.replace(finding.hosts[0], "") if finding.hosts else finding.fix,)
        known = by_key.get(key)
        by_key[key] = finding if known is None else replace(known, hosts=known.hosts + finding.hosts)
    return list(by_key.values())


def exit_status(findings: Iterable[Finding]) -> int:
    """0, or 1 if the worst finding is a warning, or 3 if it is an error."""
    return max((_STATUS[finding.level] for finding in findings), default=0)


def report(findings: Sequence[Finding], every: bool) -> str:
    """The findings as text: all of them, or those that need attention."""
    lines = []
    width = max((len(finding.check) for finding in findings), default=0)
    for finding in findings:
        if not every and finding.level in (OK, NOTE):
            continue
        where = ""
        if finding.level in (WARNING, ERROR):
            where = f" [{shortened(finding.hosts)}]" if finding.hosts else ""
        elif len(finding.hosts) > 1:
            where = f" [{finding.hosts[0]}; well on {len(finding.hosts) - 1} more]"
        level = finding.level.upper() if finding.level in (WARNING, ERROR) else finding.level
        lines.append(f"{level:8}{finding.check:{width}}  {finding.result}{where}")
        if finding.level in (WARNING, ERROR):
            lines += [f"{'':{width + 10}}seen: {line}" for line in finding.evidence.splitlines()[:1]]
            lines += [f"{'':{width + 18}}{line}" for line in finding.evidence.splitlines()[1:]]
            lines += [f"{'':{width + 10}}fix:  {finding.fix}"] if finding.fix else []
    counts = {level: sum(finding.level == level for finding in findings) for level in (ERROR, WARNING)}
    lines.append(", ".join(f"{count} {level}{'s' * (count != 1)}" for level, count in counts.items()))
    return "\n".join(lines)


def as_json(findings: Sequence[Finding]) -> list[dict[str, object]]:
    """The findings as JSON holds them."""
    return [{**asdict(finding), "hosts": list(finding.hosts)} for finding in findings]
