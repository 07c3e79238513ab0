"""The outcome of one episode."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from ..problems import Problem
from ..scoring.score import Score
from ..transcripts import Transcript

Cause = Literal[
    "machine",
    "malformed",
    "out of turns or tokens",
    "broken sandbox",
    "violation",
    "missing",
    "syntax",
    "interface",
    "compile",
    "tests",
    "untested",
]
"""Why an episode did not pass; the first of these that is true:

``machine``: no verdict, since the machine or the model's service failed. ``malformed``: too many malformed turns.
``out of turns or tokens``: the limit on turns or tokens, or the model's context, was reached. ``broken sandbox``: the
agent's own commands ended its sandbox. ``violation``: an attempt on the grader. ``missing``: a target file is missing.
``syntax``, ``interface``, ``compile``, ``tests``: the first stage that did not fully succeed. ``untested``: no stage
failed, but with these weights (``proxy``) nothing is compiled or run.
"""


class EpisodeResult(BaseModel):
    """A finished episode: a line of ``results.jsonl``."""

    model_config = ConfigDict(frozen=True)

    problem_id: str
    sample: int = 0
    """Number among the episodes of its problem, from 0."""
    category: int
    difficulty: str
    seed: int
    score: Score | None = None
    """None if the machine failed; the episode then counts in no rate."""
    fault: str | None = None
    """The machine fault, if there is no score."""
    retries: int = 0
    """How often the episode was restarted because the machine failed."""
    stop_reason: str = ""
    turns: int = 0
    malformed: int = 0
    """Malformed turns."""
    prompt_tokens: int | None = None
    """Tokens that the model read, summed over the turns; None if unknown."""
    output_tokens: int | None = None
    """Tokens that the model wrote; None if unknown."""
    seconds: float = 0.0
    """Wall time from the start of the sandbox to the score."""
    acting_seconds: float = 0.0
    """The part of `seconds` spent waiting for the policy."""
    transcript: str | None = None
    """Path of the transcript; relative to the run's folder if there is one."""

    @classmethod
    def of(cls, problem: Problem, seed: int, **fields: Any) -> EpisodeResult:
        """The result of an episode of `problem`."""
        return cls(problem_id=problem.id, category=problem.category, difficulty=problem.difficulty, seed=seed, **fields)

    @classmethod
    def of_transcript(cls, transcript: Transcript, /, **fields: Any) -> EpisodeResult:
        """The result of a recorded episode, as far as the transcript tells; `fields` adds the other fields."""
        header, end = transcript.header, transcript.end
        ids = [turn.token_ids for turn in transcript.turns if turn.token_ids is not None]
        return cls(
            problem_id=header.problem_id,
            category=header.category or 0,
            difficulty=header.difficulty or "unknown",
            seed=header.seed or 0,
            score=Score.model_validate(transcript.score.score) if transcript.score is not None else None,
            fault=end.error if end is not None else None,
            stop_reason=end.stop_reason if end is not None else "",
            turns=len(transcript.turns),
            malformed=sum(turn.action == "malformed" for turn in transcript.turns),
            output_tokens=sum(map(len, ids)) if ids else None,
            seconds=end.seconds if end is not None else 0.0,
            **fields,
        )

    @property
    def key(self) -> tuple[str, int]:
        """Identifies an episode within a run."""
        return self.problem_id, self.sample

    @property
    def passed(self) -> bool:
        """The official verdict; False if there is none."""
        return self.score is not None and self.score.passed

    @property
    def cause(self) -> Cause | None:
        """Why it did not pass; None when it did."""
        score = self.score
        if score is None:
            return "machine"
        if score.passed:
            return None
        if self.stop_reason == "parse_error":
            return "malformed"
        if self.stop_reason in ("max_turns", "max_tokens"):
            return "out of turns or tokens"
        if self.stop_reason == "sandbox_broken":
            return "broken sandbox"
        if score.violations:
            return "violation"
        if score.format < 1:
            return "missing"
        if score.syntax < 1 or score.interface < 1:
            return "syntax" if score.syntax < 1 else "interface"
        if not score.tests_total:
            return "untested"  # anything that was run counts as a test at least
        return "compile" if score.compile < 1 else "tests"


def episode_seed(seed: int, problem_id: str, sample: int) -> int:
    """The seed of one episode, 0 to 2**31 - 1, independent of the other episodes and their order."""
    digest = hashlib.sha256(f"{seed}\n{sample}\n{problem_id}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
