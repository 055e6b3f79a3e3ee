"""Commands and faults on the cluster of minicluster.sh."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import hpccoll

HERE = Path(__file__).resolve().parent
ROOT = Path(hpccoll.__file__).resolve().parents[1]
JOBS = ROOT / "jobs"
DEBIAN_MPI = Path("/usr/lib/x86_64-linux-gnu/libmpi.so.40")
NODES = ("node1", "node2", "node3")
_LAUNCHER = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "SLURM_", "HPCCOLL_")


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it printed."""

    status: int
    text: str


@dataclass(frozen=True)
class Job:
    """How a Slurm job ended: its state, ``status:signal``, and what it printed."""

    number: str
    state: str
    code: str
    text: str


class Cluster:
    """Commands on the hosts, and faults of the hosts."""

    def __init__(self, base: Path, shared: Path) -> None:
        self.base = base
        self.shared = shared
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHER)}
        self.env = {
            **kept,
            "MC_DIR": str(base),
            "MC_OWNER": str(os.getpid()),
            "MC_NODES": str(len(NODES)),
            "MC_CPUS": "4",
            "MC_SHARED": "\n".join(map(str, (ROOT, sys.prefix, shared))),
            "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
            "PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            # All hosts share the cores of this machine.
            "OMPI_MCA_mpi_yield_when_idle": "1",
            "OMPI_MCA_btl": "^ofi,uct",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }

    def control(self, *arguments: str, timeout_s: float = 60, env: Mapping[str, str] | None = None) -> Done:
        """Run minicluster.sh; its status is 124 after `timeout_s`."""
        # A file and no pipe: what is left running would hold a pipe open.
        with tempfile.TemporaryFile() as out:
            done = subprocess.run(
                ["timeout", "-k", "5", str(timeout_s), "bash", str(HERE / "minicluster.sh"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**self.env, **(env or {})},
                cwd=self.shared,
            )
            out.seek(0)
            return Done(done.returncode, out.read().decode(errors="replace").replace("\0", ""))

    def must(self, *arguments: str, timeout_s: float = 60) -> str:
        """Like `control`, for what has to succeed."""
        done = self.control(*arguments, timeout_s=timeout_s)
        assert done.status == 0, f"{arguments}: {done.text}"
        return done.text

    def run(self, *command: object, host: str = "head", timeout_s: float = 60, **env: str) -> Done:
        """Run `command` on `host`."""
        return self.control("exec", host, *map(str, command), timeout_s=timeout_s, env=env)

    def shell(self, text: str, host: str = "head") -> str:
        """Run a line of shell on `host`, which has to succeed."""
        return self.must("exec", host, "sh", "-c", text)

    def start(self, *command: object, log: Path, **env: str) -> subprocess.Popen[bytes]:
        """Start `command` on the head, with its output in `log`."""
        with log.open("wb") as out:
            return subprocess.Popen(
                [
                    "timeout",
                    "-k",
                    "5",
                    "150",
                    "bash",
                    str(HERE / "minicluster.sh"),
                    "exec",
                    "head",
                    *map(str, command),
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**self.env, **env},
                cwd=log.parent,
            )

    def launch(self, ranks: int, hosts: str, *program: str, timeout_s: float = 60, **env: str) -> Done:
        """`program` over ssh, by hpccoll.launch with the Python in ``env["PYTHON"]``."""
        python = env.get("PYTHON", sys.executable)
        command = [python, "-m", "hpccoll.launch", "-n", str(ranks), "--hosts", hosts, "--", *program]
        return self.run(*command, timeout_s=timeout_s, **env)

    def submit(self, directory: Path, *arguments: object, **env: str) -> str:
        """Submit a job from `directory`; its number."""
        directory.mkdir(parents=True, exist_ok=True)
        line = f"cd {shlex.quote(str(directory))} && exec " + shlex.join(
            ["sbatch", "--parsable", *map(str, arguments)]
        )
        done = self.run("sh", "-c", line, **env)
        assert done.status == 0, done.text
        return done.text.strip()

    def state(self, job: str) -> str:
        text = self.run("scontrol", "-o", "show", "job", job).text
        match = re.search(r"JobState=(\S+)", text)
        return match[1] if match else "UNKNOWN"

    def wait_for_job(self, job: str, output: Path, timeout_s: float = 90) -> Job:
        """Until the job is over."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            text = self.run("scontrol", "-o", "show", "job", job).text
            match = re.search(r"JobState=(\S+)", text)
            if match and match[1] not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED"):
                code = re.search(r"ExitCode=(\S+)", text)
                printed = output.read_text(errors="replace") if output.exists() else ""
                return Job(job, match[1], code[1] if code else "", printed.replace("\0", ""))
            time.sleep(0.2)
        self.run("scancel", job)
        printed = output.read_text(errors="replace") if output.exists() else ""
        pytest.fail(f"job {job} is not over after {timeout_s} s\n{printed}")

    def left(self) -> str:
        """Processes of hpccoll that still run on the hosts, after up to 15 s for them to end."""
        until = time.monotonic() + 15
        while True:
            all_hosts = [
                self.control("exec", host, "pgrep", "-af", "hpccoll[.]") for host in ("head", *NODES)
            ]
            found = "".join(done.text for done in all_hosts if done.status == 0)
            if not found or time.monotonic() > until:
                return found
            time.sleep(0.5)


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 60) -> None:
    """Poll until `condition` holds."""
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, f"not within {timeout_s} s: {what}"
        time.sleep(0.1)
