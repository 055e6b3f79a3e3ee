"""What a run leaves behind: JSON Lines, one file per rank or per node, written a whole line at a time.

The schema is `hpccoll.record/1`: `FIELDS` has every field of every kind of line with its unit, and
docs/records.md shows the same. A job of yours writes the same files::

    from hpccoll.records import RecordWriter, make_manifest, rank_file

    with RecordWriter(run_dir / rank_file(comm.rank)) as log:
        log.write(make_manifest("train", run="...", rank=comm.rank, size=comm.size))
        log.write(make_metric(comm.rank, step=1, values={"loss": 2.3, "step_s": 0.4}))
        log.write(make_end(comm.rank, status="ok", lines=log.lines))

Standard library only: the files are read on login nodes without MPI, NumPy or torch.
"""

from __future__ import annotations

import errno
import json
import math
import os
import platform
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpccoll._version import __version__
from hpccoll.environment import detect

__all__ = [
    "FIELDS",
    "Field",
    "Line",
    "RecordWriter",
    "SCHEMA",
    "git_state",
    "job_id",
    "make_end",
    "make_event",
    "make_manifest",
    "make_metric",
    "make_run_dir",
    "node_file",
    "parse_line",
    "problems_of",
    "rank_file",
    "read_records",
    "record_files",
]

SCHEMA = "hpccoll.record/1"

_JSON: dict[str, Any] = {
    "str": str,
    "int": int,
    "float": (int, float),
    "bool": bool,
    "list": list,
    "dict": dict,
}


class Field(NamedTuple):
    """One field of a line.

    Attributes
    ----------
    name : str
    kind : str
        ``str``, ``int``, ``float``, ``bool``, ``list`` or ``dict``; with ``?`` it may be null.
    unit : str
        Empty where there is none.
    meaning : str
    """

    name: str
    kind: str
    unit: str
    meaning: str


_RANK = Field("rank", "int", "", "rank in the job, from 0")
_CASE = (
    Field("collective", "str", "", "the program's name for it"),
    Field("engine", "str", "", "what made the call"),
    Field("nbytes", "int", "bytes", "S of docs/methods.md"),
    Field("count", "int", "elements", "elements in a block"),
    Field("dtype", "str?", "", "null where nothing is sent"),
    Field("op", "str?", "", "reduction; null where there is none"),
    Field("root", "int?", "", "null where there is none"),
    Field("in_place", "bool?", "", "null where nothing is sent"),
    Field("mode", "str", "", "`barrier`, `window` or `pipelined`"),
    Field("launch", "int", "", "number of the repetition of the sweep, from 0"),
)
_FLAGS = Field("flags", "str", "", "`oversubscribed`, `unbound`, `mixed-hosts`, with commas; empty for none")

FIELDS: dict[str, tuple[Field, ...]] = {
    "manifest": (
        _RANK,
        Field("schema", "str", "", f"`{SCHEMA}`"),
        Field("run", "str", "", "name of the run, the same on every rank; another one is a foreign file"),
        Field("program", "str", "", "`allreduce`, ..., or the name that a job gave itself"),
        Field("size", "int", "ranks", "ranks that the run should have"),
        Field("local_rank", "int?", "", "rank among those of this host"),
        Field("host", "str", "", "host name"),
        Field("pid", "int", "", "process id"),
        Field("argv", "list", "", "command line"),
        Field("started", "str", "", "UTC, ISO 8601"),
        Field(
            "versions", "dict", "", "`hpccoll`, `python`, `numpy`, `torch`, `mpi4py`, `mpi`: text, or null"
        ),
        Field(
            "launcher", "dict?", "", "`name`, `rank`, `size`, `local_rank`, `local_size` as the launcher says"
        ),
        Field("job", "dict?", "", "`system` and `id` of the batch job"),
        Field("cores", "int", "CPUs", "logical CPUs of the host"),
        Field("affinity", "list", "", "logical CPUs that this process may use"),
        Field("environment", "dict", "", "variables that change how MPI, torch and threads behave"),
        Field("git", "dict?", "", "`commit` and `modified` (bool) of the program's source"),
        Field("clock", "dict?", "", "the first `clock` line, less `type` and `rank`; null: not aligned"),
        _FLAGS,
    ),
    "clock": (
        _RANK,
        Field("time_ns", "int", "ns", "when, on the aligned clock"),
        Field("offset_ns", "int", "ns", "to add to this rank's own clock to have the aligned one"),
        Field(
            "drift_ppm", "float", "1e-6", "change of the offset since the first measurement; 0 at the first"
        ),
        Field("uncertainty_ns", "int", "ns", "bound of the error of the offset: half round trips, added up"),
        Field("unix_ns", "int", "ns", "this rank's system clock at that time, as `time.time_ns` gives it"),
    ),
    "sample": (
        _RANK,
        *_CASE,
        Field("iteration", "int", "", "number of the sample within collective, engine, size and launch"),
        Field("calls", "int", "", "calls between start and end; more than 1 in batches"),
        Field("start_ns", "int", "ns", "aligned clock when this rank entered the (first) call"),
        Field("end_ns", "int", "ns", "aligned clock when it left the (last) call"),
        Field("verified", "bool?", "", "whether the result was right; null: not looked at"),
        _FLAGS,
    ),
    "histogram": (
        Field("rank", "int", "", "the rank that writes it; the counts are those of all ranks"),
        *_CASE,
        Field("ranks", "int", "ranks", "ranks whose samples were counted"),
        Field("calls", "int", "", "calls in each sample"),
        Field("samples", "int", "", "number of samples, the sum of the counts"),
        Field("relative_error", "float", "", "half width of a bucket relative to its middle, at most"),
        Field("lower_ns", "list", "ns", "least time per call that falls into the bucket, ascending"),
        Field("upper_ns", "list", "ns", "bound of the bucket; not part of it"),
        Field("counts", "list", "", "samples in the bucket; empty buckets are left out"),
        Field("wrong", "int", "samples", "those with a wrong result"),
        _FLAGS,
    ),
    "metric": (
        _RANK,
        Field("step", "int", "", "step of the training, or the like"),
        Field("unix_ns", "int", "ns", "system clock, as `time.time_ns` gives it"),
        Field(
            "values",
            "dict",
            "",
            "numbers by name, units in the names: `loss`, `step_s`; text for `nan`, `inf`",
        ),
    ),
    "event": (
        _RANK,
        Field("unix_ns", "int", "ns", "system clock, as `time.time_ns` gives it"),
        Field("level", "str", "", "`info`, `warning` or `error`"),
        Field("kind", "str", "", "`skipped`, `engine`, `late_start`, `wrong`, ...: one word to count by"),
        Field("text", "str", "", "for people"),
        Field("values", "dict", "", "what the text says, by name; may be empty"),
    ),
    "end": (
        _RANK,
        Field("status", "str", "", "`ok`, `wrong`, `stopped`, or what a job calls it"),
        Field("ended", "str", "", "UTC, ISO 8601"),
        Field("lines", "int", "lines", "lines of this rank before this one, the manifest included"),
    ),
}
"""The fields of each type of line, besides `type` itself."""


def problems_of(record: object) -> list[str]:
    """What is wrong with a record by the schema, in words; fields that the schema does not know are allowed."""
    if not isinstance(record, dict):
        return ["not an object"]
    fields = FIELDS.get(str(record.get("type")))
    if fields is None:
        return [f"type {record.get('type')!r} is none of {', '.join(FIELDS)}"]
    problems = []
    for field in fields:
        if field.name not in record:
            problems.append(f"{field.name} is missing")
            continue
        value, kind = record[field.name], field.kind.rstrip("?")
        if value is None and field.kind.endswith("?"):
            continue
        if not isinstance(value, _JSON[kind]) or (isinstance(value, bool) and kind != "bool"):
            problems.append(f"{field.name} is {value!r}, expected {field.kind}")
    return problems


# ---- Lines


def make_manifest(
    program: str,
    *,
    run: str,
    rank: int,
    size: int,
    local_rank: int | None = None,
    versions: Mapping[str, str | None] | None = None,
    git: Mapping[str, Any] | None = None,
    clock: Mapping[str, Any] | None = None,
    flags: str = "",
) -> dict[str, Any]:
    """First line of a rank: who it is, where it runs, and under which conditions.

    Parameters
    ----------
    program, run, rank, size, local_rank, git, clock, flags
        As in `FIELDS`; `run` has to be the same on every rank.
    versions
        Of what hpccoll cannot know here: ``numpy``, ``torch``, ``mpi4py``, ``mpi``.
    """
    launch = detect()
    return {
        "type": "manifest",
        "schema": SCHEMA,
        "run": run,
        "program": program,
        "rank": rank,
        "size": size,
        "local_rank": local_rank if local_rank is not None or launch is None else launch.local_rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "argv": list(sys.argv),
        "started": _utc(),
        "versions": {
            "hpccoll": __version__,
            "python": platform.python_version(),
            **dict.fromkeys(("numpy", "torch", "mpi4py", "mpi")),
            **(versions or {}),
        },
        "launcher": None
        if launch is None
        else {
            "name": launch.launcher,
            "rank": launch.rank,
            "size": launch.size,
            "local_rank": launch.local_rank,
            "local_size": launch.local_size,
        },
        "job": job_id(),
        "cores": os.cpu_count() or 1,
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
        "environment": _selected(os.environ),
        "git": None if git is None else dict(git),
        "clock": None if clock is None else dict(clock),
        "flags": flags,
    }


def make_event(
    rank: int, level: str, kind: str, text: str, values: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Something that happened: a warning, a size that was skipped."""
    return {
        "type": "event",
        "rank": rank,
        "unix_ns": time.time_ns(),
        "level": level,
        "kind": kind,
        "text": text,
        "values": dict(values or {}),
    }


def make_metric(rank: int, *, step: int, values: Mapping[str, float]) -> dict[str, Any]:
    """Numbers of one step of a job of yours; units belong into the names.

    JSON has no word for what is not finite: these are written as text, ``"nan"``, ``"inf"``, ``"-inf"``.
    """
    plain = {name: float(value) for name, value in values.items()}
    shown = {name: value if math.isfinite(value) else str(value) for name, value in plain.items()}
    return {"type": "metric", "rank": rank, "step": step, "unix_ns": time.time_ns(), "values": shown}


def make_end(rank: int, *, status: str, lines: int) -> dict[str, Any]:
    """Last line of a rank that came to its end; `lines` are those that it wrote before."""
    return {"type": "end", "rank": rank, "status": status, "ended": _utc(), "lines": lines}


def _utc() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


_PREFIXES = (
    *(
        "OMPI_MCA_",
        "PRTE_MCA_",
        "PMIX_MCA_",
        "MPICH_",
        "MPIR_CVAR_",
        "I_MPI_",
        "MV2_",
        "FI_",
        "UCX_",
        "HCOLL_",
    ),
    *(
        "SHARP_",
        "NCCL_",
        "GLOO_",
        "TORCH_",
        "PYTORCH_",
        "OMP_",
        "KMP_",
        "GOMP_",
        "HPCCOLL_",
        "SLURM_CPU_BIND",
    ),
)
_NAMES = (
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("MPI4PY_MPIABI", "MPI4PY_LIBMPI", "MALLOC_ARENA_MAX", "LD_PRELOAD"),
    *("SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "SLURM_MPI_TYPE", "SLURM_DISTRIBUTION"),
)
_SECRET = re.compile("TOKEN|SECRET|PASSW|CREDENTIAL|(^|_)KEY($|_)", re.IGNORECASE)


def _selected(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables worth keeping; never what may be a secret."""
    return {
        name: environ[name]
        for name in sorted(environ)
        if (name in _NAMES or name.startswith(_PREFIXES)) and not _SECRET.search(name)
    }


_JOBS = (
    ("Slurm", "SLURM_JOB_ID"),
    ("Flux", "FLUX_JOB_ID"),
    ("PBS", "PBS_JOBID"),
    ("LSF", "LSB_JOBID"),
    ("Grid Engine", "JOB_ID"),
)


def job_id(environ: Mapping[str, str] | None = None) -> dict[str, str] | None:
    """``{"system": ..., "id": ...}`` of the batch job that this process belongs to; None outside of one."""
    env = os.environ if environ is None else environ
    for system, name in _JOBS:
        if env.get(name):
            return {"system": system, "id": env[name]}
    return None


def git_state(directory: Path) -> dict[str, Any] | None:
    """``{"commit": ..., "modified": ...}`` of the checkout that holds `directory`; None where there is none.

    It starts git, so call it before MPI is started, and on one rank.
    """

    def ask(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(directory), *words], capture_output=True, text=True, timeout=5.0, check=True
        )
        return done.stdout.strip()

    try:
        return {
            "commit": ask("rev-parse", "HEAD"),
            "modified": bool(ask("status", "--porcelain", "-uno", "--", ".")),
        }
    except (OSError, subprocess.SubprocessError):
        return None


# ---- Files


def rank_file(rank: int) -> str:
    """Name of the file of one rank."""
    return f"rank-{rank:05d}.jsonl"


def node_file(node: int) -> str:
    """Name of the file that one writer keeps for all ranks of a node; nodes count from 0."""
    return f"node-{node:05d}.jsonl"


def record_files(run_dir: Path) -> list[Path]:
    """The record files of a run, by name."""
    return sorted(path for path in run_dir.iterdir() if re.fullmatch(r"(rank|node)-\d{5,}\.jsonl", path.name))


def make_run_dir(parent: Path, program: str) -> Path:
    """Make a new directory for a run below `parent` and return its absolute path; one rank calls this.

    It is named after the program, the time (UTC) and the job, or the process where there is no job. Of two
    runs in one second the second gets a number as well.

    Raises
    ------
    OSError
        It cannot be made.
    """
    job = job_id()
    last = re.sub(r"[^\w.-]", "_", job["id"]) if job else f"pid{os.getpid()}"
    name = f"{program}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{last}"
    parent = parent.absolute()
    parent.mkdir(parents=True, exist_ok=True)
    for number in range(1, 1000):
        path = parent / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise FileExistsError(errno.EEXIST, "too many runs of this name", str(parent / name))


class RecordWriter:
    """Appends records to a new file, one ``write`` of the system for each line.

    So a process that is killed leaves whole lines, and what it wrote outlives it. After an error, a full disk
    for instance, the next line begins on a line of its own.

    Parameters
    ----------
    path
        Made absolute; missing directories are made. The file must not exist: two writers would mix their lines.

    Raises
    ------
    OSError
        From the constructor, `write` and `check`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.lines = 0
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
        self._descriptor = os.open(self.path, flags, 0o666)
        self._whole = True

    def write(self, record: Mapping[str, Any]) -> None:
        """Write one record as one line."""
        self.write_line(json.dumps(record, separators=(",", ":"), ensure_ascii=False, allow_nan=False))

    def write_line(self, text: str) -> None:
        """Write a record that is JSON text already, without a line break in it."""
        line = (text if self._whole else "\n" + text).encode("utf-8", "backslashreplace") + b"\n"
        done = 0
        try:
            while done < len(line):
                done += os.write(self._descriptor, line[done:])
        finally:
            if done:
                self._whole = done == len(line)
        self.lines += 1

    def check(self) -> None:
        """Raise if the file is no longer there to be found: it, or its directory, was removed."""
        try:
            same = os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except FileNotFoundError:
            same = False
        if not same:
            raise FileNotFoundError(errno.ENOENT, "the file was removed while it was written", str(self.path))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Line(NamedTuple):
    """One line of a record file.

    Attributes
    ----------
    number : int
        From 1.
    record : dict or None
        None if the line is not a record.
    problem : str or None
        Why not. ``truncated`` is a last line without its line break that cannot be read.
    """

    number: int
    record: dict[str, Any] | None
    problem: str | None


def read_records(path: Path) -> Iterator[Line]:
    """The lines of a record file in order; a line that cannot be read costs that line and nothing else.

    Raises
    ------
    OSError
        The file cannot be opened or read.
    """
    with open(path, "rb") as stream:
        yield from _parse(stream)


def _parse(raw_lines: Iterable[bytes]) -> Iterator[Line]:
    for number, raw in enumerate(raw_lines, 1):
        if raw.strip():
            yield parse_line(number, raw)


def parse_line(number: int, raw: bytes) -> Line:
    """One raw line as a `Line`."""
    try:
        record = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as exc:
        cut = not raw.endswith(b"\n")
        return Line(number, None, "truncated" if cut else f"not JSON: {_short(str(exc))}")
    problems = problems_of(record)
    if problems:
        return Line(number, None, _short("; ".join(problems)))
    return Line(number, record, None)


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + " ..."
