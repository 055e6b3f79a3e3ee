"""hpccoll.nodelist: by properties, against python-hostlist, and against scontrol where Slurm is installed."""

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import hostlist
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpccoll import nodelist
from hpccoll.errors import ArgumentError


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node[001-003,7]", "node001 node002 node003 node7"),
        ("gpu-a[1-2]-b[3]", "gpu-a1-b3 gpu-a2-b3"),
        ("rack[1-2]node[01-03]", "rack1node01 rack1node02 rack1node03 rack2node01 rack2node02 rack2node03"),
        ("n[9-11],n[09-11]", "n9 n10 n11 n09 n10 n11"),
        ("n[1-2]-ib.cluster,login", "n1-ib.cluster n2-ib.cluster login"),
        ("n[1-2][3-4]", "n13 n14 n23 n24"),
        ("n[1-2,2],n1", "n1 n2 n2 n1"),
        (" a , b\nc", "a b c"),
        ("a,,b,", "a b"),
        ("[1-2]", "1 2"),
        ("n[099-101]", "n099 n100 n101"),
        ("", ""),
    ],
)
def test_expand(text: str, names: str) -> None:
    assert nodelist.expand(text) == names.split()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n[1", "partner"),
        ("n1]", "partner"),
        ("n[1-2]]", "partner"),
        ("n[[1-2]]", "partner"),
        ("n[]", "numbers and ranges"),
        ("n[a-b]", "numbers and ranges"),
        ("n[1-2-3]", "numbers and ranges"),
        ("n[3-1]", "backwards"),
        ("n[0-999999999]", "more than 1000000"),
        ("n[0-999][0-999][0-999]", "more than 1000000"),
    ],
)
def test_what_is_no_node_list(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        nodelist.expand(text)


WORDS = st.from_regex(r"[a-z][a-z0-9.-]{0,6}", fullmatch=True)
NUMBERS = st.tuples(st.integers(0, 1200), st.integers(0, 6), st.integers(1, 5))


def written(number: tuple[int, int, int]) -> tuple[str, list[str]]:
    first, more, width = number
    last = first + more
    text = f"{first:0{width}d}" + (f"-{last:0{width}d}" if more else "")
    return text, [f"{value:0{width}d}" for value in range(first, last + 1)]


@given(
    st.lists(st.tuples(WORDS, st.lists(NUMBERS, max_size=4), st.sampled_from(["", "x", "-ib"])), max_size=4)
)
def test_one_bracket_each(parts: list[tuple[str, list[tuple[int, int, int]], str]]) -> None:
    text, names = [], []
    for word, numbers, suffix in parts:
        if numbers:
            text.append(f"{word}[{','.join(written(number)[0] for number in numbers)}]{suffix}")
            names += [f"{word}{digits}{suffix}" for number in numbers for digits in written(number)[1]]
        else:
            text.append(word + suffix)
            names.append(word + suffix)
    assert nodelist.expand(",".join(text)) == names


@given(st.lists(WORDS, max_size=20))
def test_plain_names_stay(names: list[str]) -> None:
    assert nodelist.expand(",".join(names)) == names


@given(st.text(alphabet="n1-[],0 ", max_size=24))
def test_any_text_is_expanded_or_refused(text: str) -> None:
    try:
        names = nodelist.expand(text)
    except ArgumentError:
        return
    assert not [name for name in names if set(name) & set("[], ")]


def random_forms(count: int, suffixes: bool) -> Iterator[str]:
    """Node lists as Slurm writes them: 1 to 3 parts of 0 to 3 brackets."""
    dice = random.Random(5)
    for _ in range(count):
        parts = []
        for _ in range(dice.randint(1, 3)):
            part = dice.choice(["node", "gpu-a", "r", "cn.x-"])
            for _ in range(dice.randint(0, 3)):
                numbers = []
                for _ in range(dice.randint(1, 3)):
                    first, width = dice.choice([0, 1, 7, 9, 95, 998]), dice.randint(1, 4)
                    numbers.append(written((first, dice.randint(0, 5), width))[0])
                part += f"[{','.join(numbers)}]" + (dice.choice(["", "-b", "n"]) if suffixes else "")
            parts.append(part)
        yield ",".join(parts)


def test_against_python_hostlist() -> None:
    for text in random_forms(400, suffixes=True):
        # It drops repeated names unless asked not to.
        assert nodelist.expand(text) == hostlist.expand_hostlist(text, allow_duplicates=True), text


@pytest.fixture
def slurm_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least that scontrol wants before it talks."""
    if shutil.which("scontrol") is None:
        pytest.skip("Slurm is not installed; the suite `cluster` of tests/run.sh installs it")
    (tmp_path / "slurm.conf").write_text(
        "ClusterName=t\nSlurmctldHost=localhost\nNodeName=n1\nPartitionName=p Nodes=ALL\n"
    )
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))


def by_scontrol(text: str) -> list[str]:
    done = subprocess.run(["scontrol", "show", "hostnames", text], capture_output=True, text=True, timeout=20)
    return done.stdout.split()


def test_against_scontrol(slurm_conf: None) -> None:
    for text in random_forms(300, suffixes=False):
        expected, found = by_scontrol(text), nodelist.expand(text)
        if max(part.count("[") for part in text.replace("],", "] ").split()) > 2:
            expected, found = sorted(expected), sorted(found)  # 22.05 mixes the order of three brackets
        assert found == expected, text


def test_forms_that_scontrol_refuses_fall_to_expand(slurm_conf: None) -> None:
    assert nodelist.hosts("n[1-2]-ib") == ["n1-ib", "n2-ib"]
    assert nodelist.hosts("n[1-2]") == ["n1", "n2"]
    with pytest.raises(ArgumentError, match="backwards"):
        nodelist.hosts("n[3-1]")


def test_scontrol_is_asked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "scontrol"
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for body, expected in (
        ('[ "$1 $2 $3" = "show hostnames n[1-2]" ] && echo from-scontrol', ["from-scontrol"]),
        ("exit 1", ["n1", "n2"]),
        ("echo 'Invalid hostlist: n[1-2]'", ["n1", "n2"]),
        ("echo wrong; echo 'fatal: no configuration' >&2", ["n1", "n2"]),
    ):
        fake.write_text(f"#!/bin/sh\n{body}\n")
        fake.chmod(0o755)
        assert nodelist.hosts("n[1-2]") == expected


def test_allocated_hosts() -> None:
    assert nodelist.allocated_hosts({}) is None
    assert nodelist.allocated_hosts({"SLURM_JOB_NODELIST": "a,b"}) == ["a", "b"]
