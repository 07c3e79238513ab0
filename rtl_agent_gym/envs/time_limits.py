"""Why an environment of this package has no other limit on its steps than its own."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs
from gymnasium.wrappers import TimeLimit

from ..errors import UsageError


class NoTimeLimit(gym.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Refuses Gymnasium's `TimeLimit` below it; everything else goes through.

    `TimeLimit` ends an episode without telling the environment: the files are not graded, and the container stays.
    ``gym.make(..., max_episode_steps=5)`` wraps an environment in one, so this wrapper is registered to come last.

    Args:
        env: The environment, wrapped or not.

    Raises:
        UsageError: There is a `TimeLimit` among its wrappers.
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
