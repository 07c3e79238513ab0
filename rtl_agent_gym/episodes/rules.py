"""The rules of an episode, the interface of its grader, and the option ``reward``."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

from pydantic import Field, ValidationError, field_validator, model_validator

from ..errors import UsageError
from ..options import EpisodeRules
from ..policies.judge import read_judge
from ..policies.protocol import smallest_turn
from ..problems import Problem
from ..problems.paths import expand_home
from ..sandboxes import SandboxSpec
from ..sandboxes.choice import AnySpec
from ..scoring import PRESETS, RewardWeights
from ..scoring.judging import Judge
from ..scoring.options import GradingOptions, HarnessOptions
from ..scoring.score import Score

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


class Grader(Protocol):
    """Scores the files of an episode, like `Scorer`."""

    async def score(
        self, problem: Problem, files: dict[str, str | bytes], timeout: float = 600.0, *, seed: int | None = None
    ) -> Score:
        """Grade files. Raises `SandboxError` if the machine fails. `seed` is None in an episode's final grading."""
        ...


class EpisodeConfig(EpisodeRules, strict=True):
    """All rules of an episode. Every interface takes this one object; it is checked once, when it is made.

    Raises:
        UsageError: A value is out of range; the message names the option.
    """

    kind = "the rules of an episode"

    sandbox: AnySpec = Field(default_factory=SandboxSpec)
    """Image and limits of the agent's sandbox; or only its kind, as in the option ``sandbox`` of evaluations: ``auto``,
    ``docker``, ``podman`` or ``namespaces``, short for ``SandboxSpec(kind=WORD)``."""

    @field_validator("judge")
    @classmethod
    def _check_judge(cls, judge: str | Judge | None) -> str | Judge | None:
        if isinstance(judge, str):
            read_judge(judge)
        return judge

    @field_validator("harness_images", mode="before")
    @classmethod
    def _check_images(cls, images: object) -> object:
        if isinstance(images, str):
            raise UsageError("harness_images must be a list of NAME=IMAGE")
        return images

    @field_validator("transcript_dir", mode="before")
    @classmethod
    def _check_folder(cls, folder: object) -> object:
        if folder is not None and not isinstance(folder, (str, os.PathLike)):
            raise UsageError(f"transcript_dir must be a folder's path or None, got {folder!r}")
        if folder is not None and os.path.exists(folder := expand_home(folder)) and not os.path.isdir(folder):
            raise UsageError(f"transcript_dir must be a folder, but {folder} is a file")
        return folder

    @model_validator(mode="after")
    def _check_together(self) -> EpisodeConfig:
        if self.harness_feedback and self.workspace == "answer":
            raise UsageError("harness_feedback must be 0 in an episode of one answer: there are no submissions")
        HarnessOptions.read(self.harness_images, None, self.harness_network)
        return self

    @property
    def grading(self) -> GradingOptions:
        """What gradings need. Raises `UsageError` if `harness_env` cannot be read."""
        harness = HarnessOptions.read(self.harness_images, self.harness_env, self.harness_network)
        return GradingOptions(self.judge, harness)

    def has_room(self, tokens: int) -> bool:
        """Whether another turn can be started after this many tokens."""
        most = self.max_trajectory_tokens
        return most is None or tokens + smallest_turn(self.max_tokens) <= most

    @property
    def prompt_limit(self) -> int | None:
        """Maximum tokens of the prompt; None for no limit."""
        limits = [] if self.max_prompt_tokens is None else [self.max_prompt_tokens]
        if self.max_trajectory_tokens is not None:
            limits.append(max(1, self.max_trajectory_tokens - smallest_turn(self.max_tokens)))
        return min(limits, default=None)

    def recorded(self) -> dict[str, Any]:
        """The rules that determine the result, in the form of a transcript's header; see `from_record`."""
        rules = {name: getattr(self, name) for name in RECORDED_RULES}
        return rules | ({"single_turn": True} if self.workspace == "answer" else {})

    @classmethod
    def from_record(cls, options: Mapping[str, Any], **more: Any) -> EpisodeConfig:
        """The rules in a transcript's header, with `more` fields set. Raises `UsageError` for bad values."""
        rules = {name: options[name] for name in RECORDED_RULES if name in options}
        return cls(workspace="answer" if options.get("single_turn") else "shell", **rules, **more)


RewardFunction = Callable[[Score], float]
Reward = RewardWeights | str | Mapping[str, Any] | RewardFunction | None
"""None for the default weights."""


def read_reward(reward: Reward) -> tuple[RewardWeights | None, RewardFunction | None]:
    """The weights, or the function that computes the reward instead of them. Raises `UsageError` for others."""
    if reward is None or isinstance(reward, RewardWeights):
        return reward, None
    if isinstance(reward, str):
        return RewardWeights.preset(reward), None
    if isinstance(reward, Mapping):
        try:
            return RewardWeights.model_validate(dict(reward)), None
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            raise UsageError(f"reward: {wrong}. The weights are {', '.join(RewardWeights.model_fields)}") from None
    if callable(reward) and not isinstance(reward, type):
        return None, reward
    raise UsageError(
        f"reward must be RewardWeights, a mapping of weights, a function of a Score, or one of {', '.join(PRESETS)}; "
        f"got {reward!r}"
    )


@dataclass(frozen=True)
class FunctionGrader:
    """A grader whose reward is computed by a function of the `Score`, in a thread since it may be slow."""

    grader: Grader
    function: RewardFunction

    async def score(
        self, problem: Problem, files: dict[str, str | bytes], timeout: float = 600.0, *, seed: int | None = None
    ) -> Score:
        """The grader's score, with the reward from the function.

        Raises `UsageError` if the function returns no finite number or raises `StopIteration`: no reward is made up.
        """
        score = await self.grader.score(problem, files, timeout=timeout, seed=seed)
        value = await asyncio.to_thread(self._call, score)
        try:
            reward = float(value) if isinstance(value, Real) else math.nan
        except OverflowError:  # a whole number too large for a float
            reward = math.inf
        if not math.isfinite(reward):
            raise UsageError(f"{self._named} must return a finite number; for {problem.id} it returned {value!r:.40}")
        return score.model_copy(update={"reward": reward})

    @property
    def _named(self) -> str:
        return f"the reward function {getattr(self.function, '__qualname__', repr(self.function))}"

    def _call(self, score: Score) -> object:
        try:
            return self.function(score)
        except StopIteration as error:  # a future cannot hold it, so its caller would wait forever
            raise UsageError(f"{self._named} raised StopIteration, such as by next() on an empty iterator") from error
