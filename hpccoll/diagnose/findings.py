"""What can be wrong with a job: the kinds, each with its exit status, and one finding."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["KINDS", "MOST_STORIES", "ORDER", "Finding"]

KINDS = {
    "nothing": (0, "nothing wrong found"),
    "operation-mismatch": (10, "ranks are in different operations"),
    "argument-mismatch": (11, "ranks called an operation with different arguments"),
    "skipped-collective": (12, "a rank left out a collective, or made one too many"),
    "order-swapped": (
        13,
        "collectives of several communicators were called in different order, or not by all members",
    ),
    "missing-rank": (14, "a rank did not come to an operation that others wait in"),
    "rank-raised": (15, "a rank raised an exception"),
    "rank-exited": (16, "a rank came to its end before the others"),
    "no-dump": (17, "a rank left no dump: killed, out of memory, stopped, or its host is lost"),
    "unmatched-message": (18, "a send and a receive do not fit together"),
    "cycle": (19, "ranks wait for one another in a circle of sends and receives"),
    "all-inside": (20, "all ranks are inside the same operation: the network, or a rank that is frozen"),
    "check": (21, "check mode refused an operation"),
    "terminated": (22, "the job was ended from outside"),
    "unknown": (23, "the dumps do not tell"),
}
"""Exit status and meaning of every kind of finding."""

# Several kinds in one job: which is the cause, and which may follow from it.
ORDER = (
    "skipped-collective",
    "operation-mismatch",
    "argument-mismatch",
    "check",
    "rank-raised",
    "unmatched-message",
    "order-swapped",
    "cycle",
    "rank-exited",
    "no-dump",
    "missing-rank",
    "all-inside",
    "terminated",
    "unknown",
)

MOST_STORIES = 5
"""How many calls, places or exceptions one finding tells in full."""


@dataclass
class Finding:
    """One thing that is wrong.

    Attributes
    ----------
    kind : str
        A key of `KINDS`.
    ranks : list of int
        The guilty ones; of all that are involved, if nothing tells who is.
    lines : list of str
        What happened, in words.
    waiting : list of int
        Ranks that wait, over whatever way, because of it.
    comm, seq : str, int or None
        The collective that it shows at.
    sites : list of str
        The guilty ranks' lines of code.
    minor : bool
        It is a fault, but the job went on after it.
    """

    kind: str
    ranks: list[int]
    lines: list[str]
    waiting: list[int] = field(default_factory=list)
    comm: str | None = None
    seq: int | None = None
    sites: list[str] = field(default_factory=list)
    minor: bool = False

    @property
    def status(self) -> int:
        return KINDS[self.kind][0]
