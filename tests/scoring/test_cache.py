from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from rtl_agent_gym.problems import Problem
from rtl_agent_gym.retries import Retries
from rtl_agent_gym.scoring import Scorer
from rtl_agent_gym.scoring import scorer as scorer_module
from rtl_agent_gym.scoring.cache import HeldCache, ScoreCache
from rtl_agent_gym.scoring.grading import Grading
from rtl_agent_gym.scoring.harness import Defences
from rtl_agent_gym.scoring.submission import sift
from tests.sandboxes.providers import ProviderAround

from .conftest import TARGET

GRADING = Grading(passed=True, syntax=0.5, reason="because", violations=["x"])


def test_what_was_put_is_got(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "deep" / "er")
    key = cache.key({"files": "abc"})
    assert cache.get(key) is None
    cache.put(key, GRADING)
    assert cache.get(key) == GRADING
    assert ScoreCache(tmp_path / "deep" / "er").get(key) == GRADING
    assert ScoreCache("~/scores").folder == Path.home() / "scores"


def test_a_damaged_grading_is_not_one(tmp_path: Path) -> None:
    cache, key, other = ScoreCache(tmp_path), "a" * 64, "b" * 64
    cache.put(key, GRADING)
    path = cache._path(key)
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            assert cache.get(key) is None
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert cache.get(key) is None
    cache._path(other).parent.mkdir()
    cache._path(other).write_bytes(whole)
    assert cache.get(other) is None
    cache.put(key, GRADING)
    assert cache.get(key) == GRADING


def test_what_is_held_reaches_the_disk_only_when_it_is_vouched_for(tmp_path: Path) -> None:
    held, disk = HeldCache(tmp_path), ScoreCache(tmp_path)
    held.put("a" * 64, GRADING)
    held.seal()
    held.put("b" * 64, GRADING)  # after the canary began
    assert held.get("a" * 64) == held.get("b" * 64) == GRADING
    assert disk.get("a" * 64) is None
    held.keep()
    assert disk.get("a" * 64) == GRADING
    assert disk.get("b" * 64) is None
    held.seal()
    held.drop()
    held.keep()
    assert held.get("b" * 64) is None
    assert held.get("a" * 64) == GRADING
    for key in "cd":  # a second canary began before the first one had passed
        held.put(key * 64, GRADING)
        held.seal()
    held.keep()
    assert disk.get("c" * 64) == disk.get("d" * 64) == GRADING


def test_every_part_of_the_key_counts() -> None:
    keys = {ScoreCache.key(parts) for parts in ({}, {"a": 1}, {"a": "1"}, {"b": 1}, {"a": 1, "b": None})}
    assert len(keys) == 5


async def test_what_may_end_a_grading_otherwise_is_in_its_name(adder: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    missing, image = tuple[str, ...](), "sha256:0"

    class Weak(ProviderAround):
        async def image_digest(self) -> str:
            return image

        async def missing_limits(self) -> tuple[str, ...]:
            return missing

    async def key(
        problem: Problem = adder, text: str = "", timeout: float = 600, seed: int | None = None, **options: Any
    ) -> str:
        async with Scorer(Weak(Mock()), waiting=1, **options) as scorer:
            return await scorer._key(sift(problem, {TARGET: text}), timeout, seed, Retries())

    plain, missing = await key(), ("MemoryLimit",)
    weak, missing, image = await key(), (), "sha256:1"
    rebuilt, image = await key(), "sha256:0"
    other = adder.model_copy(update={"harness": {**adder.harness, "src/more.py": ""}})
    keys = [plain, weak, rebuilt, await key(other), await key(text="x"), await key(defences=Defences(witness=False))]
    keys += [await key(timeout=5), await key(seed=1)]
    for name, value in (("scoring_limits", {"memory": 1 << 30}), ("frontend_version", "0.0")):
        with monkeypatch.context() as patch:
            patch.setattr(scorer_module, name, lambda value=value: value)
            keys.append(await key())
    assert len(set(keys)) == len(keys)
    assert plain == await key()


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


def test_a_machine_without_another_thread_costs_nothing_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    cache = ScoreCache(tmp_path)
    cache.put("ab" * 32, GRADING)
    assert cache.get("ab" * 32) == GRADING


@pytest.mark.slow  # three processes
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


@pytest.mark.slow  # six processes, one after another
def test_a_writer_killed_at_any_moment_leaves_whole_gradings_or_none(tmp_path: Path) -> None:
    program = (
        "import sys; from rtl_agent_gym.scoring.cache import *; from rtl_agent_gym.scoring.grading import Grading\n"
        "c = ScoreCache(sys.argv[1]); print('begun', flush=True)\n"
        "while True:\n"
        "    for n in range(20): c.put(f'{n:064x}', Grading(reason='x' * 200_000))\n"
    )
    for pause in (0.01, 0.03, 0.08):
        writers = [
            subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) for _ in range(2)
        ]
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        time.sleep(pause)
        for writer in writers:
            writer.kill()
            writer.communicate()
        for path in tmp_path.rglob("*.json"):
            grading = ScoreCache(tmp_path).get(path.stem)
            assert grading is not None
            assert len(grading.reason) == 200_000
    assert ScoreCache(tmp_path).get(f"{0:064x}") is not None


def test_the_gradings_that_were_not_read_for_longest_make_room(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path, largest=40 * 4096)
    cache._puts = 1  # the first one evicts in a thread, which may be late enough to find too much
    keys = [ScoreCache.key({"number": number}) for number in range(60)]
    for age, key in enumerate(keys):
        cache.put(key, Grading(reason="x" * 100))
        when = time.time() - 10_000 + age
        os.utime(cache._path(key), (when, when))
    assert cache.get(keys[0]) is not None  # has just been read
    taken = sum(512 * path.stat().st_blocks for path in tmp_path.glob("??/*"))
    assert cache.evict() > 0
    left = [key for key in keys if cache._path(key).exists()]
    assert sum(512 * path.stat().st_blocks for path in tmp_path.glob("??/*")) <= min(taken, 0.9 * 40 * 4096)
    assert keys[0] in left
    assert left[1:] == keys[-len(left) + 1 :]
    assert cache.evict() == 0
