"""Refuses Gymnasium's own limit on the steps of an episode."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs
from gymnasium.wrappers import TimeLimit

from ..errors import UsageError


class NoTimeLimit(gym.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Raises if one of the wrapped environments is a `TimeLimit`; otherwise changes nothing.

    `TimeLimit` ends an episode without notifying the environment: the files are not graded, and the container stays.
    ``gym.make(..., max_episode_steps=5)`` adds one, so this wrapper is registered as the outermost.

    Raises:
        UsageError: `env` has a `TimeLimit` among its wrappers.
    """

    def __init__(self, env: gym.Env[str, str]) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        inner: Any = env
        while isinstance(inner, gym.Wrapper):
            if isinstance(inner, TimeLimit):
                env.close()
                raise UsageError(
                    "max_episode_steps would cut episodes off ungraded: use max_turns instead, "
                    "which ends an episode with its score"
                )
            inner = inner.env
