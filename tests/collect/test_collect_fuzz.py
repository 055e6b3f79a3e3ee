"""Whatever the files hold: the reader comes to its end and keeps every line that is a record."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic_runs import Synthetic

from hpccoll.collect.program import main
from hpccoll.records import rank_file, read_records
from hpccoll.runs.reading import find_files, read_files
from hpccoll.runs.store import Store

RUN = Synthetic(ranks=2, sizes=(8,), iterations=4)
LINES = [line.encode() for line in RUN.lines(0, RUN.times())]
OTHERS = [
    b'{"type":"metric","rank":0,"step":1,"unix_ns":5,"values":{"loss":1.5,"x":"nan"}}',
    b'{"type":"event","rank":0,"unix_ns":5,"level":"info","kind":"a","text":"b","values":{"a":{"b":[1]}}}',
    b'{"type":"clock","rank":0,"time_ns":1,"offset_ns":2,"drift_ppm":0,"uncertainty_ns":3,"unix_ns":4}',
    b'{"type":"sample","rank":0}',
    b'{"type":"metric","rank":0,"step":1,"unix_ns":5,"values":[]}',
    b'[{"type":"end"}]', b"NaN", b"1e999", b"{}", b'"', b"\xef\xbb\xbf{}", b"\x00" * 7, b"[" * 3000,
]  # fmt: skip

line = st.one_of(
    st.sampled_from(LINES),
    st.sampled_from(OTHERS),
    st.binary(max_size=40),
    st.tuples(st.sampled_from(LINES), st.integers(0, 400)).map(lambda pair: pair[0][: pair[1]]),
    st.tuples(st.sampled_from(LINES), st.integers(0, 400), st.binary(min_size=1, max_size=3)).map(
        lambda parts: parts[0][: parts[1]] + parts[2] + parts[0][parts[1] + len(parts[2]) :]
    ),
)
content = st.tuples(
    st.lists(line, max_size=12), st.sampled_from([b"\n", b"\r\n", b"\n\n"]), st.booleans()
).map(lambda parts: parts[1].join(parts[0]) + (parts[1] if parts[2] else b""))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(content, min_size=1, max_size=3))
def test_the_reader_keeps_every_good_line(contents: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as name, Store(threads=1) as store:
        directory = Path(name)
        good: Counter[str] = Counter()
        bad = 0
        for number, data in enumerate(contents):
            path = directory / rank_file(number)
            path.write_bytes(data)
            for item in read_records(path):
                if item.record is None:
                    bad += 1
                else:
                    good[item.record["type"]] += 1
        reading = read_files(store, find_files([directory]))
        kept = Counter(dict(store.rows("SELECT type, count(*) FROM others GROUP BY type")))
        kept["sample"] = store.rows("SELECT count(*) FROM samples")[0][0]
        kept["metric"] = store.rows("SELECT count(*) FROM metrics")[0][0]
        # DuckDB takes "5" and 5.0 for an integer, so that it may keep a line more, never one less.
        assert not good - kept
        assert reading.lines + reading.lost == good.total() + bad
        assert reading.lines == kept.total()


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, sum(map(len, LINES)) + len(LINES)), content)
def test_the_program_comes_to_its_end(cut: int, junk: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        RUN.write(directory)
        path = directory / rank_file(1)
        path.write_bytes(path.read_bytes()[:cut] + junk)
        assert main([name, "--strict", "--threads", "1"]) in (0, 1)
