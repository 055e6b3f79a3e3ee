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

from hpccoll.records.files import (
    Line,
    RecordWriter,
    make_run_dir,
    node_file,
    parse_line,
    rank_file,
    read_records,
    record_files,
)
from hpccoll.records.lines import git_state, job_id, make_end, make_event, make_manifest, make_metric
from hpccoll.records.schema import FIELDS, SCHEMA, Field, problems_of

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
