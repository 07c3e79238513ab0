"""SkyRL-gym 0.4: a text environment for SkyRL's generator, registered as ``rtl``.

::

    register()
    env = skyrl_gym.make("rtl", env_config={"renderer": "qwen3"}, extras={"problem_id": ID})

An exception of `RTLTextEnv.step` ends SkyRL's whole training step, and no return value excludes an episode. So a
machine fault is retried inside: the turns so far are played again in a new sandbox. Only a fault in each attempt is
raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
from skyrl_gym.metrics import default_aggregate_metrics

from ..episodes.turns import STOP
from ..errors import UsageError
from ..problems.notes import Rows
from .replay import ReplayedEnv
from .session import choose_problems

NAME = "rtl"
"""The id under which SkyRL makes the environment; the column ``env_class`` of a row."""


class RTLTextEnv(BaseTextEnv):
    """An episode. It opens nothing until `init`.

    Args:
        env_config: ``problems`` (the source, ``"bundled"`` by default), ``attempts`` (of each turn),
            and the arguments of `CVDPAgenticEnv`, such as ``renderer``, ``reward`` and ``max_turns``.
        extras: The row, with ``problem_id``, and ``problems``, which counts before that of `env_config`. SkyRL adds its
            own ``max_turns``, which counts if `env_config` has none.

    Raises:
        UsageError: There is no such problem, or an option is wrong.
    """

    def __init__(self, env_config: Mapping[str, Any] | None = None, extras: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        options, row = dict(env_config or {}), dict(extras or {})
        if "problem_id" not in row:
            raise UsageError("a row of SkyRL's data needs the column problem_id; rows() makes such rows")
        if "max_turns" in row:
            options.setdefault("max_turns", row["max_turns"])
        if "problems" in row:
            options["problems"] = row["problems"]
        self._env = ReplayedEnv(row["problem_id"], options)
        self.max_turns = self._env.config.max_turns

    def init(self, prompt: Any) -> tuple[list[dict[str, str]], dict[str, Any]]:
        """Begin the episode. Returns the problem's own messages; the row's prompt is not used.

        Raises:
            SandboxError: The machine failed in each attempt.
        """
        info = self._env.begin()
        return info["messages"], {name: value for name, value in info.items() if name != "messages"}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Play a turn: the model's text in the renderer's dialect.

        Raises:
            SandboxError: The machine failed in each attempt. The sandbox has ended.
        """
        observation, reward, done, info = self._env.step(action)
        self.turns += 1
        observations = [] if done else [{"role": "user", "content": observation}]
        return BaseTextEnvStepOutput(observations=observations, reward=reward, done=done, metadata=info)

    def get_metrics(self) -> dict[str, Any]:
        """`result_numbers` of an episode that was graded; otherwise none."""
        return self._env.numbers()

    @staticmethod
    def aggregate_metrics(metrics: list[dict[str, Any]]) -> dict[str, Any]:
        """Means over the episodes that were graded; ``stop/REASON`` is the share that ended for this reason."""
        graded = [numbers for numbers in metrics if numbers]
        reasons = {name: 0.0 for numbers in graded for name in numbers if name.startswith(STOP)}
        means: dict[str, Any] = default_aggregate_metrics([reasons | numbers for numbers in graded])
        return means

    def close(self) -> None:
        """End the sandbox. Idempotent."""
        self._env.close()


def rows(problems: str = "bundled", *, keep: Rows = "all", **rules: Any) -> list[dict[str, Any]]:
    """The rows of SkyRL's data set for a source: ``prompt``, ``env_class``, ``problem_id`` and ``problems``.

    `RTLTextEnv.init` replaces the prompt, which SkyRL only measures. Problems that cannot be scored with `rules`, the
    options of `EpisodeConfig` in ``env_config``, are left out, with a warning.

    Args:
        problems: The source; see `load_problems`.
        keep: ``fair``, ``partial`` or ``sound`` keeps the rows of CVDP that are known to be so, or better.
    """
    source, kept, _ = choose_problems(problems, rows=keep, texts=True, **rules)
    common = {"env_class": NAME, "problems": source}
    return [
        {"prompt": [{"role": "user", "content": problem.prompt}], "problem_id": problem.id, **common}
        for problem in kept
    ]


def register() -> None:
    """Make `RTLTextEnv` known to SkyRL-gym in this process. Idempotent; call it in every worker."""
    if NAME not in skyrl_gym.envs.registration.registry:
        skyrl_gym.register(id=NAME, entry_point=f"{__name__}:{RTLTextEnv.__name__}")
