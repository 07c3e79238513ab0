"""What tests of sources share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rtl_agent_gym.problems import Problem
from rtl_agent_gym.problems.rows import problem_row


@pytest.fixture
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def write_rows(folder: Path, *problems: Problem) -> Path:
    """A new file of these problems."""
    path = folder / "mine.jsonl"
    path.write_text("".join(json.dumps(problem_row(problem)) + "\n" for problem in problems))
    return path
