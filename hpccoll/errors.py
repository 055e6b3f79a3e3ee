"""Everything that hpccoll raises on purpose.

::

    HpccollError
    ├── ArgumentError        (also ValueError)     a bad argument; nothing was sent
    │   └── UnsupportedError                       no meaning for the dtype, or it cannot travel
    ├── CheckError           (also RuntimeError)   check mode has found something; nothing was sent
    │   ├── MismatchError                          the ranks called different things, or some did not come
    │   └── NotFiniteError                         a rank brought a NaN or an infinity
    ├── CommunicatorError    (also RuntimeError)   freed communicator, MPI finalised, thread level too low
    ├── LaunchError          (also RuntimeError)   N processes that are each rank 0 of 1
    ├── TransferError        (also RuntimeError)   MPI reported an error, or a message of another length came
    │   └── ProcessFailedError                     a rank has died, or the communicator was revoked after that
    ├── WaitTimeout          (also TimeoutError)   a wait with ``timeout_s`` ran out; the operation goes on
    └── VerificationError                          a program received wrong data

An `ArgumentError` is raised before anything is sent, so the other ranks are not left in half a
collective by it, as long as every rank passed the same bad argument.
"""

__all__ = [
    "ArgumentError",
    "CheckError",
    "CommunicatorError",
    "HpccollError",
    "LaunchError",
    "MismatchError",
    "NotFiniteError",
    "ProcessFailedError",
    "TransferError",
    "UnsupportedError",
    "VerificationError",
    "WaitTimeout",
]


class HpccollError(Exception):
    """Base class of every error that hpccoll raises on purpose."""


class ArgumentError(HpccollError, ValueError):
    """An argument is wrong; the message names the method, the argument, what was expected and received."""


class UnsupportedError(ArgumentError):
    """The op has no meaning for the dtype (the average of integers), or the dtype cannot travel."""


class CheckError(HpccollError, RuntimeError):
    """Check mode has found something wrong with a collective: the same error on every rank, and nothing was sent."""


class MismatchError(CheckError):
    """The ranks of a collective have called different things, or some of them have not come in time.

    Attributes
    ----------
    missing : tuple of int
        Ranks of the communicator that did not come; empty where all came and differ.
    """

    missing: tuple[int, ...] = ()


class NotFiniteError(CheckError):
    """With ``HPCCOLL_CHECK=nan``: a rank has brought a NaN or an infinity.

    Attributes
    ----------
    ranks : tuple of int
        Who has, in the communicator.
    """

    ranks: tuple[int, ...] = ()


class CommunicatorError(HpccollError, RuntimeError):
    """The communicator cannot be used: freed, MPI finalised, or MPI started with too low a thread level."""


class LaunchError(HpccollError, RuntimeError):
    """The launcher started N processes, but each of them is alone in its own MPI world."""


class TransferError(HpccollError, RuntimeError):
    """MPI reported an error, or a message of another length than announced arrived."""


class ProcessFailedError(TransferError):
    """A rank of the communicator has died, or another rank has revoked it after that.

    Only a job that was started to survive it gets this error (``mpirun --with-ft ulfm``); it goes on with
    ``comm.shrink()``. In any other job the launcher ends all ranks.

    Attributes
    ----------
    ranks : tuple of int
        Ranks of that communicator that this one knew to have failed; may be empty.
    revoked : bool
        Whether the error came by ``revoke``, and not from the failure itself.
    """

    ranks: tuple[int, ...] = ()
    revoked: bool = False


class WaitTimeout(HpccollError, TimeoutError):
    """``wait(timeout_s=...)`` ran out. The operation goes on, and its buffers still belong to it."""


class VerificationError(HpccollError):
    """A program compared what it received with the closed-form expected values and found a difference."""
