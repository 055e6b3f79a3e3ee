"""Collectives on NumPy arrays and torch tensors: :class:`Comm`.

Every method follows one pattern: the arguments are checked and the buffers opened on the caller's thread, before
anything is sent; then the operation runs, here or on the communicator's own thread (``blocking=False``). The methods
stand in :mod:`hpccoll.comm.reducing`, :mod:`hpccoll.comm.moving` and :mod:`hpccoll.comm.messaging`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from hpccoll import cuda, gate, settings
from hpccoll.comm import identity
from hpccoll.comm.arguments import is_index
from hpccoll.comm.checking import Agreement
from hpccoll.comm.issuing import live
from hpccoll.comm.messaging import Messaging
from hpccoll.comm.moving import Moving
from hpccoll.comm.reducing import Reducing
from hpccoll.comm.surviving import Surviving
from hpccoll.errors import ArgumentError, CommunicatorError
from hpccoll.recorder import duty, job, places, ring, seam
from hpccoll.recorder.seam import ACTIVE, collective
from hpccoll.work import finish_pending


class Comm(Reducing, Moving, Messaging, Surviving):
    """A group of ranks and the collectives among them.

    Get one from :func:`world`, :meth:`split`, :meth:`node`, :meth:`leaders` or :meth:`dup`; those are freed
    by :meth:`free` or at the end of a ``with`` block. ``Comm(mpi)`` wraps a communicator of yours, which
    stays yours.

    Common to all methods
        The buffer `x` is a NumPy array or a torch tensor of any dtype, shape and strides; different ranks may
        use different libraries. Contiguous CPU memory is used where it lies, everything else is copied on the
        way (CUDA tensors through pinned host memory). Shape, dtype, `op`, `root` and `counts` must be the
        same on every rank unless it is said otherwise. The input never changes unless it is the output as
        well. ``blocking=False`` returns a :class:`Work` at once; its result is what the call would have
        returned. Until it is complete, `x` must not be written and `out` must not be touched.

    Raises
    ------
    ArgumentError, UnsupportedError
        An argument is wrong; nothing has been sent.
    CommunicatorError
        The communicator has been freed, or MPI finalised.
    TransferError
        MPI reported an error. Its subclass :class:`ProcessFailedError`: a rank has died, and this job goes on.

    Parameters
    ----------
    mpi : mpi4py.MPI.Intracomm
    check : bool or "nan", optional
        Check mode (docs/hangs.md) for this communicator and those made from it; by default as ``HPCCOLL_CHECK`` says.
        Every rank has to pass the same, and to make this object.

    Attributes
    ----------
    rank, size : int
    mpi : mpi4py.MPI.Intracomm
        The communicator beneath, for everything else that MPI can do.
    """

    _agreement: Agreement | None = None

    def __init__(self, mpi: Any, log: ring.Log | None = None, *, check: bool | str | None = None):
        mode = settings.CHECK.get() if check is None else check
        if mode not in (False, True, "nan"):
            raise ArgumentError(f'Comm: `check` must be True, False, "nan" or None, got {check!r}')
        if mode and not ACTIVE:
            raise ArgumentError(f"Comm: `check` needs the recorder: unset {settings.RECORDER.name}=0")
        super().__init__(mpi, log)
        self._owned = False
        self._check_mode = mode
        if mode and (self.size > 1 or mode == "nan"):
            self._agreement = Agreement(mpi, self._log, self, finite=mode == "nan")
            self._check = self._agreement.check

    @collective
    def split(self, color: int | None, key: int = 0) -> Comm | None:
        """Divide the ranks into groups; every rank has to call it.

        Parameters
        ----------
        color : int or None
            Ranks that pass the same one, 0 or more, form a group; None joins none.
        key : int
            Orders the ranks of a group; equal keys keep the order.

        Returns
        -------
        Comm, or None where `color` is None
        """
        if color is not None and (not is_index(color) or not 0 <= operator.index(color) < 2**31):
            raise ArgumentError(f"split: `color` must be None or an int from 0 on, got {color!r}")
        if not is_index(key) or not -(2**31) <= operator.index(key) < 2**31:
            raise ArgumentError(f"split: `key` must be an int, got {key!r}")
        chosen = MPI.UNDEFINED if color is None else operator.index(color)
        return self._make("split", lambda: self.mpi.Split(chosen, key))

    @collective
    def node(self) -> Comm:
        """Return the ranks that share memory with this one, in the order of this communicator."""
        return self._make("node", lambda: self.mpi.Split_type(MPI.COMM_TYPE_SHARED, self.rank))  # type: ignore[return-value]

    def leaders(self) -> Comm | None:
        """Return the first rank of each node as a group; None on the others. Every rank has to call it."""
        with self.node() as node:
            first = node.rank == 0
        return self.split(0 if first else None, self.rank)

    @collective
    def dup(self) -> Comm:
        """Return the same ranks with a traffic of their own. Every rank has to call it."""
        return self._make("dup", self.mpi.Dup)  # type: ignore[return-value]

    def free(self) -> None:
        """Give the communicator back to MPI, after what is pending; every rank has to call it.

        One that wraps a communicator of yours only lets go of it. A second call does nothing.
        """
        if self.closed:
            return
        worker, mpi = self._worker, self.mpi
        if worker is not None and not worker.is_current:
            self._run("free", lambda: None)  # behind what is pending
            worker.stop()
            self._worker = None
        self.close("the communicator has been freed")
        self._log.freed = True
        if self._agreement is not None:
            self._agreement.free()
        if self._owned:
            self.run("free", mpi.Free)

    def __enter__(self) -> Comm:
        return self

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        # With an exception under way the other ranks may never come to the collective call that frees.
        if exc_type is None:
            self.free()

    def __repr__(self) -> str:
        if self.closed:
            return f"<Comm, {self.closed}>"
        return f"<Comm {self.mpi.name or 'unnamed'}, rank {self.rank} of {self.size}>"

    def _make(self, method: str, call: Callable[[], Any]) -> Comm | None:
        # Nothing else of this communicator runs meanwhile: the number is that of this call.
        mpi, number = self._run(method, lambda: (call(), self._log.started))
        return None if mpi == MPI.COMM_NULL else self._child(method, number, mpi)

    def _child(self, method: str, number: int, mpi: Any) -> Comm:
        log = identity.of_child(self._log, method, number, self.mpi, mpi)
        comm = Comm(mpi, log, check=self._check_mode)
        comm._owned = True
        return comm


# ---- The world, and its end

_world: Comm | None = None


def world() -> Comm:
    """Return the communicator of all ranks: a duplicate of COMM_WORLD, so that user and library traffic never
    meet.

    The first call has to be made by every rank; all calls return the same object.

    Raises
    ------
    LaunchError
        The launcher has started several ranks, but each is alone in its MPI.
    """
    global _world
    if _world is None or _world.closed:
        if MPI.Is_finalized():
            raise CommunicatorError("MPI has been finalised; hpccoll needs it until the end of the program")
        gate.check_world(MPI.COMM_WORLD)
        if job.known() is None:
            identity.introduce(job.proposal_of_launcher())  # for the case that somebody does not come
        log = ring.Log("MPI_COMM_WORLD", "MPI_COMM_WORLD", MPI.COMM_WORLD.rank, range(MPI.COMM_WORLD.size))
        duplicate = seam.recorded(log, "world", MPI.COMM_WORLD.Dup)()
        duplicate.Set_name("hpccoll world")
        _need_one_check_mode(duplicate)
        agreed = duplicate.bcast(job.proposal() if duplicate.rank == 0 else None)
        identity.introduce(agreed, duplicate.allgather(places.own()))
        _world = Comm(duplicate, identity.of_world(duplicate))
        _world._owned = True
        cuda.self_test(duplicate)
    return _world


def _need_one_check_mode(mpi: Any) -> None:
    mode = settings.CHECK.get()
    number = (False, True, "nan").index(mode)
    if mpi.allreduce(number, MPI.MIN) != mpi.allreduce(number, MPI.MAX):
        own = settings.CHECK.text()
        raise ArgumentError(
            f"world: {settings.CHECK.name} must be the same on every rank, and is not; rank {mpi.rank} has {own!r}"
        )


def _at_finalize(*_: Any) -> None:
    finish_pending()
    for comm in list(live):
        comm.close("MPI has been finalised")


duty.begin()

# MPI_Finalize deletes the attributes of COMM_SELF before anything else.
MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=_at_finalize), True)
