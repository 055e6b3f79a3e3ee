"""Check mode as the environment asks for it, in jobs of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Mpirun

from hpccoll.comm.finite import first_odd

JOB = """
import sys
import numpy as np
import hpccoll as hc
try:
    comm = hc.world()
    comm.allreduce(np.array([1.0] * (2 if comm.rank == 1 else 3)))
except Exception as error:
    sys.stdout.write(f"{type(error).__name__}: {error}".replace("\\n", "|") + "\\n")
"""


@pytest.mark.parametrize("recorder", ["0", "10"])
def test_the_world_is_checked(mpirun: Mpirun, recorder: str) -> None:
    """Also without the recorder, which is another thing."""
    done = mpirun(3, "-c", JOB, env={"HPCCOLL_CHECK": "1", "HPCCOLL_RECORDER": recorder})
    lines = done.stdout.splitlines()
    assert len(lines) == 3 and len(set(lines)) == 1
    assert lines[0].startswith(
        "MismatchError: check mode: collective 1 of hpccoll world: the ranks differ in count."
    )
    assert "|  ranks 0,2: allreduce(float64[3], op=sum) at <string>:7 in <module>|  rank 1: " in lines[0]


def test_a_wrong_value_stops_the_job(mpirun: Mpirun) -> None:
    done = mpirun(2, "-c", JOB, env={"HPCCOLL_CHECK": "maybe"})
    assert done.stdout.splitlines() == [done.stdout.splitlines()[0]] * 2
    assert done.stdout.startswith("ArgumentError: HPCCOLL_CHECK must be 1")


def test_ranks_of_different_minds(mpirun: Mpirun) -> None:
    code = "import os\nos.environ['HPCCOLL_CHECK'] = os.environ.get('OMPI_COMM_WORLD_RANK', '0')\n" + JOB
    lines = sorted(mpirun(2, "-c", code).stdout.splitlines())
    assert [line[:64] for line in lines] == [
        "ArgumentError: world: HPCCOLL_CHECK must be the same on every ra"
    ] * 2
    assert "rank 0 has '0'" in lines[0] and "rank 1 has '1'" in lines[1]


def test_a_checked_communicator_needs_the_recorders_hooks(mpirun: Mpirun) -> None:
    code = JOB.replace("hc.world()", "hc.Comm(hc.world().mpi, check=True)")
    lines = mpirun(2, "-c", code, env={"HPCCOLL_RECORDER": "0"}).stdout.splitlines()
    assert lines == ["ArgumentError: Comm: `check` needs the recorder: unset HPCCOLL_RECORDER=0"] * 2


def test_the_dump_of_an_error_that_nobody_catches(mpirun: Mpirun, tmp_path: Path) -> None:
    code = """
import numpy as np
import hpccoll as hc
hc.abort_on_exception()
comm = hc.world()
comm.allreduce(np.ones(2 + comm.rank))
"""
    env = {"HPCCOLL_CHECK": "1", "HPCCOLL_DUMP_DIR": str(tmp_path)}
    assert mpirun(2, "-c", code, env=env, check=False).returncode == 1
    dumps = [json.loads(path.read_text()) for path in tmp_path.glob("rank*.json")]
    assert dumps and {dump["reason"] for dump in dumps} <= {"check", "terminated"}
    assert any("the ranks differ in count" in dump["message"] for dump in dumps)


@pytest.mark.parametrize("x", [None, 3, 10**400, True, "nan", 1.5, 2j, [float("nan")], object()])
def test_what_has_no_nan(x: object) -> None:
    assert first_odd(x) is None
