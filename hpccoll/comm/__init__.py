"""The communicator and its collectives: :class:`Comm`, and :func:`world` to get one."""

from hpccoll.comm.communicator import Comm, world

__all__ = ["Comm", "world"]
