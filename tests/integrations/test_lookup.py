"""How adapters choose problems by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.errors import ProblemError, UsageError
from rtl_agent_gym.integrations.lookup import absolute, choose_problems, find_problem, read_source
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.problems.cvdp_notes import note_of
from rtl_agent_gym.problems.writing import problem_row
from tests.integrations.conformance import gray


def test_rows_are_chosen_by_their_notes(cvdp_data: Path) -> None:
    path = cvdp_data / "cvdp_v1.0.2_agentic_code_generation_no_commercial.jsonl"
    source, found = choose_problems(str(path), rows="fair")
    fair = {problem.id for problem in load_problems(path) if (note := note_of(problem)) is not None and note.fair}
    assert source == str(path.resolve())
    assert {problem.id for problem in found} == fair
    assert 0 < len(fair) < len(choose_problems(str(path))[1])


@pytest.mark.parametrize("source", ["{}", "notsotiny:{}", "{}+mutants?count=3", "rtllm:{}+mutants"])
def test_a_source_holds_in_other_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    (tmp_path / "rows.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    assert absolute(source.format("rows.jsonl")) == source.format(tmp_path / "rows.jsonl")
    assert absolute(source.format("none.jsonl")) == source.format("none.jsonl")


@pytest.mark.parametrize("source", ["bundled", "bundled+mutants?count=40", "family:registers?count=2"])
def test_other_sources_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    (tmp_path / "bundled").mkdir()
    monkeypatch.chdir(tmp_path)
    assert absolute(source) == source


def test_problems_without_notes_are_not_fair() -> None:
    with pytest.raises(
        UsageError, match=r"no selected problem is known to be fair \(14 without a note\); there are notes of"
    ):
        choose_problems("bundled", rows="fair")


@pytest.mark.parametrize(
    ("source", "chosen", "words"),
    [
        ("nosuch.jsonl", {}, r"there is no file or folder nosuch\.jsonl"),
        ("bundled", {"ids": ["gray_countr"]}, "there is no problem 'gray_countr'; "),
        ("bundled", {"categories": ["cid999"]}, "cid999"),
        ("bundled", {"difficulties": ["simple"]}, "simple"),
        ("bundled", {"rows": "good"}, "rows is 'good'; choose one of all, "),
        ("bundled", {"categories": ["cid003"], "ids": []}, "no chosen problem of bundled can be scored here"),
    ],
)
def test_a_choice_of_nothing_is_refused_with_one_line(source: str, chosen: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as raised:
        choose_problems(source, **chosen)
    assert "\n" not in str(raised.value)


def test_what_cannot_be_scored_is_said_with_its_reason(tmp_path: Path) -> None:
    row = problem_row(gray()) | {"categories": ["cid006", "easy"], "harness": {}}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(UsageError, match=r"rows\.jsonl can be scored here: its answer is text"):
        choose_problems(str(path))


def test_a_broken_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "x"\n')
    with pytest.raises(ProblemError, match=r"rows\.jsonl:1"):
        choose_problems(str(path))


def test_a_problem_that_a_source_lacks_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no problem 'nosuch'; "):
        find_problem("bundled", "nosuch")
    assert read_source("bundled") is read_source("bundled")
