"""Episodes whose machine faults are repaired inside, for frameworks that cannot exclude an episode."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from ..envs import CVDPAgenticEnv
from ..episodes.runtime import run_sync
from ..episodes.turns import StopReason, result_numbers
from ..errors import SandboxError
from ..retries import EPISODE
from .session import find_problem

_log = logging.getLogger(__name__)


class ReplayedEnv:
    """An episode of `CVDPAgenticEnv`. It opens nothing until `begin`.

    After a machine fault, the turns so far are played again in a new sandbox and must end with the same exit codes.

    Args:
        problem_id: The problem's id.
        options: ``problems`` (the source, ``"bundled"`` by default), ``attempts`` (of each turn), and the arguments of
            `CVDPAgenticEnv`.

    Raises:
        UsageError: There is no such problem, or an option is wrong.
    """

    def __init__(self, problem_id: str, options: Mapping[str, Any]) -> None:
        rest = dict(options)
        self._attempts = int(rest.pop("attempts", EPISODE.attempts))
        problem = find_problem(str(rest.pop("problems", "bundled")), problem_id)
        self._env = CVDPAgenticEnv([problem], **rest)
        self._seed = secrets.randbits(31)
        self._played: list[tuple[str, dict[str, Any]]] = []
        """Each turn: what the model wrote, and what was observed of it, as in `_evidence`."""
        self._running = False
        self.config = self._env.config

    @property
    def episode(self) -> Any:
        """The running `Episode`, or None."""
        return self._env.episode

    def begin(self) -> dict[str, Any]:
        """Begin the episode. Returns the information that `CVDPAgenticEnv.reset` gives.

        Raises:
            SandboxError: The machine failed in each attempt.
        """
        self._played.clear()
        info: dict[str, Any] = self._attempt(self._reset)
        return info

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Play a turn: the model's text in the renderer's dialect. Returns observation, reward, whether the episode is
        over, and its information.

        Raises:
            SandboxError: The machine failed in each attempt. The sandbox has ended, as after any other exception.
        """
        observation, reward, terminated, truncated, info = self._attempt(lambda: self._caught_up().step(action))
        self._played.append((action, _evidence(info)))
        return observation, float(reward), terminated or truncated, info

    def finish(self, reason: StopReason) -> float:
        """End the episode and grade the files that are there. Returns the reward of the grading.

        Raises:
            SandboxError: The machine failed in each attempt.
        """
        return float(self._attempt(lambda: run_sync(self._caught_up().episode.finish(reason))).reward)

    def numbers(self) -> dict[str, float]:
        """`result_numbers` of an episode that was graded; otherwise none."""
        episode = self._env.episode
        score = episode.turns[-1].score if episode is not None and episode.turns else None
        if episode is None or score is None:
            return {}
        return result_numbers(score, episode.stop_reason, episode.turns, episode.oom_kills)

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
                self.close()  # no framework does so after an error
                raise
        raise AssertionError("unreachable")

    def _reset(self) -> dict[str, Any]:
        _, info = self._env.reset(seed=self._seed)
        self._running = True
        return info

    def _caught_up(self) -> Any:
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
