"""``python -m hpccoll.diagnose DUMP_DIR`` says which rank made a job hang, and where."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpccoll.output import run_alone
from hpccoll.runs.nodeset import fold_hosts, fold_ranks

if TYPE_CHECKING:
    from hpccoll.diagnose.verdicts import Diagnosis

FORMAT = "hpccoll.diagnose/1"
_USAGE, _NOTHING_TO_READ = 2, 3
_MOST_GROUPS = 30
_NO_DUMPS = """\
  Dumps are written when an operation is over its limit (HPCCOLL_TIMEOUT_S, hpccoll.timeout), on SIGUSR1, on SIGTERM and
  after an uncaught exception. When a rank is killed, mpirun may end the others before they can write anything;
  start the job with python -m hpccoll.launch, which says whose death came first."""


def _parser() -> argparse.ArgumentParser:
    from hpccoll.diagnose.findings import KINDS

    table = "\n".join(f"  {status:2}  {kind:19} {text}" for kind, (status, text) in KINDS.items())
    parser = argparse.ArgumentParser(
        prog="hpccoll diagnose",
        description="Reads the dumps that hpccoll's watchdog has left of a job (one rank*.json a rank) and says what\n"
        "happened, and which rank is to blame. Needs no MPI.",
        epilog=f"exit status, by the first finding:\n{table}\n   2  a bad option, or a file that cannot be written\n"
        "   3  no dump to read",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "directories",
        type=Path,
        nargs="+",
        metavar="DUMP_DIR",
        help="a directory of dumps, or of such directories (the newest counts); several: those of several hosts",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="the diagnosis as JSON; - is standard output"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    from hpccoll.aside import write_aside
    from hpccoll.diagnose.reading import NothingToRead, read
    from hpccoll.diagnose.verdicts import diagnose
    from hpccoll.runs.screen import progress_bar

    progress, stop = progress_bar("reading")
    try:
        job = read(options.directories, progress)
    except NothingToRead as error:
        print(f"hpccoll diagnose: error: nothing to read: {error}\n{_NO_DUMPS}", file=sys.stderr)
        return _NOTHING_TO_READ
    finally:
        stop()
    found = diagnose(job)
    if options.json is not None:
        text = json.dumps(document(found), indent=1) + "\n"
        if str(options.json) == "-":
            print(text, end="")
            return found.status
        try:
            write_aside(options.json, lambda aside: aside.write_text(text, "utf-8"))
        except OSError as error:
            print(f"hpccoll diagnose: error: --json: {error}", file=sys.stderr)
            return found.status or _USAGE
    print("\n".join(report(found)))
    return found.status


def document(found: Diagnosis) -> dict[str, Any]:
    """What ``--json`` writes."""
    from hpccoll.diagnose.findings import KINDS

    job = found.job
    return {
        "format": FORMAT,
        "verdict": found.kind,
        "meaning": KINDS[found.kind][1],
        "status": found.status,
        "directories": [str(path) for path in job.directories],
        "size": job.size,
        "dumps": len(job.dumps),
        "without_dump": fold_ranks(job.missing),
        "notes": job.notes,
        "findings": [
            {
                "kind": item.kind,
                "status": item.status,
                "ranks": fold_ranks(item.ranks),
                "waiting": fold_ranks(item.waiting),
                "comm": item.comm,
                "seq": item.seq,
                "sites": item.sites,
                "minor": item.minor,
                "text": item.lines,
            }
            for item in found.findings
        ],
        "groups": [{"ranks": fold_ranks(ranks), "text": text} for ranks, text in groups(found)],
    }


def report(found: Diagnosis) -> Iterator[str]:
    """The diagnosis for people."""
    from hpccoll.diagnose.findings import KINDS

    job = found.job
    dumps = list(job.dumps.values())
    hosts = fold_hosts({dump.host for dump in dumps})
    number = dumps[0].job
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(min(dump.written_s for dump in dumps)))
    yield (
        f"{', '.join(map(str, job.directories))}: dumps of {len(dumps)} of {job.size} ranks on {hosts}, "
        f"{f'job {number}, ' if number else ''}{when}"
    )
    for note in job.notes:
        yield f"! {note}"
    yield ""
    yield f"verdict: {found.kind}{_who(found)}: {KINDS[found.kind][1]}"
    for count, item in enumerate(found.findings):
        if count:
            yield f"\nalso: {item.kind}, {_ranks(item.ranks)}: {KINDS[item.kind][1]}"
        yield from (f"  {line}" for line in item.lines)
        if item.waiting and not any(_ranks(item.waiting) in line for line in item.lines):
            yield f"  because of it {_ranks(item.waiting)} {'wait' if len(item.waiting) > 1 else 'waits'}"
    yield "\nranks:"
    shown = list(groups(found))
    texts = [fold_ranks(ranks) for ranks, _ in shown[:_MOST_GROUPS]]
    width = min(24, max(map(len, texts), default=0))
    yield from (f"  {ranks:{width}}  {text}" for ranks, (_, text) in zip(texts, shown, strict=False))
    if len(shown) > _MOST_GROUPS:
        rest = [rank for ranks, _ in shown[_MOST_GROUPS:] for rank in ranks]
        yield f"  and {len(rest)} more ranks in {len(shown) - _MOST_GROUPS} more places (--json has them all)"


def _who(found: Diagnosis) -> str:
    return f", {_ranks(found.findings[0].ranks)}" if found.findings else ""


def _ranks(ranks: Sequence[int]) -> str:
    from hpccoll.diagnose.words import ranks_of

    return ranks_of(ranks)


def groups(found: Diagnosis) -> list[tuple[list[int], str]]:
    """Ranks with the same story, the smallest group first: what is odd stands on top."""
    from hpccoll.diagnose import words

    stories: dict[str, list[int]] = {}
    for rank in range(found.job.size):
        dump = found.job.dumps.get(rank)
        operations = found.graph.waiting.get(rank)
        if dump is None:
            text = "no dump"
        elif operations:
            text = "in " + words.listed([words.operation(item) for item in operations[:3]])
        elif dump.late is not None:
            text = f"late, in {words.operation(dump.late)}"
        elif dump.reason == "exit":
            text = f"came to its end; {words.last_operation(dump)}"
        elif dump.reason in ("exception", "check"):
            line, where = words.raised(dump)
            text = f"raised {line} at {where}"
        else:
            text = f"at {words.doing(dump)}; {words.last_operation(dump)}"
        stories.setdefault(text, []).append(rank)
    return sorted(
        ((ranks, text) for text, ranks in stories.items()), key=lambda entry: (len(entry[0]), entry[0])
    )


if __name__ == "__main__":
    run_alone(main)
