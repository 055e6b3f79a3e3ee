"""Going on after ranks have died: revoke, shrink, agree (MPI's user-level failure mitigation, ULFM)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from hpccoll.comm.arguments import is_index
from hpccoll.comm.issuing import Issuing
from hpccoll.errors import ArgumentError, UnsupportedError
from hpccoll.failures import failed_ranks, note_the_dead, ulfm_missing

if TYPE_CHECKING:
    from hpccoll.comm.communicator import Comm


class Surviving(Issuing):
    """What a communicator offers to the ranks that are left."""

    def revoke(self) -> None:
        """Make every operation of this communicator, pending or later, raise on all of its ranks.

        One rank is enough, and it does not wait. The others get a :class:`ProcessFailedError` whose `revoked` is true;
        only :meth:`shrink`, :meth:`agree`, :meth:`failed` and :meth:`free` still work.

        Raises
        ------
        UnsupportedError
            This MPI, or this job as it was started, cannot go on without a rank; the message says what to do.
        """
        need_ulfm("revoke")
        if self._agreement is not None:  # type: ignore[attr-defined]
            self._agreement.revoke()  # type: ignore[attr-defined]
        if not self.mpi.Is_revoked():
            self._directly("revoke", self.mpi.Revoke)

    @property
    def revoked(self) -> bool:
        """Whether this rank knows that the communicator has been revoked."""
        need_ulfm("revoked")
        return bool(self.mpi.Is_revoked())

    def failed(self) -> list[int]:
        """Return the ranks of this communicator that this rank knows to have failed; others may know of more."""
        need_ulfm("failed")
        return failed_ranks(self.mpi)

    def shrink(self) -> Comm:
        """Return a communicator of the ranks that live, in the order of this one; each of them has to call it.

        It revokes this communicator first, so a rank that still waits in one of its operations gets a
        :class:`ProcessFailedError` there, and comes to its own `shrink`.

        Raises
        ------
        UnsupportedError
            As for :meth:`revoke`.
        """
        need_ulfm("shrink")
        self.revoke()  # what is pending ends with an error, and the next line does not wait behind it
        made = self.run("shrink", self.mpi.Shrink)
        if made.size < self.size:
            note_the_dead()
        # Not the number of the call: after a failure the ranks may have counted differently.
        return self._child("shrink", made.size, made)  # type: ignore[attr-defined]

    def agree(self, flag: bool | int) -> Any:
        """Return the same on every rank that lives: the flags of all of them, joined by "and".

        A collective that a rank did not survive may have ended well on some ranks and not on others; this is how they
        find out. It works on a revoked communicator, and where ranks die meanwhile.

        Parameters
        ----------
        flag : bool or int
            Of an int, 0 or more and below 2**31, each bit is one flag.

        Returns
        -------
        bool or int, as `flag` is

        Raises
        ------
        UnsupportedError
            As for :meth:`revoke`.
        """
        if not is_index(flag) or not 0 <= int(flag) < 2**31:
            raise ArgumentError(f"agree: `flag` must be a bool or an int from 0 to 2**31 - 1, got {flag!r}")
        need_ulfm("agree")
        agreed = self.run("agree", lambda: self._agree(int(flag)))
        return bool(agreed) if isinstance(flag, bool) else agreed

    def _agree(self, flag: int) -> int:
        while True:
            self.mpi.Ack_failed(len(failed_ranks(self.mpi)))
            try:
                return int(self.mpi.Agree(flag))
            except MPI.Exception as error:
                # A failure that some rank had not acknowledged. All ranks that live get this error alike.
                if error.Get_error_class() != MPI.ERR_PROC_FAILED:
                    raise


def need_ulfm(method: str) -> None:
    """Raise UnsupportedError unless this job can go on when a rank has died."""
    if missing := ulfm_missing():
        raise UnsupportedError(f"{method}: this job cannot go on without a rank: {missing}")
