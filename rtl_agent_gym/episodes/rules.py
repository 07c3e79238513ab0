"""The rules of an episode, and what it needs of a scorer."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Protocol

from ..errors import UsageError
from ..problems import Problem
from ..sandboxes import SandboxSpec
from ..scoring.score import Score

FOLDERS = ("rtl", "verif", "docs")
"""The folders of the work folder whose files are graded."""

RECORDED_RULES = (
    "max_turns",
    "command_timeout",
    "max_output",
    "max_malformed",
    "scoring_timeout",
    "harness_feedback",
    "progress_coef",
)
"""The rules that decide what happens, by name: a transcript holds them, and a replay takes them from there."""

LONGEST_TIMEOUT = 7 * 24 * 3600.0
"""Seconds, of any time-out; timers of the operating system end somewhere beyond."""

SINGLE_TURN_FEEDBACK = "harness_feedback: an episode of one completion has no turn to submit in; it must be 0 there"
"""Said where a single-turn episode is asked for submissions."""


class Grader(Protocol):
    """What an episode needs of a scorer."""

    async def score(
        self, problem: Problem, files: dict[str, str | bytes], timeout: float = 600.0, *, seed: int | None = None
    ) -> Score:
        """Grade files; raises `SandboxError` for a machine's fault. The grading at an episode's end has no seed."""
        ...


@dataclass(frozen=True)
class EpisodeConfig:
    """The rules of an episode."""

    max_turns: int = 50
    command_timeout: float = 30.0
    """Seconds a command may run."""
    max_output: int = 16_000
    """Characters of a command's output that the model gets to read."""
    max_malformed: int = 3
    """Malformed turns in a row that end the episode."""
    scoring_timeout: float = 600.0
    """Seconds the hidden tests may run."""
    harness_feedback: int = 0
    """How often the agent may have its files graded before the end, by the command ``submit``; 0 takes it away."""
    progress_coef: float = 0.5
    """Reward for the whole way from no test passed to all of them, paid between submissions for each step of it."""
    start_attempts: int = 3
    """How often a sandbox is tried to be had before the machine's fault is raised."""
    sandbox: SandboxSpec = field(default_factory=SandboxSpec)
    transcript_dir: Path | None = None
    """Folder for the transcript; None writes none."""
    record_files: bool = True
    """Whether the transcript holds the text files that each turn changed. Costs about a millisecond a turn."""
    system_prompt: str | None = None
    """Replaces the package's system message; ``""`` gives none."""
    user_prompt: str | None = None
    """Replaces the problem's user message."""

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_output", "max_malformed", "start_attempts", "harness_feedback"):
            self._check(name, Integral, int, "a whole number", more_than_0=name != "harness_feedback")
        for name in ("command_timeout", "scoring_timeout", "progress_coef"):
            self._check(name, Real, float, "a finite number", more_than_0=name != "progress_coef")
        for name in ("command_timeout", "scoring_timeout"):
            if getattr(self, name) > LONGEST_TIMEOUT:
                raise UsageError(f"{name} must be at most {LONGEST_TIMEOUT:g} seconds, got {getattr(self, name)!r}")

    def _check(self, name: str, kind: type, plain: type, words: str, *, more_than_0: bool) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, kind) or not math.isfinite(value):  # type: ignore[arg-type]
            raise UsageError(f"{name} must be {words}, got {value!r}")
        if value < 0 or (more_than_0 and value == 0):  # type: ignore[operator]
            raise UsageError(f"{name} must be {'greater than 0' if more_than_0 else '0 or more'}, got {value!r}")
        if not isinstance(value, (int, float)):
            object.__setattr__(self, name, plain(value))  # a number of numpy's, which a transcript cannot hold
