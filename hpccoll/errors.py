"""Everything that hpccoll raises on purpose.

::

    HpccollError
    ├── ArgumentError        (also ValueError)     a bad argument; nothing was sent
    │   └── UnsupportedError                       no meaning for the dtype, or it cannot travel
    ├── CommunicatorError    (also RuntimeError)   freed communicator, MPI finalised, thread level too low
    ├── LaunchError          (also RuntimeError)   N processes that are each rank 0 of 1
    ├── TransferError        (also RuntimeError)   MPI reported an error, or a message of another length came
    ├── WaitTimeout          (also TimeoutError)   a wait with ``timeout_s`` ran out; the operation goes on
    └── VerificationError                          a program received wrong data

An `ArgumentError` is raised before anything is sent, so the other ranks are not left in half a
collective by it, as long as every rank passed the same bad argument.
"""

__all__ = [
    "ArgumentError",
    "CommunicatorError",
    "HpccollError",
    "LaunchError",
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


class CommunicatorError(HpccollError, RuntimeError):
    """The communicator cannot be used: freed, MPI finalised, or MPI started with too low a thread level."""


class LaunchError(HpccollError, RuntimeError):
    """The launcher started N processes, but each of them is alone in its own MPI world."""


class TransferError(HpccollError, RuntimeError):
    """MPI reported an error, or a message of another length than announced arrived."""


class WaitTimeout(HpccollError, TimeoutError):
    """``wait(timeout_s=...)`` ran out. The operation goes on, and its buffers still belong to it."""


class VerificationError(HpccollError):
    """A program compared what it received with the closed-form expected values and found a difference."""
