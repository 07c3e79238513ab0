"""How adapters choose problems by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.integrations.lookup import absolute, choose_problems
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.problems.cvdp_notes import note_of


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
    with pytest.raises(UsageError, match="none of the 14 selected problems is known to be fair: 0 of them have notes"):
        choose_problems("bundled", rows="fair")
