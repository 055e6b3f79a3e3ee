"""The calls from a loop in C: ``loop.c``, compiled when it is first needed and loaded into this process.

What differs from the other engines: the loop and the readings of the clock are in C too.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpi4py import MPI

from hpccoll.bench.case import Buffers
from hpccoll.bench.engines.base import Bound, Engine, joint_reason
from hpccoll.bench.engines.raw_engine import REDUCTIONS, mpi_op, mpi_type, raw_refusal
from hpccoll.comm import Comm
from hpccoll.errors import TransferError

__all__ = ["CEngine", "compile_loop", "find_mpicc", "loaded_mpi"]

_SOURCE = Path(__file__).with_name("loop.c")
_COMPILE_S = 60.0
_MOST_COUNT = 2**31 - 1
# In the order of the enum in loop.c.
_COLLECTIVES = (
    *("allreduce", "broadcast", "reduce", "allgather", "gather", "scatter", "reduce_scatter", "alltoall"),
    *("sendrecv", "barrier"),
)


class _Call(ctypes.Structure):
    """``call_t`` of loop.c."""

    _fields_ = [
        ("collective", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("send", "recv")),
        *(
            (name, ctypes.c_int64)
            for name in ("send_count", "recv_count", "in_place", "root", "dest", "source")
        ),
        *((name, ctypes.c_uint64) for name in ("comm", "type", "op")),
    ]


class _CBound(Bound):
    def __init__(self, run: Any, calls: Sequence[_Call], keep: Any) -> None:
        self._run, self.calls = run, calls
        self.keep = keep  # the buffers that the addresses point to
        self._parts = (_Call * len(calls))(*calls)
        self._clock = (ctypes.c_int64 * 2)()
        super().__init__(lambda: self.timed(1))

    def timed(self, calls: int) -> tuple[int, int]:
        error = self._run(self._parts, len(self._parts), calls, self._clock)
        if error:
            raise TransferError(f"engine c: MPI reported error {error}: {MPI.Get_error_string(error)}")
        return self._clock[0], self._clock[1]


class CEngine(Engine):
    """MPI called from C."""

    name = "c"
    kind = "numpy"

    def __init__(self) -> None:
        self._run: Any = None

    def open(self, comm: Comm, control: Any) -> str | None:
        # One rank compiles for all: not every rank of a large job at once.
        library = control.bcast(_compiled() if control.rank == 0 else None)
        if isinstance(library, str):
            return library
        return joint_reason(control, self._load(library))

    def _load(self, content: bytes) -> str | None:
        try:
            library = _open_library(content)
        except OSError as exc:
            return f"cannot load the compiled loop: {exc}"
        text = ctypes.create_string_buffer(8192)
        library.hpccoll_library(text, ctypes.c_int64(len(text)))
        other = _other_library(text.value.decode(errors="replace"))
        if other:
            return f"the compiled loop found another MPI: {other}"
        library.hpccoll_sizes.restype = ctypes.c_int64
        sizes = [MPI._sizeof(kind) for kind in (MPI.Comm, MPI.Datatype, MPI.Op)]
        if library.hpccoll_sizes() != sizes[0] | sizes[1] << 8 | sizes[2] << 16:
            return "mpicc and mpi4py disagree on the size of MPI handles: they follow different ABIs"
        self._run = library.hpccoll_run
        self._run.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
        self._run.restype = ctypes.c_int64
        return None

    def refuses(self, collective: str, dtype: str, buffers: Buffers) -> str | None:
        largest = max((b.nbytes for b in (buffers.send, buffers.recv) if b is not None), default=0)
        if largest > _MOST_COUNT:
            return "more than 2**31 - 1 bytes do not fit the int of MPI's C calls"
        return raw_refusal(collective, dtype, buffers.op)

    def bind(self, collective: str, comm: Comm, buffers: Buffers) -> Bound:
        rank, size, root = buffers.place
        send, recv = buffers.send, buffers.recv
        sample = recv if recv is not None else send
        datatype = MPI.BYTE if sample is None else mpi_type(sample, collective)
        # Counts of one block: of what this rank sends to, or receives from, each other one.
        send_blocks = size if collective in ("scatter", "alltoall") else 1
        recv_blocks = size if collective in ("allgather", "gather", "alltoall") else 1
        call = _Call(
            collective=_COLLECTIVES.index(collective),
            send=None if send is None else send.ctypes.data,
            recv=None if recv is None else recv.ctypes.data,
            send_count=_count(send, collective) // send_blocks,
            recv_count=_count(recv, collective) // recv_blocks,
            in_place=buffers.in_place,
            root=root,
            dest=(rank + 1) % size,
            source=(rank - 1) % size,
            comm=_bits(comm.mpi),
            type=_bits(datatype),
            op=_bits(mpi_op(buffers.op)),
        )
        return _CBound(self._run, [call], (send, recv, comm))

    def chain(self, bounds: Sequence[Bound]) -> Bound:
        parts: list[Any] = list(bounds)
        return _CBound(
            self._run, [call for part in parts for call in part.calls], [part.keep for part in parts]
        )


def _count(array: Any, collective: str) -> int:
    if array is None:
        return 0
    return int(array.size if collective in REDUCTIONS else array.nbytes)


def _bits(handle: Any) -> int:
    """The bytes of an MPI handle, be it a pointer or an int, as they have to lie in ``call_t``."""
    raw = ctypes.string_at(MPI._addressof(handle), MPI._sizeof(handle))
    return int.from_bytes(raw.ljust(8, b"\0"), sys.byteorder)


def _open_library(content: bytes) -> ctypes.CDLL:
    if hasattr(os, "memfd_create"):  # no directory has to be writable, shared, and allow programs
        descriptor = os.memfd_create("hpccoll-loop")
        try:
            os.write(descriptor, content)
            return ctypes.CDLL(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
    with tempfile.TemporaryDirectory(prefix="hpccoll-") as scratch:
        path = Path(scratch, "loop.so")
        path.write_bytes(content)
        return ctypes.CDLL(str(path))


def loaded_mpi(maps: Path = Path("/proc/self/maps")) -> list[Path]:
    """The MPI libraries that are loaded into this process, as far as the system says."""
    try:
        text = maps.read_text()
    except OSError:
        return []
    return list(map(Path, dict.fromkeys(re.findall(r"\s(/.*/libmpi(?:_\w+)?\.so\S*)$", text, re.MULTILINE))))


def find_mpicc(libraries: Sequence[Path]) -> str | None:
    """The mpicc beside one of these MPI libraries, else the first in PATH; None if neither is there."""
    for library in libraries:
        for above in library.parents[1:3]:  # the directory of lib, or of lib/release and the like
            found = shutil.which("mpicc", path=str(above / "bin"))
            if found:
                return found
    return shutil.which("mpicc")


def compile_loop(mpicc: str, target: Path, *options: str) -> None:
    """Compile loop.c to `target`.

    Raises
    ------
    RuntimeError
        With what the compiler said.
    """
    command = [mpicc, "-O2", "-std=c99", *options, "-o", str(target), str(_SOURCE)]
    said = _run(command)
    if said.returncode:
        text = " ".join((said.stderr or said.stdout).split())
        raise RuntimeError(f"{mpicc} failed with status {said.returncode}: {text[:300]}")


def _run(command: Sequence[str], **env: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_COMPILE_S,
            stdin=subprocess.DEVNULL,
            check=False,
            env={**os.environ, **env},
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise RuntimeError(f"{command[0]} could not be run: {exc}") from None


def _compiled() -> bytes | str:
    """The shared library, or why there is none."""
    libraries = loaded_mpi()
    mpicc = find_mpicc(libraries)
    if mpicc is None:
        return "there is no mpicc beside the loaded MPI library nor in PATH"
    with tempfile.TemporaryDirectory(prefix="hpccoll-") as scratch:
        target, check = Path(scratch, "loop.so"), Path(scratch, "check")
        try:
            # In a process of its own: another MPI must not be loaded into this one.
            compile_loop(mpicc, check, "-DHPCCOLL_MAIN")
            where = [os.environ.get("LD_LIBRARY_PATH", ""), *(str(path.parent) for path in libraries)]
            said = _run([str(check)], LD_LIBRARY_PATH=os.pathsep.join(filter(None, where)))
            if said.returncode:
                return f"what {mpicc} makes does not run here: {' '.join(said.stderr.split())[:200]}"
            other = _other_library(said.stdout)
            if other:
                return f"{mpicc} belongs to another MPI: {other}"
            compile_loop(mpicc, target, "-shared", "-fPIC")
            return target.read_bytes()
        except (RuntimeError, OSError) as exc:
            return str(exc)


def _other_library(version: str) -> str | None:
    """What is wrong if `version` is not that of the MPI beneath mpi4py."""
    here = MPI.Get_library_version()
    if version.strip("\0\n ") == here.strip("\0\n "):
        return None
    return f"{_first(version)!r}, and mpi4py runs on {_first(here)!r}; put the right mpicc first in PATH"


def _first(version: str) -> str:
    lines = version.strip("\0\n ").splitlines()
    return lines[0][:60] if lines else ""
