"""Files that are replaced whole, and folders that are made once."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from rtl_agent_gym import files
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.files import cache_folder, keep_folder, replace_file


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    replace_file(path, "naïve\n")
    replace_file(path, b"\xff", mode=0o600)
    assert path.read_bytes() == b"\xff"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for wrong, error in (("\ud800", UnicodeEncodeError), ("text", OSError)):
        if error is OSError:
            monkeypatch.setattr(os, "replace", _refuse)
        with pytest.raises(error):
            replace_file(path, wrong, durable=True)
        assert [one.name for one in tmp_path.iterdir()] == ["a.json"]
        assert path.read_bytes() == b"\xff"


def _refuse(*_: object) -> None:
    raise OSError("the disk is full")


def test_an_error_of_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system does not: only an error of opening a file has its name."""
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match=r"No space left on device: '.*/a\.json'"):
        replace_file(tmp_path / "a.json", "text", durable=True)


def test_the_cache_is_where_the_user_wants_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("scores") == tmp_path / "rtl-agent-gym" / "scores"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == Path.home() / ".cache" / "rtl-agent-gym"


def test_without_a_home_folder_the_cache_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user without an entry
    with pytest.raises(UsageError, match="there is no home folder for the cache; set XDG_CACHE_HOME"):
        cache_folder("scores")


@pytest.mark.parametrize("locks", [True, False], ids=["locks", "no locks"])
def test_a_folder_is_made_once_and_what_a_killed_process_left_is_removed(
    locks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If its disk has no locks, another machine may be filling what seems to be left."""
    folder, filled, flushed, flock = tmp_path / "cache/model", list[Path](), list[bool](), fcntl.flock
    for name in (".new-model-1", ".new-other-1"):
        (folder.parent / name).mkdir(parents=True)

    def without_locks(file: Any, kind: int) -> None:
        if folder.parent in Path(file.name).parents:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        flock(file, kind)

    def fill(scratch: Path) -> None:
        (scratch / "a").touch()
        filled.append(scratch)

    if not locks:
        monkeypatch.setattr(fcntl, "flock", without_locks)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(files, "flush", lambda scratch: flushed.append(scratch == filled[0] and not folder.exists()))
    assert keep_folder(folder, fill) == keep_folder(folder, fill) == folder
    assert os.listdir(folder) == ["a"]
    assert len(filled) == 1
    assert flushed == [True], "the new files are not on the disk before they have their name"
    left = [".new-other-1"] if locks else [".new-model-1", ".new-other-1"]
    assert sorted(path.name for path in folder.parent.glob(".new-*")) == left


def test_where_there_is_no_syncfs_all_file_systems_are_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS."""
    calls: list[str] = []
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    monkeypatch.setattr(os, "sync", lambda: calls.append("sync"))
    files.flush(tmp_path)
    assert calls == ["sync"]
