"""Check mode: before each collective the ranks make sure that they mean the same one.

They agree over a communicator of their own, a duplicate that carries nothing else. In the good case that is one
all-reduce of 24 bytes. Only where the ranks differ do they exchange what each of them has called, and all of them
raise the same error. A rank that waits for others answers to those who wait too; when the limit of one is over, it
asks who is there and tells all ranks who is not. Those who are there raise, and who comes later raises then.
"""

from __future__ import annotations

import functools
import hashlib
import time
import weakref
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from hpccoll.comm.finite import first_odd
from hpccoll.comm.signature import Signature, describe, pairs, sent, signature
from hpccoll.errors import MismatchError, NotFiniteError
from hpccoll.failures import transfer_error
from hpccoll.recorder import exceptions, limits, ring, seam
from hpccoll.recorder.places import folded

__all__ = ["DEFAULT_LIMIT_S", "Agreement"]

DEFAULT_LIMIT_S = 600.0
"""How long a rank waits for the others where no other limit holds."""

# The watchdog ends the process at the limit itself. This error says more, so it has to come before.
_SHARE_OF_LIMIT = 0.75
_ROLL_CALL_S = 2.0
_SPINS = 500
_LONGEST_PAUSE_S = 1e-3
_LISTEN_EVERY_S = 0.02
_MOST_LINES = 20

_CALL, _ANSWER, _VERDICT = 1, 2, 3  # tags on the shadow communicator

Call = tuple[Signature, str, str, str | None, Any]
"""What a rank tells of its call: signature, text, call site, its first NaN or infinity, lengths of an alltoall."""


class Agreement:
    """Check mode of one communicator.

    Parameters
    ----------
    mpi
        The communicator; every rank has to make this object.
    log
        The recorder's record of it.
    owner
        The Comm; its `limit_s`, if it has one, is the limit.
    finite : bool
        Whether to look for NaN and infinity too.
    """

    def __init__(self, mpi: Any, log: ring.Log, owner: Any, finite: bool):
        self.rank, self.size = mpi.rank, mpi.size
        self.shadow = mpi.Dup()
        self.finite = finite
        self.when_missing: Callable[[], None] | None = None
        self._log = log
        self._owner = weakref.ref(owner)
        self._number = self._seq = 0
        self._early: list[tuple[int, int]] = []
        self._broken: BaseException | None = None
        self._kept: list[Any] = []
        self._words, self._all = array("Q", [0] * 3), array("Q", [0] * 3)
        self._spec = [self._words, 3, MPI.UINT64_T], [self._all, 3, MPI.UINT64_T]

    def check(self, entry: list[Any], args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Return if every rank has come with the same call; the hook of :mod:`hpccoll.recorder.seam`."""
        if self._broken is not None:
            raise self._broken
        method = entry[ring.METHOD]
        mine = signature(method, self.rank, self.size, args, options)
        odd = first_odd(sent(method, self.rank, args, options)) if self.finite else None
        lengths = pairs(method, options)
        self._number += 1
        self._seq = entry[ring.SEQ]

        def tell() -> Call:
            site, function = seam.site(entry)
            text = describe(method, args, options, self._log.names.get(method))
            return mine, text, f"{site} in {function}", odd, lengths

        try:
            same, all_finite = self._compare(mine, odd, entry, tell)
            if same and lengths is not None:
                same = self._lengths_meet(lengths, entry, tell)
            if same and all_finite:
                return
            calls = self.shadow.allgather(tell())
        except MPI.Exception as raised:
            where = f"{method} (check mode) on rank {self.rank} of {self.size}"
            raise transfer_error(where, raised, self.shadow) from raised
        error: MismatchError | NotFiniteError = self._mismatch(calls) if not same else self._not_finite(calls)
        exceptions.remember(error, "check", str(error).partition(". Nothing")[0])
        raise error

    def free(self) -> None:
        """Free the communicator beneath; every rank has to call it."""
        if self._broken is None:  # else a request that will never be complete uses it
            self.shadow.Free()

    def revoke(self) -> None:
        """Have those raise who wait here."""
        if not self.shadow.Is_revoked():
            self.shadow.Revoke()

    # ---- The good case

    def _compare(
        self, mine: Signature, odd: str | None, entry: list[Any], tell: Callable[[], Call]
    ) -> tuple[bool, bool]:
        word = _hash(mine)
        words = self._words
        words[0], words[1], words[2] = word, ~word & _ALL_BITS, 0 if odd else _ALL_BITS
        self._wait(self.shadow.Iallreduce(*self._spec, MPI.BAND), entry, tell)
        if self.shadow.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG):
            self._messages()  # the others may have given up, and this rank comes too late
        both, neither, finite = self._all
        return both == ~neither & _ALL_BITS, finite != 0

    def _lengths_meet(
        self, lengths: tuple[list[int], list[int]], entry: list[Any], tell: Callable[[], Call]
    ) -> bool:
        """Whether every length that goes out is the one that is expected: all of them cancel out."""
        outgoing, incoming = lengths
        total = sum(_hash((self.rank, other, n)) for other, n in enumerate(outgoing))
        total -= sum(_hash((other, self.rank, n)) for other, n in enumerate(incoming))
        self._words[0] = total & _ALL_BITS
        self._wait(self.shadow.Iallreduce(*self._spec, MPI.SUM), entry, tell)
        return self._all[0] == 0

    def _wait(self, request: Any, entry: list[Any], tell: Callable[[], Call]) -> None:
        for _ in range(_SPINS):
            if request.Test():
                return
        limit_s = self._limit_s(entry)
        begun = time.monotonic()
        # Not all at once: one who asks is enough.
        deadline = begun + limit_s * _SHARE_OF_LIMIT + min(1.0, limit_s * 0.05) * self.rank / self.size
        listen, pause_s = begun + _LISTEN_EVERY_S, 1e-5
        while not request.Test():
            now = time.monotonic()
            if now > listen:
                self._listen(request, tell, limit_s)
                listen = now + _LISTEN_EVERY_S
                if now > deadline:
                    if request.Test():  # this process itself may have been stopped
                        return
                    self._call_the_roll(request, tell, limit_s, now - begun)
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)

    def _limit_s(self, entry: list[Any]) -> float:
        own: float | None = getattr(self._owner(), "limit_s", None)
        given = limits.of_thread(entry[ring.THREAD]) if entry[ring.BLOCKING] else entry[ring.LIMIT_S]
        found = [limit for limit in (own, given) if limit is not None]
        return min(found) if found else DEFAULT_LIMIT_S

    # ---- Some ranks do not come

    def _listen(self, request: Any, tell: Callable[[], Call], limit_s: float) -> None:
        """Answer to a rank that has lost patience, and raise what it finds out."""
        callers = [source for tag, source, _ in self._messages() if tag == _CALL]
        if not callers:
            return
        for caller in callers:
            self._send((self._number, tell()), caller, _ANSWER)
        # The verdict of whichever rank comes first.
        deadline = time.monotonic() + 2 * self._roll_call_s(limit_s) + _ROLL_CALL_S
        while time.monotonic() < deadline and not request.Test():
            for tag, source, _ in self._messages():
                if tag == _CALL:
                    self._send((self._number, tell()), source, _ANSWER)
            time.sleep(_LONGEST_PAUSE_S)

    def _call_the_roll(self, request: Any, tell: Callable[[], Call], limit_s: float, waited_s: float) -> None:
        others = [rank for rank in range(self.size) if rank != self.rank]
        for rank in others:
            self._send((self._number, None), rank, _CALL)
        here = {self.rank: tell()}
        deadline = time.monotonic() + self._roll_call_s(limit_s)
        while time.monotonic() < deadline and len(here) < self.size:
            if request.Test():
                return  # the last one has come just now
            for tag, source, call in self._messages():
                if tag == _ANSWER:
                    here[source] = call
                elif tag == _CALL:
                    self._send((self._number, tell()), source, _ANSWER)
            time.sleep(_LONGEST_PAUSE_S)
        if request.Test() or len(here) == self.size:
            return  # all are on their way
        for rank in others:
            self._send((self._number, (here, waited_s)), rank, _VERDICT)
        self._give_up(here, waited_s)

    def _roll_call_s(self, limit_s: float) -> float:
        return min(_ROLL_CALL_S, 0.15 * limit_s)

    def _messages(self) -> list[tuple[int, int, Any]]:
        """What has come for this collective. A verdict raises."""
        due = [rank for number, rank in self._early if number == self._number]
        found: list[tuple[int, int, Any]] = [(_CALL, rank, None) for rank in due]
        self._early = [early for early in self._early if early[0] > self._number]
        status = MPI.Status()
        while self.shadow.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status):
            source, tag = status.source, status.tag
            number, content = self.shadow.recv(source=source, tag=tag)
            if number < self._number:
                continue  # of one that has been completed meanwhile
            if number > self._number:  # that rank knows already that this one has come here
                self._early.append((number, source))
                continue
            if tag == _VERDICT:
                self._give_up(*content)
            found.append((tag, source, content))
        return found

    def _send(self, what: Any, rank: int, tag: int) -> None:
        self._kept.append(self.shadow.isend(what, rank, tag))  # who does not come never takes it

    def _give_up(self, here: dict[int, Call], waited_s: float) -> None:
        missing = [rank for rank in range(self.size) if rank not in here]
        text = (
            f"{self._title()}: {_ranks(missing)} {'has' if len(missing) == 1 else 'have'} not come to it within "
            f"{waited_s:.3g} s. Nothing has been sent, and the communicator cannot be used any more. There are"
        )
        error = MismatchError(text + self._listing(here))
        error.missing = tuple(missing)
        exceptions.remember(error, "check", text.partition(". Nothing")[0])
        self._broken = error
        if self.when_missing is not None:
            self.when_missing()
        raise error

    # ---- Messages

    def _title(self) -> str:
        return f"check mode: collective {self._seq} of {self._log.name or self._log.id}"

    def _mismatch(self, calls: Sequence[Call]) -> MismatchError:
        if len({call[0] for call in calls}) == 1:
            wrong = next(
                (sender, receiver, calls[sender][4][0][receiver], calls[receiver][4][1][sender])
                for sender in range(self.size)
                for receiver in range(self.size)
                if calls[sender][4][0][receiver] != calls[receiver][4][1][sender]
            )
            text = "rank {0} sends {2} to rank {1}, which expects {3}".format(*wrong)
        else:
            text = f"the ranks differ in {_difference([call[0] for call in calls])}"
        return MismatchError(
            f"{self._title()}: {text}. Nothing has been sent. Called were"
            + self._listing(dict(enumerate(calls)))
        )

    def _not_finite(self, calls: Sequence[Call]) -> NotFiniteError:
        odd = [rank for rank, call in enumerate(calls) if call[3]]
        lines = [f"\n  rank {rank}: {calls[rank][1]} at {calls[rank][2]}: {calls[rank][3]}" for rank in odd]
        error = NotFiniteError(
            f"{self._title()}: {_ranks(odd)} {'brings' if len(odd) == 1 else 'bring'} a NaN or an infinity. "
            f"Nothing has been sent" + "".join(lines[:_MOST_LINES])
        )
        error.ranks = tuple(odd)
        return error

    def _listing(self, calls: dict[int, Call]) -> str:
        groups: dict[tuple[str, str], list[int]] = {}
        for rank, call in sorted(calls.items()):
            groups.setdefault((call[1], call[2]), []).append(rank)
        lines = [f"\n  {_ranks(ranks)}: {text} at {site}" for (text, site), ranks in groups.items()]
        more = len(lines) - _MOST_LINES
        world = ""
        if list(self._log.ranks) != list(range(self.size)):
            world = f"\n  (ranks 0-{self.size - 1} of it are {folded(self._log.ranks)} of the world)"
        return "".join(lines[:_MOST_LINES]) + (f"\n  and {more} more" if more > 0 else "") + world


_ALL_BITS = 2**64 - 1


@functools.lru_cache(maxsize=4096)
def _hash(what: Any) -> int:
    """The same on every rank, which Python's own is not."""
    return int.from_bytes(hashlib.blake2b(repr(what).encode(), digest_size=8).digest(), "little")


def _ranks(ranks: list[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {folded(ranks)}"


def _difference(signatures: Sequence[Signature]) -> str:
    """The first word in which they differ; without the same method the others do not compare."""
    words = [dict(signature) for signature in signatures]
    if len({word["method"] for word in words}) > 1:
        return "the method"
    names = dict.fromkeys(name for word in words for name in word)
    odd = [name for name in names if len({word.get(name) for word in words}) > 1]
    return " and ".join(odd)
