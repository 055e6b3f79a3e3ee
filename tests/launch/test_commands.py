"""hpccoll.launch.commands: the command per MPI, word by word."""

import shlex

import pytest

from hpccoll.errors import ArgumentError
from hpccoll.launch.commands import (
    Command,
    Host,
    Job,
    exported_names,
    mpirun_command,
    parse_hosts,
    placement,
    srun_command,
)
from hpccoll.probe import Mpi, flavour_of, pmi_for

OPEN_MPI_5 = Mpi("Open MPI", 5, "Open MPI v5.0.11", "/venv/lib/libmpi.so.40", "/venv/bin/mpirun")
OPEN_MPI_4 = Mpi("Open MPI", 4, "Open MPI v4.1.4", "/usr/lib/libmpi.so.40", "/usr/bin/mpirun.openmpi")
MPICH = Mpi("MPICH", 5, "MPICH Version: 5.0.2", "/venv/lib/libmpi.so.12", "/venv/bin/mpirun")
INTEL = Mpi("Intel MPI", 2021, "Intel(R) MPI Library 2021.18", "/venv/lib/libmpi.so.12", "/venv/bin/mpirun")

PROGRAM = ("/venv/bin/python", "my script.py")
PLAIN = Job(2, PROGRAM)
HOSTS = Job(6, PROGRAM, (Host("a", 4), Host("b", 4)), cpus_per_rank=2, exports=("OMP_NUM_THREADS", "PATH"))
PER_HOST = Job(4, PROGRAM, (Host("a"), Host("b")), per_host=2, as_root=True)
SHARED = Job(8, PROGRAM, (Host("a", 2), Host("b", 2)), oversubscribe=True)

KEEPALIVE_4 = (
    "--mca oob_tcp_keepalive_time 3 --mca oob_tcp_keepalive_intvl 1 --mca oob_tcp_keepalive_probes 3"
)
KEEPALIVE_5 = KEEPALIVE_4.replace("--mca", "--prtemca")
RUN = "/venv/bin/python 'my script.py'"


@pytest.mark.parametrize(
    ("mpi", "job", "golden"),
    [
        (OPEN_MPI_5, PLAIN, f"/venv/bin/mpirun -n 2 --map-by slot --bind-to core {KEEPALIVE_5} {RUN}"),
        (
            OPEN_MPI_5,
            HOSTS,
            f"/venv/bin/mpirun -n 6 --host a:4,b:2 --map-by slot:PE=2 --bind-to core {KEEPALIVE_5} "
            f"-x OMP_NUM_THREADS -x PATH {RUN}",
        ),
        (
            OPEN_MPI_5,
            PER_HOST,
            "/venv/bin/mpirun -n 4 --allow-run-as-root --host a:2,b:2 --map-by ppr:2:node --bind-to core "
            f"{KEEPALIVE_5} {RUN}",
        ),
        (
            OPEN_MPI_5,
            SHARED,
            "/venv/bin/mpirun -n 8 --host a:4,b:4 --map-by slot:oversubscribe --bind-to none "
            f"{KEEPALIVE_5} --mca mpi_yield_when_idle 1 {RUN}",
        ),
        (
            OPEN_MPI_4,
            HOSTS,
            f"/usr/bin/mpirun.openmpi -n 6 --host a:4,b:2 --map-by slot:PE=2 --bind-to core {KEEPALIVE_4} "
            f"-x OMP_NUM_THREADS -x PATH {RUN}",
        ),
        (
            OPEN_MPI_4,
            SHARED,
            "/usr/bin/mpirun.openmpi -n 8 --host a:4,b:4 --map-by slot:OVERSUBSCRIBE --bind-to none "
            f"{KEEPALIVE_4} --mca mpi_yield_when_idle 1 {RUN}",
        ),
        (MPICH, PLAIN, f"/venv/bin/mpirun -n 2 -bind-to core:1 {RUN}"),
        (
            MPICH,
            HOSTS,
            f"/venv/bin/mpirun -n 6 -hosts a:4,b:2 -bind-to core:2 -genvlist OMP_NUM_THREADS,PATH {RUN}",
        ),
        (MPICH, PER_HOST, f"/venv/bin/mpirun -n 4 -hosts a:2,b:2 -bind-to core:1 {RUN}"),
        (MPICH, SHARED, f"/venv/bin/mpirun -n 8 -hosts a:4,b:4 {RUN}"),
        (
            INTEL,
            PLAIN,
            f"env -u I_MPI_PMI_LIBRARY I_MPI_PIN_DOMAIN=1:compact /venv/bin/mpiexec.hydra -n 2 {RUN}",
        ),
        (
            INTEL,
            HOSTS,
            "env -u I_MPI_PMI_LIBRARY I_MPI_PIN_DOMAIN=2:compact /venv/bin/mpiexec.hydra "
            f"-genvlist OMP_NUM_THREADS,PATH -n 4 -host a {RUN} : -n 2 -host b {RUN}",
        ),
        (
            INTEL,
            SHARED,
            "env -u I_MPI_PMI_LIBRARY I_MPI_PIN=0 I_MPI_WAIT_MODE=1 /venv/bin/mpiexec.hydra "
            f"-n 4 -host a {RUN} : -n 4 -host b {RUN}",
        ),
    ],
)
def test_mpirun(mpi: Mpi, job: Job, golden: str) -> None:
    command = mpirun_command(job, mpi)
    assert command.shell() == golden
    assert shlex.split(golden)[-len(command.argv) :] == list(command.argv)


def test_mpich_inside_slurm() -> None:
    assert mpirun_command(Job(4, PROGRAM, per_host=2), MPICH, in_slurm=True).shell() == (
        f"env SLURM_MPI_TYPE=none /venv/bin/mpirun -n 4 -ppn 2 -bind-to core:1 {RUN}"
    )


@pytest.mark.parametrize(
    ("job", "golden"),
    [
        (
            Job(8, PROGRAM, per_host=4, cpus_per_rank=3),
            "srun --mpi=pmix --ntasks=8 --kill-on-bad-exit=1 --export=ALL --ntasks-per-node=4 --cpus-per-task=3 "
            f"--cpu-bind=cores {RUN}",
        ),
        (
            Job(4, PROGRAM, (Host("a", 2), Host("b", 2))),
            "srun --mpi=pmix --ntasks=4 --kill-on-bad-exit=1 --export=ALL --nodes=2 --nodelist=a,b "
            f"--ntasks-per-node=2 --cpu-bind=cores {RUN}",
        ),
        (
            Job(8, PROGRAM, oversubscribe=True),
            "env OMPI_MCA_mpi_yield_when_idle=1 srun --mpi=pmix --ntasks=8 --kill-on-bad-exit=1 --export=ALL "
            f"--overcommit --cpu-bind=none {RUN}",
        ),
    ],
)
def test_srun(job: Job, golden: str) -> None:
    assert srun_command(job, "pmix").shell() == golden


def test_srun_needs_the_same_number_on_every_host() -> None:
    with pytest.raises(ArgumentError, match="--launcher mpirun"):
        srun_command(HOSTS, "pmix")


def test_intel_mpi_is_pointed_at_slurms_library() -> None:
    command = srun_command(PLAIN, "pmi2", "/usr/lib/libpmi2.so")
    assert command.setting == {"I_MPI_PMI_LIBRARY": "/usr/lib/libpmi2.so"}


def test_no_mpirun() -> None:
    with pytest.raises(ArgumentError, match=r"no mpirun beside /x/libmpi.so"):
        mpirun_command(PLAIN, Mpi("MPICH", 4, "MPICH Version: 4.2", "/x/libmpi.so", ""))
    with pytest.raises(ArgumentError, match="no rule"):
        mpirun_command(PLAIN, Mpi("unknown", 0, "Some MPI 1", "/x/libmpi.so", "/x/mpirun"))


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a:4,b:4", (Host("a", 4), Host("b", 4))),
        ("a,b", (Host("a"), Host("b"))),
        ("a,b,a", (Host("a", 2), Host("b"))),
        (
            "a slots=4\n# comment\n\nb slots=2 max_slots=8 # end\nc\nd:3",
            (Host("a", 4), Host("b", 2), Host("c"), Host("d", 3)),
        ),
        ("", ()),
    ],
)
def test_parse_hosts(text: str, hosts: tuple[Host, ...]) -> None:
    assert parse_hosts(text) == hosts


@pytest.mark.parametrize("text", ["a:0", "a:x", ":4", "a slots=no", "-x", "a:-1"])
def test_bad_hosts(text: str) -> None:
    with pytest.raises(ArgumentError, match="hosts"):
        parse_hosts(text)


def test_placement() -> None:
    assert placement(PLAIN) == ()
    assert placement(HOSTS) == (("a", 4), ("b", 2))
    assert placement(Job(3, PROGRAM, (Host("a"), Host("b")))) == (("a", 2), ("b", 1))
    assert placement(Job(1, PROGRAM, (Host("a", 2), Host("b", 2)))) == (("a", 1),)
    assert placement(SHARED) == (("a", 4), ("b", 4))
    with pytest.raises(ArgumentError, match=r"8 ranks, but the hosts take 4 \(a:2, b:2\)"):
        placement(Job(8, PROGRAM, (Host("a", 2), Host("b", 2))))


def test_exported_names() -> None:
    environ = {
        "PYTHONPATH": "x",
        "HPCCOLL_A": "",
        "OMP_NUM_THREADS": "1",
        "HOME": "/",
        "MINE": "1",
        "OTHER": "",
    }
    assert exported_names(environ, ["MINE", "NOT_SET"]) == (
        "HPCCOLL_A",
        "MINE",
        "OMP_NUM_THREADS",
        "PYTHONPATH",
    )


def test_environment_of_a_command() -> None:
    command = Command(("x",), {"A": "1"}, ("B",))
    found = command.environment({"_": "sh", "B": "2", "C": "3"})
    assert list(found.items()) == [("C", "3"), ("A", "1"), ("_", "x")]  # Hydra forgets the last one


@pytest.mark.parametrize(
    ("version", "flavour"),
    [
        ("Open MPI v5.0.11, package: Open MPI user@localhost Distribution", ("Open MPI", 5)),
        ("Open MPI v4.1.4, package: Debian OpenMPI", ("Open MPI", 4)),
        ("MPICH Version: 5.0.2", ("MPICH", 5)),
        ("MPICH Version: 4.1a1", ("MPICH", 4)),
        ("Intel(R) MPI Library 2021.18.1 for Linux* OS", ("Intel MPI", 2021)),
        ("MPI VERSION : CRAY MPICH version 8.1.25.17 (ANL base 3.4a2)", ("MPICH", 8)),
        ("MVAPICH Version : 3.0", ("MPICH", 3)),
        ("Something else 1.0", ("unknown", 0)),
    ],
)
def test_flavour(version: str, flavour: tuple[str, int]) -> None:
    assert flavour_of(version) == flavour


def test_pmi_type() -> None:
    everything = ["none", "pmi2", "pmix", "cray_shasta"]
    assert pmi_for(OPEN_MPI_5, everything) == "pmix"
    assert pmi_for(OPEN_MPI_5, ["none", "pmi2"]) is None  # it would be N singletons
    assert pmi_for(OPEN_MPI_4, ["none", "pmi2"]) == "pmi2"
    assert pmi_for(MPICH, everything) == "pmi2"
    assert pmi_for(INTEL, everything) == "pmi2"
    assert pmi_for(Mpi("unknown", 0, "", "", ""), everything) is None
