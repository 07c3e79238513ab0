"""The rules of an episode, and the interface of its grader."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, Protocol

from ..errors import UsageError
from ..policies.judge import read_judge
from ..problems import Problem
from ..retries import START
from ..sandboxes import SandboxSpec
from ..scoring.judging import Judge
from ..scoring.options import GradingOptions, HarnessOptions
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
"""The rules that a transcript records by name, besides the workspace; see `EpisodeConfig.recorded`."""

LONGEST_TIMEOUT = 7 * 24 * 3600.0
"""Upper bound on every time-out, in seconds; much longer ones overflow the operating system's timers."""

MIN_TURN_TOKENS = 256
"""A turn is not started with fewer tokens left than this: no useful call would fit."""


class Grader(Protocol):
    """Scores the files of an episode, like `Scorer`."""

    async def score(
        self, problem: Problem, files: dict[str, str | bytes], timeout: float = 600.0, *, seed: int | None = None
    ) -> Score:
        """Grade files. Raises `SandboxError` if the machine fails. `seed` is None in an episode's final grading."""
        ...


@dataclass(frozen=True)
class EpisodeConfig:
    """All rules of an episode. Every interface takes this one object; it is checked once, when it is made.

    Raises:
        UsageError: A value is out of its range; names the option.
    """

    workspace: Literal["shell", "answer"] = "shell"
    """``shell``: the agent works in a sandbox for several turns, and the files it leaves there are graded. ``answer``:
    it answers once, without any tool, and the files in its answer are graded."""

    max_turns: int = 50
    """Turns before a shell episode is truncated, and graded."""
    max_malformed: int = 3
    """Malformed turns in a row that end a shell episode."""
    command_timeout: float = 30.0
    """Seconds that one command may run."""
    max_output: int = 16_000
    """Characters of one command's output that the model reads; longer output is cut in the middle."""
    harness_feedback: int = 0
    """How often the agent may have its files graded before the end, with the command ``submit``, which prints the names
    of the checks that fail. 0 turns the command off."""
    progress_coef: float = 0.5
    """Total reward of submissions when all tests pass, paid in proportion as the passed share rises."""
    scoring_timeout: float = 600.0
    """Seconds that all hidden tests together may run, in each grading."""

    max_tokens: int | None = None
    """Tokens that one turn may sample; None leaves the limit to the policy."""
    max_trajectory_tokens: int | None = None
    """Tokens of the whole episode: prompt, sampled tokens and command outputs. When too few are left for a turn, the
    episode is truncated, and graded. Counted for policies that sample tokens; None for no limit."""
    max_prompt_tokens: int | None = None
    """Tokens of the prompt. A longer task is shortened, with a note at each cut. Needs a renderer with a vocabulary;
    None for no limit."""

    system_prompt: str | None = None
    """Replaces the package's system message; ``""`` gives none."""
    user_prompt: str | None = None
    """Replaces the problem's user message."""
    teach_dialect: bool = True
    """Whether the prompt teaches the dialect's form of tool calls. False for a chat service with tools of its own."""

    judge: str | Judge | None = None
    """The judge model of problems whose answer is text: ``chat:MODEL``, or ``chat:MODEL@URL``. None leaves out
    categories 9 and 10."""
    harness_images: tuple[str, ...] = ()
    """Your images of commercial simulators, as ``NAME=IMAGE``. Without one, problems that need it are left out."""
    harness_env: Path | None = None
    """A file of ``NAME=value`` lines: variables of the tests in those images, such as a licence's place. It is read
    when a grader is made, and recorded nowhere."""
    harness_network: str = ""
    """The Docker network that those tests' containers join, such as a licence server's; empty for none."""

    sandbox: SandboxSpec = field(default_factory=SandboxSpec)
    """Image and limits of the agent's sandbox."""
    start_attempts: int = START.attempts
    """Attempts to start a sandbox before `SandboxError` is raised."""
    transcript_dir: Path | None = None
    """Folder for the transcript; None writes none. A str is converted."""
    record_files: bool = True
    """Whether the transcript records the text files that each turn changed; takes about a millisecond a turn."""

    def __post_init__(self) -> None:
        if self.workspace not in ("shell", "answer"):
            raise UsageError(f"workspace must be 'shell' or 'answer', got {self.workspace!r}")
        for name in ("max_turns", "max_output", "max_malformed", "start_attempts"):
            self._check(name, Integral)
        for name in ("max_tokens", "max_trajectory_tokens", "max_prompt_tokens"):
            if getattr(self, name) is not None:
                self._check(name, Integral, none=", or None for no limit")
        for name in ("command_timeout", "scoring_timeout"):
            self._check(name, Real)
            if getattr(self, name) > LONGEST_TIMEOUT:
                raise UsageError(f"{name} must be at most {LONGEST_TIMEOUT:g} seconds, got {getattr(self, name)!r}")
        self._check("harness_feedback", Integral, zero=True)
        self._check("progress_coef", Real, zero=True)
        if self.harness_feedback and self.workspace == "answer":
            raise UsageError("harness_feedback must be 0 in an episode of one answer, which has no turn to submit in")
        self._check_transcript_dir()
        if isinstance(self.judge, str):
            read_judge(self.judge)
        if isinstance(self.harness_images, str):
            raise UsageError("harness_images must be a list of NAME=IMAGE")
        object.__setattr__(self, "harness_images", tuple(self.harness_images or ()))
        HarnessOptions.read(self.harness_images, None, self.harness_network)

    @property
    def grading(self) -> GradingOptions:
        """What gradings need. Raises `UsageError` if `harness_env` cannot be read."""
        harness = HarnessOptions.read(self.harness_images, self.harness_env, self.harness_network)
        return GradingOptions(self.judge, harness)

    def _check(self, name: str, kind: type, *, zero: bool = False, none: str = "") -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, kind) or not math.isfinite(value):  # type: ignore[arg-type]
            expected = "a whole number" if kind is Integral else "a finite number"
            raise UsageError(f"{name} must be {expected}{none}, got {value!r}")
        if value < 0 or (value == 0 and not zero):  # type: ignore[operator]
            raise UsageError(f"{name} must be {'0 or more' if zero else 'greater than 0'}{none}, got {value!r}")
        if not isinstance(value, (int, float)):  # a NumPy number, which JSON cannot represent
            object.__setattr__(self, name, int(value) if kind is Integral else float(value))  # type: ignore

    def _check_transcript_dir(self) -> None:
        folder = self.transcript_dir
        if folder is None:
            return
        if not isinstance(folder, (str, os.PathLike)):
            raise UsageError(f"transcript_dir must be a folder's path or None, got {folder!r}")
        object.__setattr__(self, "transcript_dir", Path(folder))
        if Path(folder).exists() and not Path(folder).is_dir():
            raise UsageError(f"transcript_dir must be a folder, and {folder} is a file")

    def with_options(self, **options: Any) -> EpisodeConfig:
        """A copy with some fields replaced, given by name. Raises `UsageError` for an unknown name."""
        known = [field.name for field in fields(self)]
        for name in options:
            if name not in known:
                raise UsageError(f"unknown option {name!r}; the rules of an episode are {', '.join(known)}")
        return replace(self, **options)

    @property
    def min_turn_tokens(self) -> int:
        """Tokens that must be left for a turn to be started."""
        # The cookbook's rollout loop ends an episode itself, ungraded, when a single token is left.
        return max(2, min(self.max_tokens or MIN_TURN_TOKENS, MIN_TURN_TOKENS))

    def has_room(self, tokens: int) -> bool:
        """Whether another turn can be started after this many tokens."""
        return self.max_trajectory_tokens is None or tokens + self.min_turn_tokens <= self.max_trajectory_tokens

    @property
    def prompt_limit(self) -> int | None:
        """Tokens that the prompt may have; None for no limit."""
        limits = [] if self.max_prompt_tokens is None else [self.max_prompt_tokens]
        if self.max_trajectory_tokens is not None:
            limits.append(max(1, self.max_trajectory_tokens - self.min_turn_tokens))
        return min(limits, default=None)

    def recorded(self) -> dict[str, Any]:
        """The rules that decide what happens, in the form of a transcript's header; see `from_record`."""
        rules = {name: getattr(self, name) for name in RECORDED_RULES}
        return rules | ({"single_turn": True} if self.workspace == "answer" else {})

    @classmethod
    def from_record(cls, options: Mapping[str, Any], **more: Any) -> EpisodeConfig:
        """The rules in a transcript's header, with `more` fields set. Raises `UsageError` for bad values."""
        rules = {name: options[name] for name in RECORDED_RULES if name in options}
        return cls(workspace="answer" if options.get("single_turn") else "shell", **rules, **more)
