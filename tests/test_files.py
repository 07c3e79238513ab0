"""Files that are replaced whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.files import cache_folder, replace_file


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
