"""Clocks that are apart and run at different paces are aligned, and gates let nobody through early."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from hpccoll.bench import clock
from hpccoll.bench.arrival import prove_waiting
from hpccoll.bench.clock import AlignedClock
from hpccoll.bench.gates import DisseminationBarrier, LibraryBarrier, WindowGate, make_gate

PACE_PPM = 100.0


@pytest.fixture
def apart(comm: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """This rank's clock: 10 s ahead per rank, and faster; gives what the true clock, rank 0's, shows then."""
    begin = time.perf_counter_ns()

    def now_ns() -> int:
        true = time.perf_counter_ns()
        return true + comm.rank * 10_000_000_000 + int((true - begin) * PACE_PPM * 1e-6 * comm.rank)

    def true_ns(local: int) -> float:
        passed = (local - begin - comm.rank * 10_000_000_000) / (1 + PACE_PPM * 1e-6 * comm.rank)
        return begin + passed

    monkeypatch.setattr(clock, "now_ns", now_ns)
    return true_ns


def test_aligned_times_are_right_within_their_uncertainty(comm, apart):
    aligned = AlignedClock(comm.mpi)
    times = []
    for _ in range(20):
        times.append(clock.now_ns())
        time.sleep(0.01)
    aligned.measure()
    zero = comm.mpi.bcast(apart(aligned._zero_ns))
    found = aligned.aligned(np.array(times))
    errors = [abs(float(t) - (apart(local) - zero)) for t, local in zip(found, times, strict=True)]
    # 64 ns for the conversions of this test, which are in floats.
    assert max(errors) <= aligned.uncertainty_ns + 64
    assert (aligned.uncertainty_ns > 0) == (comm.rank > 0)
    back = aligned.local(int(found[-1]))
    assert abs(back - times[-1]) < 1_000_000


def test_drift(comm, apart):
    aligned = AlignedClock(comm.mpi)
    assert aligned.drift_ppm == 0
    first = aligned.readings[0]
    time.sleep(0.5)
    last = aligned.measure()
    bound = (first.uncertainty_ns + last.uncertainty_ns) / (last.local_ns - first.local_ns) * 1e6
    assert abs(aligned.drift_ppm + PACE_PPM * comm.rank) <= bound + 1
    record = aligned.record()
    assert record["offset_ns"] == last.offset_ns
    assert record["uncertainty_ns"] == last.uncertainty_ns
    assert abs(record["unix_ns"] - time.time_ns()) < 10e9


def test_offsets_keep_their_last_digits(comm):
    """A clock that has run for a century has more digits than a float."""
    aligned = AlignedClock(comm.mpi)
    aligned.measure()
    large = np.array([2**61 + 1, 2**61 + 2, 2**61 + 4], np.int64)
    assert np.diff(aligned.aligned(large)).tolist() == [1, 2]


@pytest.mark.parametrize("name", ["library", "dissemination", "window"])
def test_nobody_leaves_a_gate_early(comm, name):
    gate = make_gate(name, comm.mpi, AlignedClock(comm.mpi), oversubscribed=True)
    assert isinstance(
        gate, {"library": LibraryBarrier, "dissemination": DisseminationBarrier}.get(name, WindowGate)
    )
    for _ in range(50):
        gate.wait()
    assert prove_waiting(gate.wait, comm.mpi) == []


def test_window_opens_at_one_time(comm, apart):
    aligned = AlignedClock(comm.mpi)
    gate = WindowGate(comm.mpi, aligned, oversubscribed=True)
    for _ in range(20):
        agreed = gate.wait()
        assert agreed is not None
        assert clock.now_ns() >= agreed
        starts = comm.mpi.allgather(agreed + aligned.readings[-1].offset_ns)
        assert max(starts) == min(starts)


def test_slack_grows_only_where_ranks_miss_the_time(comm):
    gate = WindowGate(comm.mpi, AlignedClock(comm.mpi), oversubscribed=True)
    before = gate.slack_ns
    gate.adapt(100)
    assert gate.slack_ns == before
    gate._missed = 20 if comm.rank == comm.size - 1 else 0
    gate.adapt(100)
    assert comm.mpi.allgather(gate.slack_ns) == [2 * before] * comm.size
    for _ in range(20):
        gate._missed = 100
        gate.adapt(100)
    assert gate.slack_ns == 1_000_000
