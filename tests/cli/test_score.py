from __future__ import annotations

import json
from pathlib import Path

import pytest

from rtl_agent_gym.cli import main
from rtl_agent_gym.cli.score import read_candidates
from rtl_agent_gym.problems import Problem
from tests.arbiter import ARBITER as ID


@pytest.fixture
def work(tmp_path: Path, arbiter: Problem, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A work folder with the golden solution in it; gradings are kept in a place of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "work"
    for path, text in (arbiter.golden or {}).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["score", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.docker
def test_a_folder_is_graded(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--problem", ID, "--files", str(work), "--json") == 0
    row = json.loads(capsys.readouterr().out)
    assert row["problem_id"] == ID
    assert row["score"]["passed"]
    assert row["score"]["reward"] == pytest.approx(1.4)
    assert call("--problem", ID, "--files", str(work), "--json") == 0
    assert json.loads(capsys.readouterr().out)["score"]["cached"]
    next((work / "rtl").iterdir()).unlink()
    assert call("--problem", ID, "--files", str(work)) == 1
    assert "missing: rtl/fixed_priority_arbiter.sv" in " ".join(capsys.readouterr().out.split())


@pytest.mark.docker
def test_links_are_not_followed(work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = (work / "rtl").iterdir()
    path.rename(tmp_path / "elsewhere.sv")
    path.symlink_to(tmp_path / "elsewhere.sv")
    assert call("--problem", ID, "--files", str(work), "--json") == 1
    assert json.loads(capsys.readouterr().out)["score"]["format"] == 0.0


@pytest.mark.docker
def test_many_candidates_keep_their_order(
    work: Path, tmp_path: Path, arbiter: Problem, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"id": ID, "files": files} for files in ({}, arbiter.golden, {"src/conftest.py": ""})]
    path = tmp_path / "candidates.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert call("--candidates", str(path), "--json", "--no-cache") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["candidate"], row["score"]["passed"]) for row in found] == [(0, False), (1, True), (2, False)]
    assert found[2]["score"]["violations"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", ":1: not JSON"),
        ('{"id": "x"}', ":1: expected"),
        ('{"files": {}}', ":1: the id of the problem is missing"),
        (f'\n{{"id": "{ID[:-1]}9", "files": {{}}}}', ":2: "),
    ],
)
def test_a_bad_candidate_is_named_by_its_line(
    tmp_path: Path, content: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "candidates.jsonl"
    path.write_text(content)
    assert call("--candidates", str(path)) == 2
    assert said in capsys.readouterr().err


def test_a_candidate_is_of_the_only_problem(
    tmp_path: Path, arbiter: Problem, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "candidates.jsonl"
    path.write_text('{"files": {}}\n{"id": "other", "files": {}}')
    assert next(read_candidates(path, [arbiter], None)) == (arbiter, {})
    assert call("--candidates", str(path), "--problem", ID) == 2
    assert f":2: the id is 'other', not that of --problem {ID}" in capsys.readouterr().err


def test_what_to_grade_must_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--problem", ID) == 2
    assert call("--problem", ID, "--files", str(tmp_path / "none")) == 2
    assert "no such folder" in capsys.readouterr().err
    assert call("--problem", ID, "--files", str(tmp_path), "--weights", "best") == 2
