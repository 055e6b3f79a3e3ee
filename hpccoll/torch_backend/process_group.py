"""The process group: its making and end, and what torch asks of it; its operations are in the modules of its bases.

Synchronous calls run on the caller's thread. Asynchronous ones are checked there and run on the communicator's own
thread; where an operation takes more than one step, the last ones are done there as well.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from hpccoll.comm import Comm, identity
from hpccoll.recorder import exceptions, watchdog
from hpccoll.torch_backend import ending, limits, torch_internals
from hpccoll.torch_backend.issuing import NAMES
from hpccoll.torch_backend.messaging import Messaging
from hpccoll.torch_backend.moving import Moving
from hpccoll.torch_backend.short_cut import ShortCut


class _Unusable:
    """Stands where the communicator was. Costs nothing while there is one."""

    def __init__(self, reason: str, kind: type[BaseException] = RuntimeError):
        self._reason = reason
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        raise self._kind(self._reason)


@torch_internals.hide_from_compiler
class MpiProcessGroup(ShortCut, Moving, Messaging):
    """A torch process group over an MPI communicator.

    Parameters
    ----------
    store
        The store of the group, for those who ask ``get_group_store()``.
    mpi
        The mpi4py communicator, this group's own; freed by ``shutdown``.
    ranks
        The members' ranks in the default group.
    timeout
        The limit of every operation; see :mod:`hpccoll.torch_backend.limits`.
    """

    def __init__(self, store: Any, mpi: Any, ranks: Sequence[int], timeout: timedelta):
        torch_internals.init_base(self, store, mpi.rank, mpi.size)
        self._ranks = list(ranks)
        self._size = mpi.size
        self._mpi = mpi
        self._name = ""
        self._desc = ""
        self._backend_name = torch_internals.OWN
        self._other_backends = {}
        self._coalesced = None
        self._sequence = 0
        self._inside = None
        self._last = None
        self._timed_out = False
        self._log = identity.of_group(self._mpi)
        self._log.names = NAMES
        self._agree_on_limit(timeout)
        _live.add(self)
        ending.guard_forks()

    # ---- Construction and end

    def _agree_on_limit(self, timeout: timedelta) -> None:
        """The smallest limit that any rank was given holds for all: they have to act alike."""
        default_s = torch_internals.default_timeout().total_seconds()
        own_s = timeout.total_seconds() if timeout is not None else default_s
        lowest_s, highest_s = self._mpi.allreduce(own_s, MPI.MIN), -self._mpi.allreduce(-own_s, MPI.MIN)
        self.limit_s: float = lowest_s
        self._is_limited = lowest_s != default_s or highest_s != default_s
        if self._is_limited:
            watchdog.attend()
            self._comm = limits.LimitedComm(
                self._mpi, lowest_s, self._get_sequence_number_for_group, self._on_timeout, self._log
            )
        else:
            self._comm = Comm(self._mpi, self._log)
            if self._comm._check is None:  # check mode has to see every call
                self._tabulate()
            limits.watch(self)
        if self._comm._agreement is not None:
            self._comm._agreement.when_missing = lambda: ending.after_timeout(0.0)

    def adopt(self, name: str, devices: Sequence[str], backends: dict[str, Any]) -> None:
        """Take the name that the user asked for, and the backends of other devices."""
        self._backend_name = torch_internals.MPI if torch_internals.MPI in name else torch_internals.OWN
        self._other_backends = backends
        if backends:
            self._plain = {}
        torch_internals.declare_devices(self, devices, backends)

    @property
    def base_communicator(self) -> Any:
        """The mpi4py communicator that subgroups are made from."""
        return self._mpi

    def forbid(self, reason: str) -> None:
        """Let every further operation raise."""
        self._comm = _Unusable(reason)
        self._plain = {}

    def own_part(self, parts: Any) -> list[int] | None:
        """The list of ranks among `parts` that holds this rank, sorted; None if none does."""
        if parts is None or len(parts) == 0:
            raise ValueError("split_ranks cannot be None or empty")
        flat = [rank for part in parts for rank in part]
        if any(len(part) == 0 for part in parts):
            raise ValueError("the split group cannot be empty")
        if len(set(flat)) != len(flat):
            raise ValueError("the split group cannot have duplicate ranks")
        if any(not 0 <= rank < self._size for rank in flat):
            raise ValueError(
                "the split group's size should be less or equal to the world_size set by init_process_group; "
                f"its ranks must be from 0 to {self._size - 1}, got {parts}"
            )
        return next((sorted(part) for part in parts if self.rank() in part), None)

    def shutdown(self) -> None:
        """Give the communicator back; called by ``destroy_process_group``.

        What is still pending goes on, and the communicator is freed after it: this does not wait for other ranks.
        """
        comm = self._comm
        self._log.freed = True
        self.forbid("Invalid process group specified: it has been destroyed")
        limits.unwatch(self)
        _live.discard(self)
        for backend in self._other_backends.values():
            if hasattr(backend, "shutdown"):
                backend.shutdown()
        if isinstance(comm, _Unusable) or self._timed_out:
            return  # requests that will never be complete still use it
        mpi = self._mpi

        def free() -> None:
            comm.free()
            mpi.Free()

        if comm.pending:
            comm._run("destroy_process_group", free, blocking=False)
        else:
            free()

    def abort(self) -> None:
        """Make the group unusable without a word to the others."""
        self._timed_out = True
        self.shutdown()

    def _on_timeout(self, method: str, number: int) -> BaseException:
        error = limits.timeout_error(self.describe(method, number), self.limit_s)
        limits.dump_for_all(str(error), None)
        exceptions.remember(error, "timeout", str(error))
        self._timed_out = True
        ending.after_timeout(self.limit_s)
        self._comm = _Unusable(str(error), dist.DistBackendError)
        return error

    # ---- What torch and the watcher ask

    def getBackendName(self) -> str:
        return self._backend_name

    _get_backend_name = name = getBackendName

    def setGroupName(self, name: str) -> None:
        self._name = name
        self._log.id = f"torch:{name}"
        self._log.name = self._desc or name

    def getGroupName(self) -> str:
        return self._name

    def setGroupDesc(self, desc: str) -> None:
        self._desc = desc
        self._log.name = desc or self._name

    def getGroupDesc(self) -> str:
        return self._desc

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def _get_backend(self, device: Any) -> Any:
        return self._other_backends.get(torch.device(device).type, self)

    supports_splitting = supports_coalescing = supports_time_estimate = False

    def supports_tensor_alloc(self, device: Any) -> bool:
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the limit on this rank; whether operations raise or the job ends was settled when it was made."""
        self.limit_s = timeout.total_seconds()
        if self._is_limited:
            self._comm.limit_s = self.limit_s

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence


_live: weakref.WeakSet[MpiProcessGroup] = weakref.WeakSet()


def live_groups() -> list[MpiProcessGroup]:
    """The process groups of this process that have not been destroyed."""
    return list(_live)
