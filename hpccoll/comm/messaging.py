"""Messages between two ranks: send, recv, sendrecv."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from mpi4py import MPI

from hpccoll import transport
from hpccoll.buffers import Buffer, copy_of, destination, same_memory, target
from hpccoll.buffers import source as opened  # `source` is the name of an argument here
from hpccoll.comm.arguments import rank_of, tag_of
from hpccoll.comm.issuing import Issuing
from hpccoll.errors import TransferError
from hpccoll.recorder.seam import message
from hpccoll.work import RequestWork


class Messaging(Issuing):
    """The point-to-point messages of a communicator."""

    @contextlib.contextmanager
    def _mpi_errors(self, method: str) -> Iterator[None]:
        try:
            yield
        except MPI.Exception as error:
            raise self._transfer_error(method, error) from error

    @message
    def send(self, x: Any, *, dest: int, tag: int = 0, blocking: bool = True) -> Any:
        """Send `x` to one rank.

        Parameters
        ----------
        x : array or tensor
        dest : int
            The rank that receives.
        tag : int
            0 or more; receives can ask for it.

        Returns
        -------
        None, or with ``blocking=False`` a Work
            When it is complete `x` may be changed; the other rank need not have received it.
        """
        dest = rank_of(self, dest, "send", "dest")
        tag = tag_of(tag, "send", "tag")
        buffer = opened(x, "send")
        with self._mpi_errors("send"):
            if blocking:
                transport.send(self.mpi, buffer, dest, tag)
                return None
            request = transport.isend(self.mpi, buffer, dest, tag)
        return RequestWork("send", [request], lambda _: buffer and None, self.mpi)

    @message
    def recv(
        self, x: Any, *, source: int | None = None, tag: int | None = None, blocking: bool = True
    ) -> Any:
        """Receive into `x`.

        Parameters
        ----------
        x : array or tensor
            Where the message goes; it has to fill `x` exactly.
        source : int, optional
            The rank that sends; by default any.
        tag : int, optional
            By default any.

        Returns
        -------
        `x`, or with ``blocking=False`` a Work
            Its attributes `source`, `tag` and `nbytes` then say what came.

        Raises
        ------
        TransferError
            The message was longer or shorter than `x`. (With ``blocking=False`` a much longer one may crash Open
            MPI 5.0 instead: a request that is too short for it makes that library write beyond the buffer.)
        """
        peer = MPI.ANY_SOURCE if source is None else rank_of(self, source, "recv", "source")
        number = MPI.ANY_TAG if tag is None else tag_of(tag, "recv", "tag")
        buffer = destination(x, "recv")
        with self._mpi_errors("recv"):
            if blocking:
                status = MPI.Status()
                nbytes = transport.recv(self.mpi, buffer, peer, number, status)
                return _received(buffer, nbytes, status, "recv")
            request = transport.irecv(self.mpi, buffer, peer, number)
        return self._receiving("recv", [request], buffer)

    @message
    def sendrecv(
        self,
        x: Any,
        *,
        dest: int,
        source: int | None = None,
        tag: int = 0,
        out: Any = None,
        blocking: bool = True,
    ) -> Any:
        """Send `x` to one rank and receive an object of the same shape and dtype from another, without
        deadlock.

        Parameters
        ----------
        x : array or tensor
        dest : int
            The rank that receives `x`.
        source : int, optional
            The rank that sends; by default any.
        tag : int
            Of both messages.
        out : array or tensor, optional
            Where the message goes, of x's kind, shape and dtype; `x` itself works (through a copy).

        Returns
        -------
        What was received
        """
        dest = rank_of(self, dest, "sendrecv", "dest")
        peer = MPI.ANY_SOURCE if source is None else rank_of(self, source, "sendrecv", "source")
        tag = tag_of(tag, "sendrecv", "tag")
        outgoing = opened(x, "sendrecv")
        incoming = target(out, outgoing, outgoing.shape, "sendrecv")
        if same_memory(outgoing, incoming, "sendrecv"):
            outgoing = opened(copy_of(x), "sendrecv")

        def run() -> Any:
            status = MPI.Status()
            nbytes = transport.sendrecv(self.mpi, outgoing, dest, incoming, peer, tag, status)
            return _received(incoming, nbytes, status, "sendrecv")

        if blocking:
            with self._mpi_errors("sendrecv"):
                return run()
        with self._mpi_errors("sendrecv"):
            requests = [
                transport.irecv(self.mpi, incoming, peer, tag),
                transport.isend(self.mpi, outgoing, dest, tag),
            ]
        return self._receiving("sendrecv", requests, incoming, outgoing)

    def _receiving(self, method: str, requests: list[Any], buffer: Buffer, *kept: Buffer) -> RequestWork:
        def finish(status: Any) -> Any:
            del keeping[:]
            return _received(buffer, status.Get_elements(MPI.BYTE), status, method)

        keeping = list(kept)  # alive until then
        return RequestWork(method, requests, finish, self.mpi)


def _received(buffer: Buffer, nbytes: int, status: Any, method: str) -> Any:
    if nbytes == buffer.nbytes:
        return buffer.finish()
    fate = "which is unchanged" if nbytes > buffer.nbytes else "whose rest is unchanged"
    raise TransferError(
        f"{method}: the message from rank {status.Get_source()} with tag {status.Get_tag()} has {nbytes} bytes, "
        f"but `x` takes {buffer.nbytes} ({buffer.count} of {buffer.dtype.name}), {fate}"
    )
