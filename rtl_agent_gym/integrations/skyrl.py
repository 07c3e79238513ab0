"""SkyRL-gym 0.4: a text environment for SkyRL's generator, registered as ``rtl``.

::

    register()
    env = skyrl_gym.make("rtl", env_config={"renderer": "qwen3"}, extras={"problem_id": ID})

An exception in `RTLTextEnv.step` ends SkyRL's whole training step, and no return value excludes an episode. So the
environment itself retries after a machine fault: it plays the turns so far again in a new sandbox. It raises the fault
only if every attempt fails.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
from skyrl_gym.metrics import default_aggregate_metrics

from ..envs import CVDPAgenticEnv
from ..episodes.turns import STOP, result_numbers
from ..errors import SandboxError, UsageError
from ..problems.notes import Rows
from ..retries import EPISODE
from .session import choose_problems, find_problem

NAME = "rtl"
"""The environment's id in SkyRL, and the value of a row's column ``env_class``."""

_log = logging.getLogger(__name__)


class RTLTextEnv(BaseTextEnv):
    """An episode of `CVDPAgenticEnv`. It opens nothing until `init`.

    After a machine fault, the turns so far are played again in a new sandbox and must end with the same exit codes.

    Args:
        env_config: ``problems`` (the source, ``"bundled"`` by default), ``attempts`` (of each turn),
            and the arguments of `CVDPAgenticEnv`, such as ``renderer``, ``reward`` and ``max_turns``.
        extras: The row: ``problem_id``, and optionally ``problems``, which overrides that of `env_config`. SkyRL adds
            its own ``max_turns``, which is used if `env_config` has none.

    Raises:
        UsageError: There is no such problem, or an option is invalid.
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
        self._attempts = int(options.pop("attempts", EPISODE.attempts))
        problem = find_problem(str(options.pop("problems", "bundled")), row["problem_id"])
        self._env = CVDPAgenticEnv([problem], **options)
        self._seed = secrets.randbits(31)
        self._played: list[tuple[str, dict[str, Any]]] = []
        """For each turn, the model's text and its `_evidence`."""
        self._running = False
        self.max_turns = self._env.config.max_turns

    def init(self, prompt: Any) -> tuple[list[dict[str, str]], dict[str, Any]]:
        """Begin the episode. Returns the problem's own messages; the row's prompt is not used.

        Raises:
            SandboxError: The machine failed in every attempt.
        """
        self._played.clear()
        info = self._attempt(self._reset)
        return info["messages"], {name: value for name, value in info.items() if name != "messages"}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Play a turn: the model's text in the renderer's dialect.

        Raises:
            SandboxError: The machine failed in every attempt. The sandbox has ended, as after any other exception.
        """
        observation, reward, terminated, truncated, info = self._attempt(lambda: self._caught_up().step(action))
        self._played.append((action, _evidence(info)))
        self.turns += 1
        done = terminated or truncated
        observations = [] if done else [{"role": "user", "content": observation}]
        return BaseTextEnvStepOutput(observations=observations, reward=float(reward), done=done, metadata=info)

    def get_metrics(self) -> dict[str, Any]:
        """The `result_numbers` of the episode; empty if it was not graded."""
        episode = self._env.episode
        score = episode.turns[-1].score if episode is not None and episode.turns else None
        if episode is None or score is None:
            return {}
        return result_numbers(score, episode.stop_reason, episode.turns, episode.oom_kills)

    @staticmethod
    def aggregate_metrics(metrics: list[dict[str, Any]]) -> dict[str, Any]:
        """Means over the graded episodes; ``stop/REASON`` is the share that ended for this reason."""
        graded = [numbers for numbers in metrics if numbers]
        reasons = {name: 0.0 for numbers in graded for name in numbers if name.startswith(STOP)}
        means: dict[str, Any] = default_aggregate_metrics([reasons | numbers for numbers in graded])
        return means

    def close(self) -> None:
        """End the sandbox. Idempotent."""
        self._running = False
        self._env.close()

    def _attempt(self, work: Callable[[], Any]) -> Any:
        for left in reversed(range(max(self._attempts, 1))):
            try:
                return work()
            except SandboxError as fault:
                self.close()
                if not left:
                    raise
                _log.warning("machine fault; replaying the episode up to turn %d: %s", len(self._played) + 1, fault)
            except BaseException:
                self.close()  # SkyRL does not close it after an error
                raise
        raise AssertionError("unreachable")

    def _reset(self) -> dict[str, Any]:
        _, info = self._env.reset(seed=self._seed)
        self._running = True
        return info

    def _caught_up(self) -> CVDPAgenticEnv:
        """The environment. If its episode has lost its sandbox, the turns so far are first played in a new one."""
        if not self._running:
            self._reset()
            for number, (text, before) in enumerate(self._played, start=1):
                if _evidence(self._env.step(text)[-1]) != before:
                    raise SandboxError(f"replay diverged at turn {number}")
        return self._env


def _evidence(info: dict[str, Any]) -> dict[str, Any]:
    """What must be equal when a turn is played again. Outputs may differ: they may contain times and process ids."""
    return {name: info.get(name) for name in ("action", "exit_code", "timed_out", "stop_reason")}


def rows(problems: str = "bundled", *, keep: Rows = "all", **rules: Any) -> list[dict[str, Any]]:
    """The rows of SkyRL's data set for a source: ``prompt``, ``env_class``, ``problem_id`` and ``problems``.

    SkyRL only measures the length of the prompt, which `RTLTextEnv.init` replaces. Problems that cannot be scored with
    `rules`, the options of `EpisodeConfig` in ``env_config``, are left out, with a warning.

    Args:
        problems: The source; see `load_problems`.
        keep: ``fair``, ``partial`` or ``sound`` keeps only rows of CVDP that are known to be at least that good.
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
