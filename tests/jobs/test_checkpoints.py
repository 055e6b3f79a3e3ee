"""Checkpoints of jobs/train_ddp.py: whole or not there, and clear about what is wrong with one."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest
from mpi_plugin import need

sys.path.insert(0, str(Path(__file__).parents[2] / "jobs"))
torch = need("torch")
from training import checkpoints  # noqa: E402  # after torch, and the path

SETTINGS = {"lr": 0.5, "seed": 1}
CPU = torch.device("cpu")


def state(value: float) -> dict[str, object]:
    return {"model": {"weight": torch.full((3, 2), value)}, "optimizer": {"state": {}, "step": value}}


def save(directory: Path, step: int) -> Path:
    return checkpoints.save(directory, step, state(step), SETTINGS)


def test_there_and_back(tmp_path: Path) -> None:
    assert checkpoints.newest(tmp_path / "not there", SETTINGS) is None
    assert checkpoints.newest(tmp_path, SETTINGS) is None
    for step in (1, 20, 300):
        save(tmp_path, step)
        found = checkpoints.newest(tmp_path, SETTINGS)
        assert found.step == step
        back = found.state(CPU)
        assert torch.equal(back["model"]["weight"], torch.full((3, 2), float(step)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000020.pt", "step-00000300.pt"]


def test_steps_beyond_eight_digits_are_newer(tmp_path: Path) -> None:
    for step in (99_999_999, 100_000_000):
        save(tmp_path, step)
    assert checkpoints.newest(tmp_path, SETTINGS).step == 100_000_000


@pytest.mark.parametrize("kept", ["one", "two"])
@pytest.mark.parametrize("harm", ["cut", "a bit", "header", "empty", "foreign", "directory"])
def test_what_is_damaged_is_named(tmp_path: Path, harm: str, kept: str) -> None:
    if kept == "two":
        save(tmp_path, 5)
    path = save(tmp_path, 10)
    data = bytearray(path.read_bytes())
    if harm == "cut":
        path.write_bytes(data[:-1])
    elif harm == "a bit":
        data[-40] ^= 1
        path.write_bytes(data)
    elif harm == "header":
        path.write_bytes(data.replace(b'"sha256"', b'"sha257"'))
    elif harm == "empty":
        path.write_bytes(b"")
    elif harm == "foreign":
        torch.save(state(1), path)
    else:
        path.unlink()
        path.mkdir()
    with pytest.raises(checkpoints.CheckpointError) as caught:
        checkpoints.newest(tmp_path, SETTINGS)
    what = {"empty": "no checkpoint", "foreign": "no checkpoint", "directory": "cannot be read"}.get(
        harm, "damaged"
    )
    message = str(caught.value)
    assert str(path) in message and what in message, message
    assert ("go on from step-00000005.pt" if kept == "two" else "start anew") in message
    path.rename(tmp_path / "away")  # what the message says helps
    found = checkpoints.newest(tmp_path, SETTINGS)
    assert (found and found.step) == (5 if kept == "two" else None)


def test_other_settings(tmp_path: Path) -> None:
    save(tmp_path, 10)
    with pytest.raises(checkpoints.CheckpointError, match=r"written with lr=0.5, and this run has 0.1"):
        checkpoints.newest(tmp_path, {**SETTINGS, "lr": 0.1})


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 10)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoints.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, 20)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    save(tmp_path, 10)
    (tmp_path / ".step-00000020.pt.x1y2").write_text("half")
    (tmp_path / "notes.txt").write_text("mine")
    checkpoints.remove_unfinished(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "step-00000010.pt"]
