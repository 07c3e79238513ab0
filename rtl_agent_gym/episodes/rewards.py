"""The option ``reward``: weights, the name of a preset, a mapping of weights, or a function."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from pydantic import ValidationError

from ..errors import UsageError
from ..problems import Problem
from ..scoring import PRESETS, RewardWeights
from ..scoring.score import Score
from .rules import Grader

RewardFunction = Callable[[Score], float]
Reward = RewardWeights | str | Mapping[str, Any] | RewardFunction | None
"""None for the default weights."""


def read_reward(reward: Reward) -> tuple[RewardWeights | None, RewardFunction | None]:
    """The weights, or the function that computes the reward instead of them.

    Raises:
        UsageError: It is neither; the message lists the possible values.
    """
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
    """A grader whose rewards a function of the `Score` computes, in a thread since it may be slow."""

    grader: Grader
    function: RewardFunction

    async def score(
        self, problem: Problem, files: dict[str, str | bytes], timeout: float = 600.0, *, seed: int | None = None
    ) -> Score:
        """The grader's score, with the reward from the function.

        Raises:
            UsageError: The function returned no finite number: an unknown reward is never a reward.
        """
        score = await self.grader.score(problem, files, timeout=timeout, seed=seed)
        value = await asyncio.to_thread(self.function, score)
        try:
            reward = float(value) if isinstance(value, Real) else math.nan
        except OverflowError:  # a whole number beyond all floats
            reward = math.inf
        if not math.isfinite(reward):
            name = getattr(self.function, "__qualname__", repr(self.function))
            raise UsageError(
                f"the reward function {name} must return a finite number; for {problem.id} it returned {value!r:.40}"
            )
        return score.model_copy(update={"reward": reward})
