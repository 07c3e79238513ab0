"""SkyRL-gym 0.4: a text environment for SkyRL's generator, registered as ``rtl``.

::

    register()
    env = skyrl_gym.make("rtl", env_config={"renderer": "qwen3"}, extras={"problem_id": ID})

An exception of `RTLTextEnv.step` ends SkyRL's whole training step, and no return value excludes an episode. So a
machine fault is retried inside: the turns so far are played again in a new sandbox. Only a fault in each attempt is
raised.
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
"""The id under which SkyRL makes the environment; the column ``env_class`` of a row."""

_log = logging.getLogger(__name__)


class RTLTextEnv(BaseTextEnv):
    """An episode of `CVDPAgenticEnv`. It opens nothing until `init`.

    After a machine fault, the turns so far are played again in a new sandbox and must end with the same exit codes.

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
        self._attempts = int(options.pop("attempts", EPISODE.attempts))
        problem = find_problem(str(options.pop("problems", "bundled")), row["problem_id"])
        self._env = CVDPAgenticEnv([problem], **options)
        self._seed = secrets.randbits(31)
        self._played: list[tuple[str, dict[str, Any]]] = []
        """Each turn: what the model wrote, and what was observed of it, as in `_evidence`."""
        self._running = False
        self.max_turns = self._env.config.max_turns

    def init(self, prompt: Any) -> tuple[list[dict[str, str]], dict[str, Any]]:
        """Begin the episode. Returns the problem's own messages; the row's prompt is not used.

        Raises:
            SandboxError: The machine failed in each attempt.
        """
        self._played.clear()
        info = self._attempt(self._reset)
        return info["messages"], {name: value for name, value in info.items() if name != "messages"}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Play a turn: the model's text in the renderer's dialect.

        Raises:
            SandboxError: The machine failed in each attempt. The sandbox has ended, as after any other exception.
        """
        observation, reward, terminated, truncated, info = self._attempt(lambda: self._caught_up().step(action))
        self._played.append((action, _evidence(info)))
        self.turns += 1
        done = terminated or truncated
        observations = [] if done else [{"role": "user", "content": observation}]
        return BaseTextEnvStepOutput(observations=observations, reward=float(reward), done=done, metadata=info)

    def get_metrics(self) -> dict[str, Any]:
        """`result_numbers` of an episode that was graded; otherwise none."""
        episode = self._env.episode
        score = episode.turns[-1].score if episode is not None and episode.turns else None
        if episode is None or score is None:
            return {}
        return result_numbers(score, episode.stop_reason, episode.turns, episode.oom_kills)

    @staticmethod
    def aggregate_metrics(metrics: list[dict[str, Any]]) -> dict[str, Any]:
        """Means over the episodes that were graded; ``stop/REASON`` is the share that ended for this reason."""
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
                _log.warning("the episode is played again up to turn %d: %s", len(self._played) + 1, fault)
            except BaseException:
                self.close()  # SkyRL does not do so after an error
                raise
        raise AssertionError("unreachable")

    def _reset(self) -> dict[str, Any]:
        _, info = self._env.reset(seed=self._seed)
        self._running = True
        return info

    def _caught_up(self) -> CVDPAgenticEnv:
        """The environment; if its episode has no sandbox, the turns so far are played in a new one first."""
        if not self._running:
            self._reset()
            for number, (text, before) in enumerate(self._played, start=1):
                if _evidence(self._env.step(text)[-1]) != before:
                    raise SandboxError(f"replay diverged at turn {number}")
        return self._env


def _evidence(info: dict[str, Any]) -> dict[str, Any]:
    """What must be the same when a turn is played again; outputs may contain times and numbers of processes."""
    return {name: info.get(name) for name in ("action", "exit_code", "timed_out", "stop_reason")}


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
