"""The schema: every field of every kind of line, with its unit."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["FIELDS", "Field", "SCHEMA", "problems_of"]

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
