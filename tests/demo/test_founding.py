"""What the one-problem job says at its end: the habits of the designs before and after, from recorded episodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest

from rtl_agent_gym.demo import jobs
from rtl_agent_gym.demo.founding import FOUNDING, HABITS, PROBLEM_ID, TARGET, compare_habits, habits_in
from rtl_agent_gym.evaluation.outcome import EpisodeResult
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.scoring.score import Score
from rtl_agent_gym.training import launch
from rtl_agent_gym.transcripts import End, Header, ScoreRecord, TranscriptWriter

OTHER = "module fixed_priority_arbiter (input logic clk); endmodule\n"


def design(*habits: str) -> str:
    return FOUNDING.design(FOUNDING.member, habits)[TARGET]


def evaluation(folder: Path, designs: Sequence[str | None]) -> None:
    """An evaluation whose episodes left these designs; None: the machine failed."""
    (folder / "transcripts").mkdir(parents=True)
    [problem] = load_problems("bundled", ids=PROBLEM_ID)
    lines = []
    for sample, text in enumerate(designs):
        path = Path("transcripts") / f"{sample}.jsonl"
        writer = TranscriptWriter(folder / path)
        writer.write(Header(problem_id=problem.id, problem_digest=problem.digest, renderer="qwen3"))
        score = None if text is None else Score(passed=text == design(), reason="x")
        if score is not None and text is not None:
            writer.write(ScoreRecord(score=score.model_dump(mode="json"), files={TARGET: text} if text else {}))
        writer.write(End(stop_reason="completed", turns=3, seconds=1))
        writer.close()
        lines.append(EpisodeResult.of(problem, 0, sample=sample, score=score, transcript=str(path)).model_dump_json())
    (folder / "results.jsonl").write_text("".join(f"{line}\n" for line in lines))


def test_the_habits_are_those_of_the_founding_arbiter() -> None:
    assert {*HABITS} == {*FOUNDING.habits_of(FOUNDING.member)}
    assert habits_in(design()) == frozenset()
    for habit in HABITS:
        assert habits_in(design(habit)) == frozenset({habit})
    assert habits_in(design(*HABITS)) == frozenset(HABITS)
    assert habits_in(OTHER) is None


def test_each_habit_is_counted_before_and_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert compare_habits(run) == []
    evaluation(run / "evaluations/000000-train", [design("width", "reset"), design("width"), design("order"), None])
    assert compare_habits(run) == []
    evaluation(run / "evaluations/000000-test", [design("valid")] * 4)
    evaluation(run / "evaluations/000008-train", [design("flag")] * 4)
    evaluation(run / "evaluations/000016-train", [design(), design(), design("order"), ""])
    expected = [
        "  4 requesters instead of 8: before 2 of 3, after 0 of 4",
        "  the highest bit first: before 1 of 3, after 1 of 4",
        "  the override as a flag: before 0 of 3, after 0 of 4",
        "  an active-low rst_n: before 1 of 3, after 0 of 4",
        "  grant_valid instead of valid: before 0 of 3, after 0 of 4",
        "  another form of design: before 0 of 3, after 1 of 4",
    ]
    assert compare_habits(run)[1:] == expected

    train = Mock(return_value=launch.Outcome(run, 16, []))  # as a run whose steps are done
    monkeypatch.setattr(launch, "train", train)
    assert jobs.main(["1problem", f"log_path={run}"]) == 0
    assert train.call_args.args[0]["log_path"] == str(run)
    said, _, *lines = capsys.readouterr().err.splitlines()
    assert (said, lines) == (f"16 steps; report: {run / 'report.html'}", expected)
    assert jobs.main(["family", f"log_path={run}"]) == 0
    assert capsys.readouterr().err.splitlines() == [said]
    train.side_effect = KeyboardInterrupt  # it ends early
    assert jobs.main(["1problem", f"log_path={run}"]) == 130
    assert capsys.readouterr().err == "stopped; the same command resumes the run\n"


def test_designs_of_other_models_have_no_habits_to_count(tmp_path: Path) -> None:
    for name in ("000000-train", "000016-train"):
        evaluation(tmp_path / "evaluations" / name, [OTHER, OTHER])
    assert compare_habits(tmp_path) == []
