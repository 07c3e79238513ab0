"""Transcripts written for tests, by the real writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rtl_agent_gym.policies import write_turn
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.scoring.score import Score, TestOutcome
from rtl_agent_gym.transcripts import CommandRecord, End, Header, ScoreRecord, TranscriptWriter, TurnRecord

RENDERER = get_renderer("qwen3")


def command_turn(
    number: int, command: str, output: str, *, say: str = "", exit_code: int = 0, **more: Any
) -> TurnRecord:
    """A turn with one command."""
    return TurnRecord(
        turn=number,
        completion=write_turn(RENDERER, say, [command]),
        action="command",
        commands=[CommandRecord(command=command, exit_code=exit_code, seconds=0.1)],
        observation=RENDERER.observation_text([output]),
        **more,
    )


def final_turn(number: int, text: str, **more: Any) -> TurnRecord:
    """The last turn."""
    return TurnRecord(turn=number, completion=text, action="final", **more)


def llama_turn(number: int, observation: str) -> TurnRecord:
    """A turn of the dialect `llama3` with one command and this reply."""
    return TurnRecord(
        turn=number,
        completion='{"name": "execute_bash", "parameters": {"command": "ls"}}',
        action="command",
        commands=[CommandRecord(command="ls", exit_code=0, seconds=0.1)],
        observation=f"<|start_header_id|>ipython<|end_header_id|>\n\n{observation}<|eot_id|>",
    )


def score(passed: bool, *, tests: int = 4, **more: Any) -> Score:
    """A score that passed or did not."""
    done = tests if passed else 1
    outcomes = [TestOutcome(name=f"test_{at}", outcome="passed" if at < done else "failed") for at in range(tests)]
    values: dict[str, Any] = {
        "passed": passed,
        "tests_passed": done,
        "tests_total": tests,
        "format": 1.0,
        "syntax": 1.0,
        "interface": 1.0,
        "compile": 1.0,
        "reward": 1.4 if passed else 0.4,
        "reason": "all tests passed" if passed else "test_1 failed",
        "tests": outcomes,
    }
    return Score(**{**values, **more})


def record(
    folder: Path,
    turns: list[TurnRecord],
    *,
    problem: str = "cvdp_agentic_rtlgym_counter_0001",
    graded: Score | None = None,
    files: dict[str, str] | None = None,
    submitted: dict[str, str] | None = None,
    end: End | None = None,
    name: str | None = None,
    **header: Any,
) -> Path:
    """Write a transcript; one without a score and an end was cut off."""
    writer = TranscriptWriter(folder / name) if name is not None else TranscriptWriter.in_folder(folder, problem)
    values = {"problem_digest": "d", "renderer": "qwen3", "category": 3, "difficulty": "easy", "user": "Count."}
    writer.write(Header(problem_id=problem, files=files or {}, **{**values, **header}))
    for turn in turns:
        writer.write(turn)
    if graded is not None:
        writer.write(ScoreRecord(score=graded.model_dump(mode="json"), files=submitted or {}))
        end = end or End(stop_reason="completed", turns=len(turns), seconds=2.5)
    if end is not None:
        writer.write(end)
    writer.close()
    return writer.path
