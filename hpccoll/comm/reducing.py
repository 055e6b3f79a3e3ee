"""The collectives that compute: allreduce, reduce, reduce_scatter, scan, exscan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from hpccoll import reductions, transport
from hpccoll.buffers import direct, same_memory, source, target
from hpccoll.comm.arguments import block_of, forbid_overlap, rank_of
from hpccoll.comm.issuing import Issuing
from hpccoll.errors import ArgumentError
from hpccoll.recorder.seam import collective

_NUMBERS = frozenset((bool, int, float, complex))


class Reducing(Issuing):
    """The reductions of a communicator."""

    @collective
    def allreduce(self, x: Any, *, op: str = "sum", out: Any = None, blocking: bool = True) -> Any:
        """Reduce over all ranks; every rank gets the result.

        Parameters
        ----------
        x : array, tensor or Python number
            Same shape and dtype on every rank. Python numbers follow Python's arithmetic: integers never
            overflow.
        op : {"sum", "prod", "min", "max", "avg", "band", "bor", "bxor", "land", "lor", "lxor"}
            docs/collectives.md has the table of which takes which dtype.
        out : array or tensor, optional
            Where the result goes, of x's kind, shape and dtype; `x` itself works in place.

        Returns
        -------
        Like `x`
            `out` if given.
        """
        if x.__class__ in _NUMBERS:
            return self._reduce_numbers("allreduce", x, op, out, blocking, lambda numbers: numbers)
        if out is not None and blocking and self._free_to_go and (plain := direct(x, out)) is not None:
            send_memory, memory, count, dtype = plain
            mpi_op = reductions.alone(op, dtype.name)
            if mpi_op is not None and count <= transport.MAX_COUNT:
                send_spec = MPI.IN_PLACE if send_memory is None else (send_memory, count, dtype.mpi)
                try:  # not by _directly: a tenth of a microsecond counts here
                    self.mpi.Allreduce(send_spec, (memory, count, dtype.mpi), mpi_op)
                except MPI.Exception as error:
                    raise self._transfer_error("allreduce", error) from error
                return out
        send = source(x, "allreduce")
        recv = target(out, send, send.shape, "allreduce")
        mpi_op = reductions.operation(op, send.dtype, "allreduce")
        in_place = same_memory(send, recv, "allreduce")

        def run() -> Any:
            reductions.allreduce(self.mpi, None if in_place else send, recv, op, mpi_op)
            return recv.finish()

        return self._run("allreduce", run, blocking)

    @collective
    def reduce(
        self, x: Any, *, op: str = "sum", root: int = 0, out: Any = None, blocking: bool = True
    ) -> Any:
        """Reduce over all ranks; the root gets the result.

        Parameters
        ----------
        x, op
            As for :meth:`allreduce`.
        root : int
            The rank that gets the result.
        out : array or tensor, optional
            On the root: where the result goes; `x` itself works in place. Ignored elsewhere.

        Returns
        -------
        Like `x` on the root, None elsewhere
        """
        root = rank_of(self, root, "reduce", "root")
        if x.__class__ in _NUMBERS:
            at_root = self.rank == root
            return self._reduce_numbers(
                "reduce", x, op, out, blocking, lambda numbers: numbers if at_root else None
            )
        send = source(x, "reduce")
        mpi_op = reductions.operation(op, send.dtype, "reduce")
        recv = target(out, send, send.shape, "reduce") if self.rank == root else None
        in_place = recv is not None and same_memory(send, recv, "reduce")

        def run() -> Any:
            reductions.reduce(self.mpi, send, recv, in_place, op, mpi_op, root)
            return recv.finish() if recv is not None else None

        return self._run("reduce", run, blocking)

    @collective
    def reduce_scatter(
        self,
        x: Any,
        *,
        op: str = "sum",
        counts: Sequence[int] | None = None,
        out: Any = None,
        blocking: bool = True,
    ) -> Any:
        """Reduce over all ranks; each rank gets its block of the result.

        Parameters
        ----------
        x : array or tensor
            Of shape ``(size, *block)``; with `counts` of shape ``(sum(counts), *rest)``.
        op
            As for :meth:`allreduce`.
        counts : sequence of int, optional
            The lengths of the blocks along the first axis, one for each rank.
        out : array or tensor, optional
            Of shape ``block``, or ``(counts[rank], *rest)``; must not overlap `x`.

        Returns
        -------
        The block of this rank
        """
        if out is not None and counts is None and blocking and self._free_to_go:
            plain = direct(x, out, -self.size)
            if plain is not None and plain[2] * self.size <= transport.MAX_COUNT:
                send_memory, memory, count, dtype = plain
                mpi_op = reductions.alone(op, dtype.name)
                if mpi_op is not None:
                    send_spec, recv_spec = (send_memory, count, dtype.mpi), (memory, count, dtype.mpi)
                    self._directly(
                        "reduce_scatter", self.mpi.Reduce_scatter_block, send_spec, recv_spec, mpi_op
                    )
                    return out
        send = source(x, "reduce_scatter")
        mpi_op = reductions.operation(op, send.dtype, "reduce_scatter")
        shape, elements = block_of(self, "reduce_scatter", send, counts)
        recv = target(out, send, shape, "reduce_scatter")
        forbid_overlap("reduce_scatter", send, recv)

        def run() -> Any:
            reductions.reduce_scatter(self.mpi, send, recv, elements, op, mpi_op)
            return recv.finish()

        return self._run("reduce_scatter", run, blocking)

    @collective
    def scan(self, x: Any, *, op: str = "sum", out: Any = None, blocking: bool = True) -> Any:
        """Reduce over the ranks up to and including this one.

        Parameters and result are as for :meth:`allreduce`; rank r gets the reduction of the `x` of ranks 0 …
        r.
        """
        return self._scan("scan", x, op, out, blocking, exclusive=False)

    @collective
    def exscan(self, x: Any, *, op: str = "sum", out: Any = None, blocking: bool = True) -> Any:
        """Reduce over the ranks before this one.

        Parameters and result are as for :meth:`allreduce`; rank r gets the reduction of the `x` of ranks 0 …
        r-1. Rank 0, which MPI leaves undefined, gets the value that changes nothing: 0 for a sum, 1 for a
        product, the largest number for a minimum, NaN for an average.
        """
        return self._scan("exscan", x, op, out, blocking, exclusive=True)

    def _scan(self, method: str, x: Any, op: str, out: Any, blocking: bool, exclusive: bool) -> Any:
        if x.__class__ in _NUMBERS:
            terms = self.rank + (not exclusive)
            return self._reduce_numbers(method, x, op, out, blocking, lambda numbers: numbers[:terms])
        send = source(x, method)
        recv = target(out, send, send.shape, method)
        mpi_op = reductions.operation(op, send.dtype, method)
        in_place = same_memory(send, recv, method)

        def run() -> Any:
            reductions.scan(self.mpi, None if in_place else send, recv, op, mpi_op, exclusive)
            return recv.finish()

        return self._run(method, run, blocking)

    def _reduce_numbers(
        self,
        method: str,
        number: Any,
        op: str,
        out: Any,
        blocking: bool,
        choose: Callable[[list[Any]], list[Any] | None],
    ) -> Any:
        reductions.check_number(op, number, method)
        if out is not None:
            raise ArgumentError(
                f"{method}: `out` has no use when `x` is a Python number; take the return value"
            )

        def run() -> Any:
            chosen = choose(self.mpi.allgather(number))
            return None if chosen is None else reductions.reduce_numbers(chosen, op, method)

        return self._run(method, run, blocking)
