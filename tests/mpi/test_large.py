"""More than 2**31 - 1 elements in one call: ``mpirun -n 2 python -m pytest tests/mpi --with-mpi -m large``.

About 5 GB for two ranks together. Every element is compared, in chunks, with a closed form of its index.
"""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest

from .support import torch

pytestmark = [pytest.mark.large, pytest.mark.limit_s(300)]

# Beyond 2**31 - 1, and no multiple of anything that a chunk could be made of.
COUNT = int(os.environ.get("HPCCOLL_TEST_LARGE_COUNT", 2**31 + 4099))
CHUNK = 1 << 22


@pytest.fixture(autouse=True)
def two_ranks_and_enough_memory(comm):
    if comm.size != 2:
        pytest.skip("for 2 ranks")
    free = comm.broadcast_object(_available_bytes() if comm.rank == 0 else None)
    need = 2 * COUNT + COUNT + (1 << 30)
    if free < need:
        if os.environ.get("HPCCOLL_TEST_REQUIRE") == "1":
            pytest.fail(f"{free / 1e9:.1f} GB of memory are available, {need / 1e9:.1f} GB are needed")
        pytest.skip(f"{need / 1e9:.1f} GB of memory are needed")
    yield
    gc.collect()
    comm.barrier()


def _available_bytes() -> int:
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


# A value depends on the index beyond 8 bits and on the rank; the period is prime, so no shift of a chunk goes unseen.
PERIOD = 251 * 241
_TABLE = ((np.arange(PERIOD, dtype=np.int64) * 7919) % 61).astype(np.int8)
_TILE = np.tile(_TABLE, CHUNK // PERIOD + 2)


def pattern(start: int, count: int, rank: int) -> np.ndarray:
    """Elements start … start + count of a rank's data: between 0 and 61."""
    first = (start + rank * 101) % PERIOD
    return _TILE[first : first + count]


def fill(x: np.ndarray, rank: int, offset: int = 0) -> np.ndarray:
    for start in range(0, len(x), CHUNK):
        stop = min(start + CHUNK, len(x))
        x[start:stop] = pattern(offset + start, stop - start, rank)
    return x


def verify(x: np.ndarray, *ranks: int, offset: int = 0) -> None:
    """x is the sum of the data of the ranks."""
    for start in range(0, len(x), CHUNK):
        stop = min(start + CHUNK, len(x))
        expected = pattern(offset + start, stop - start, ranks[0])
        for rank in ranks[1:]:
            expected = expected + pattern(offset + start, stop - start, rank)
        if not np.array_equal(x[start:stop], expected):
            at = start + int(np.flatnonzero(x[start:stop] != expected)[0])
            raise AssertionError(f"element {at} of {len(x)} is {x[at]} instead of {expected[at - start]}")


def mine(comm, count=COUNT):
    return fill(np.empty(count, np.int8), comm.rank)


def test_broadcast(comm):
    x = mine(comm) if comm.rank == 1 else np.empty(COUNT, np.int8)
    comm.broadcast(x, root=1)
    verify(x, 1)


def test_allreduce_in_place(comm):
    x = torch.from_numpy(mine(comm))
    comm.allreduce(x, out=x)
    verify(x.numpy(), 0, 1)


def test_reduce(comm):
    x = mine(comm)
    comm.reduce(x, root=1, out=x if comm.rank == 1 else None)
    verify(x, 0, 1) if comm.rank == 1 else verify(x, 0)


@pytest.mark.parametrize("method", ["scan", "exscan"])
def test_scan(comm, method):
    x = mine(comm)
    getattr(comm, method)(x, out=x)
    if method == "scan":
        verify(x, *range(comm.rank + 1))
    elif comm.rank:
        verify(x, 0)
    else:
        assert not x.any()


def test_allgather(comm):
    """More in all than a count can say, half of it from each."""
    half = COUNT // 2 + 1
    out = np.empty((2, half), np.int8)
    fill(out[comm.rank], comm.rank)
    comm.allgather(out[comm.rank], out=out)
    verify(out[0], 0)
    verify(out[1], 1)


def test_allgather_uneven(comm):
    """One block alone is longer than a count can say."""
    counts = [5, COUNT]
    out = comm.allgather(mine(comm, counts[comm.rank]), counts=counts)
    verify(out[:5], 0)
    verify(out[5:], 1)


def test_gather(comm):
    half = COUNT // 2 + 1
    out = comm.gather(mine(comm, half), root=1)
    if comm.rank == 1:
        verify(out[0], 0)
        verify(out[1], 1)


def test_scatter(comm):
    counts = [7, COUNT]
    x = mine(comm, sum(counts)) if comm.rank == 0 else None
    out = np.empty(counts[comm.rank], np.int8)
    comm.scatter(x, counts=counts, out=out)
    verify(out, 0, offset=7 * comm.rank)


def test_reduce_scatter(comm):
    half = COUNT // 2 + 1
    out = comm.reduce_scatter(mine(comm, 2 * half).reshape(2, half))
    verify(out, 0, 1, offset=half * comm.rank)


def test_reduce_scatter_uneven(comm):
    counts = [COUNT - 3, 9]
    out = comm.reduce_scatter(mine(comm, sum(counts)), counts=counts)
    verify(out, 0, 1, offset=counts[0] * comm.rank)


def test_alltoall(comm):
    half = COUNT // 2 + 1
    x = mine(comm, 2 * half).reshape(2, half)
    out = comm.alltoall(x)
    del x
    verify(out[0], 0, offset=half * comm.rank)
    verify(out[1], 1, offset=half * comm.rank)


def test_send_and_recv(comm):
    if comm.rank == 0:
        comm.send(mine(comm), dest=1)
    else:
        x = np.empty(COUNT, np.int8)
        work = comm.recv(x, source=0, blocking=False)
        work.wait(200)
        assert work.nbytes == COUNT
        verify(x, 0)


def test_half_precision(comm):
    """More than 2**31 - 1 bytes of bfloat16, by the exchange."""
    count = COUNT // 2 + 5
    x = torch.empty(count, dtype=torch.bfloat16)
    for start in range(0, count, CHUNK):
        stop = min(start + CHUNK, count)
        x[start:stop] = torch.from_numpy(pattern(start, stop - start, comm.rank))
    comm.allreduce(x, out=x)
    for start in range(0, count, CHUNK):
        stop = min(start + CHUNK, count)
        expected = torch.from_numpy(pattern(start, stop - start, 0) + pattern(start, stop - start, 1))
        assert torch.equal(x[start:stop], expected.bfloat16()), f"between {start} and {stop}"
