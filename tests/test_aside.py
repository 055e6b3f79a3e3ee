"""Documents that are written aside."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from hpccoll.aside import write_aside


def after(aside: Path) -> None:
    aside.write_text("after")


def test_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def fail(aside: Path) -> None:
        aside.write_text("aft")
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        write_aside(path, fail)
    assert path.read_text() == "before"
    write_aside(path, after)
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_a_link_is_followed(tmp_path: Path) -> None:
    link, target = tmp_path / "link", tmp_path / "target"
    target.write_text("before")
    link.symlink_to(target)
    write_aside(link, after)
    assert link.is_symlink()
    assert target.read_text() == "after"


def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    """And so is a device: replacing /dev/null would hurt the whole machine."""
    pipe, found = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()), daemon=True)
    reader.start()
    write_aside(pipe, after)
    reader.join(20)
    assert found == ["after"]
    assert pipe.is_fifo()
