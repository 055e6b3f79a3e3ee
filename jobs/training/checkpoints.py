"""Checkpoints that survive a kill at any moment: a file under its final name is whole, and the one before is kept.

Each is written beside its place, forced to the disk, and renamed; the directory is forced to the disk before an older
file goes. So whenever the machine stops, the newest file is a whole one. A digest in it tells damaged from whole.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hpccoll.aside import write_aside

_MAGIC = b"hpccoll training checkpoint 1\n"
_NAME = re.compile(r"step-(\d{8,})\.pt")
_KEPT = 2


class CheckpointError(Exception):
    """A checkpoint cannot be used; the message says which, why, and what to do."""


class Checkpoint(NamedTuple):
    """A checkpoint as it lies in the file: `payload` is what ``torch.save`` wrote."""

    path: Path
    step: int
    settings: dict[str, Any]
    payload: bytes

    def state(self, device: torch.device) -> dict[str, Any]:
        return torch.load(io.BytesIO(self.payload), map_location=device, weights_only=True)


def paths(directory: Path) -> list[Path]:
    """The checkpoints of a directory, the newest first."""
    if not directory.is_dir():
        return []
    named = [(match, path) for path in directory.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(named, key=lambda entry: int(entry[0][1]), reverse=True)]


def save(directory: Path, step: int, state: dict[str, Any], settings: dict[str, Any]) -> Path:
    """Write the state after `step` steps, and remove all but the two newest; one rank calls this.

    Raises
    ------
    OSError
        It cannot be written; the checkpoints that were there are untouched.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getbuffer()
    digest = hashlib.sha256(payload).hexdigest()
    header = {"step": step, "nbytes": len(payload), "sha256": digest, "settings": settings}
    path = directory / f"step-{step:08d}.pt"

    def fill(aside: Path) -> None:
        with open(aside, "wb") as file:
            file.write(_MAGIC + json.dumps(header).encode() + b"\n")
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())

    write_aside(path, fill)
    _force(directory)
    for old in paths(directory)[_KEPT:]:
        old.unlink()
    return path


def _force(directory: Path) -> None:
    """Force the names in a directory to the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_unfinished(directory: Path) -> None:
    """Remove what a killed run was just writing; one rank calls this, before it writes."""
    for path in directory.glob(".step-*.pt.*"):
        path.unlink(missing_ok=True)


def newest(directory: Path, settings: dict[str, Any]) -> Checkpoint | None:
    """The newest checkpoint; None where there is none.

    Raises
    ------
    CheckpointError
        It is damaged, no checkpoint of this program, or one of a run with other settings.
    """
    found = paths(directory)
    if not found:
        return None
    checkpoint = _read(found[0], found[1:])
    for name, value in settings.items():
        theirs = checkpoint.settings.get(name)
        if theirs != value:
            raise CheckpointError(
                f"{checkpoint.path} was written with {name}={theirs}, and this run has {value}: give the same, or "
                "another --checkpoint-dir"
            )
    return checkpoint


def _read(path: Path, older: list[Path]) -> Checkpoint:
    advice = f"move it away to go on from {older[0].name}" if older else "move it away to start anew"
    try:
        with open(path, "rb") as file:
            if file.readline(len(_MAGIC)) != _MAGIC:
                raise CheckpointError(f"{path} is no checkpoint of train_ddp.py: {advice}")
            line, payload = file.readline(), file.read()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}): mend that, or {advice}") from None
    try:
        header = json.loads(line)
        whole = header["nbytes"] == len(payload) and header["sha256"] == hashlib.sha256(payload).hexdigest()
        return _checked(Checkpoint(path, header["step"], header["settings"], payload), whole)
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(f"{path} is damaged: {advice}") from None


def _checked(checkpoint: Checkpoint, whole: bool) -> Checkpoint:
    if not whole:
        raise ValueError
    return checkpoint
