from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.cli.score import read_candidates
from rtl_agent_gym.errors import SandboxError
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.scoring import Score, Scorer
from tests.arbiter import ARBITER as ID
from tests.cli import in_process


@pytest.fixture
def work(tmp_path: Path, arbiter: Problem, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A work folder with the golden solution in it; gradings are kept in a place of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "work"
    for path, text in (arbiter.golden or {}).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def call(*arguments: str, code: int) -> subprocess.CompletedProcess[str]:
    """What ``score`` prints, which ends with this code."""
    done = in_process.call("score", *arguments)
    assert done.returncode == code, done.stderr
    return done


@pytest.mark.docker
def test_a_folder_is_graded_without_following_links(work: Path, tmp_path: Path) -> None:
    graded = ("--problem", ID, "--files", str(work))
    row = json.loads(call(*graded, "--json", code=0).stdout)
    assert row["problem_id"] == ID
    assert row["score"]["passed"]
    assert row["score"]["reward"] == pytest.approx(1.4)
    assert json.loads(call(*graded, "--json", code=0).stdout)["score"]["cached"]
    (path,) = (work / "rtl").iterdir()
    path.rename(tmp_path / "elsewhere.sv")
    path.symlink_to(tmp_path / "elsewhere.sv")
    assert json.loads(call(*graded, "--json", code=1).stdout)["score"]["format"] == 0.0
    path.unlink()
    assert "missing: rtl/fixed_priority_arbiter.sv" in " ".join(call(*graded, code=1).stdout.split())


@pytest.mark.docker
def test_many_candidates_keep_their_order(work: Path, tmp_path: Path, arbiter: Problem) -> None:
    rows = [{"id": ID, "files": files} for files in ({}, arbiter.golden, {"src/conftest.py": ""})]
    path = tmp_path / "candidates.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = call("--candidates", str(path), "--json", "--no-cache", code=0)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["candidate"], row["score"]["passed"]) for row in found] == [(0, False), (1, True), (2, False)]
    assert found[2]["score"]["violations"]


@pytest.mark.docker
@pytest.mark.parametrize("json_", [[], ["--json"]])
def test_a_machine_fault_leaves_the_earlier_verdicts(
    work: Path, tmp_path: Path, arbiter: Problem, monkeypatch: pytest.MonkeyPatch, json_: list[str]
) -> None:
    grade = Scorer.score

    async def faulty(self: Scorer, problem: Problem, files: Mapping[str, str | bytes], *more: Any) -> Score:
        if "fault" in files:
            raise SandboxError("the sandbox was lost")
        return await grade(self, problem, files, *more)

    monkeypatch.setattr(Scorer, "score", faulty)
    path = tmp_path / "candidates.jsonl"
    rows = [{"id": ID, "files": files} for files in (arbiter.golden, {}, {"fault": ""}, {})]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = call("--candidates", str(path), "--workers", "1", *json_, code=3)
    assert done.stderr == "error: the sandbox was lost\n"
    passed = [
        json.loads(line)["score"]["passed"] if json_ else line.split("\t")[1] == "passed"
        for line in done.stdout.splitlines()
    ]
    assert passed == [True, False]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", ":1: not JSON"),
        ('{"id": "x"}', ":1: expected"),
        ('{"files": {}}', ":1: the id of the problem is missing"),
        (f'\n{{"id": "{ID[:-1]}9", "files": {{}}}}', ":2: "),
    ],
)
def test_a_bad_candidate_is_named_by_its_line(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "candidates.jsonl"
    path.write_text(content)
    assert said in call("--candidates", str(path), code=2).stderr


def test_a_candidate_is_of_the_only_problem(tmp_path: Path, arbiter: Problem) -> None:
    path = tmp_path / "candidates.jsonl"
    path.write_text('{"files": {}}\n{"id": "other", "files": {}}')
    assert next(read_candidates(path, [arbiter], None)) == (arbiter, {})
    done = call("--candidates", str(path), "--problem", ID, code=2)
    assert f":2: the id is 'other', not that of --problem {ID}" in done.stderr


@pytest.mark.parametrize("option", ["--files", "--candidates"])
def test_a_tilde_is_the_home_folder(option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert f"{option} {tmp_path}/none: " in call("--problem", ID, f"{option}=~/none", code=2).stderr


def test_what_to_grade_must_be_named(tmp_path: Path) -> None:
    call("--problem", ID, code=2)
    assert "no such folder" in call("--problem", ID, "--files", str(tmp_path / "none"), code=2).stderr
    call("--problem", ID, "--files", str(tmp_path), "--weights", "best", code=2)
