"""The communicator and its collectives: :class:`Comm`, and :func:`world` to get one."""

from hpccoll import settings

settings.check()  # before MPI is started: after that a rank that ends leaves the others waiting

from hpccoll.comm.communicator import Comm, world  # noqa: E402

__all__ = ["Comm", "world"]
