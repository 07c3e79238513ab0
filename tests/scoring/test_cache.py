from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

from rtl_agent_gym.scoring.cache import ScoreCache
from rtl_agent_gym.scoring.grading import Grading

GRADING = Grading(passed=True, syntax=0.5, reason="because", violations=["x"])


def test_what_was_put_is_got(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "deep" / "er")
    key = cache.key({"files": "abc"})
    assert cache.get(key) is None
    cache.put(key, GRADING)
    assert cache.get(key) == GRADING
    assert ScoreCache(tmp_path / "deep" / "er").get(key) == GRADING


def test_every_part_of_the_key_counts() -> None:
    keys = {ScoreCache.key(parts) for parts in ({}, {"a": 1}, {"a": "1"}, {"b": 1}, {"a": 1, "b": None})}
    assert len(keys) == 5


def test_a_file_cut_off_by_a_crash_is_not_there(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path)
    key = cache.key({})
    cache.put(key, GRADING)
    (path,) = tmp_path.rglob("*.json")
    for broken in (b"", path.read_bytes()[:-20], b"\xff", b'{"passed": "perhaps"}', b"[]"):
        path.write_bytes(broken)
        assert cache.get(key) is None
    cache.put(key, GRADING)
    assert cache.get(key) == GRADING


def test_only_the_owner_can_look(tmp_path: Path) -> None:
    ScoreCache(tmp_path / "scores").put("ab" * 32, GRADING)
    (path,) = tmp_path.rglob("*.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = ScoreCache(tmp_path / "file")
    cache.put("ab" * 32, GRADING)
    assert cache.get("ab" * 32) is None


def test_several_processes_may_write_the_same(tmp_path: Path) -> None:
    program = (
        "import sys; from rtl_agent_gym.scoring.cache import *; from rtl_agent_gym.scoring.grading import Grading\n"
        "c = ScoreCache(sys.argv[1])\n"
        "for n in range(300):\n"
        "    c.put('ab' * 32, Grading(reason='x' * 5000)); g = c.get('ab' * 32); assert g and len(g.reason) == 5000\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert len(list(tmp_path.rglob("*"))) == 2  # the file and its folder: no leftovers
