"""The Gymnasium face of one completion: ``gym.make("CVDPSingleTurn-v0")``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.error import ResetNeeded

from ..episodes import runtime
from ..episodes.background import run_sync
from ..episodes.rewards import FunctionGrader, Reward, read_reward
from ..episodes.rules import EpisodeConfig
from ..episodes.single_turn_episode import SingleTurnEpisode
from ..errors import UsageError
from ..problems import Problem, find_problem
from ..renderers import Renderer
from .gym_options import Caller, check_render_mode, read_folder, read_problems, read_renderer
from .spaces import UnicodeText


class CVDPSingleTurnEnv(gym.Env[str, str]):
    """An RTL task answered by one completion: its code is taken from fenced blocks and scored by hidden tests.

    The observation at reset is the prompt with every file that the problem gives; the action is the completion, any
    text; the one step ends the episode. Rows of either format work, agentic ones too.

    Args:
        problems: ``"bundled"``, a path, a Hugging Face id, or a list of `Problem`. Those that cannot be scored here are
            left out with a warning.
        renderer: A dialect's name, or a `Renderer`. Its thinking and control tokens are no part of an answer.
        reward: What the score is worth, as in `CVDPAgenticEnv`; the default gives at most 1.4.
        transcript_dir: Folder for transcripts; None records none.
        scoring_timeout: Seconds the hidden tests may run.
        render_mode: ``"ansi"`` makes `render` return the episode so far as text.

    Example:
        env = gym.make("CVDPSingleTurn-v0")
        prompt, info = env.reset(seed=0)
        _, reward, _, _, info = env.step("```systemverilog rtl/top.sv\\nmodule top; endmodule\\n```")
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - Gymnasium declares it so

    def __init__(
        self,
        problems: str | Path | Sequence[Problem] = "bundled",
        renderer: str | Renderer = "qwen3",
        reward: Reward = None,
        transcript_dir: str | Path | None = None,
        scoring_timeout: float = 600.0,
        render_mode: str | None = None,
    ) -> None:
        check_render_mode(render_mode)
        self.render_mode = render_mode
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()
        self._problems, self._unscorable = read_problems(problems)
        self._renderer = read_renderer(renderer)
        self._config = EpisodeConfig(
            scoring_timeout=scoring_timeout,
            transcript_dir=read_folder(transcript_dir),
        )
        self._weights, self._function = read_reward(reward)
        self._caller = Caller()
        self._runtime: runtime.Runtime | None = None
        self._episode: SingleTurnEpisode | None = None
        self._screen: list[str] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Give a problem.

        Args:
            seed: Chooses the problem: equal seeds choose equal problems.
            options: ``{"problem_id": ID}`` chooses it by name.

        Raises:
            UsageError: No such problem or option, a problem that cannot be scored here, or a call that is not this
                thread's to make.
        """
        with self._caller.calling("reset"):
            return self._reset(seed, options or {})

    def _reset(self, seed: int | None, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        problem = self._choose(options)
        self._end_episode()
        if self._runtime is None:
            self._runtime = runtime.acquire(self._weights)
        scorer = self._runtime.scorer
        grader = scorer if self._function is None else FunctionGrader(scorer, self._function)
        self._episode = SingleTurnEpisode(
            problem, grader=grader, renderer=self._renderer, config=self._config, seed=seed
        )
        opening = run_sync(self._episode.start())
        self._screen = [opening.text]
        info = {
            "problem_id": problem.id,
            "category": problem.category,
            "difficulty": problem.difficulty,
            "messages": opening.messages,
        }
        return opening.text, info

    def _choose(self, options: dict[str, Any]) -> Problem:
        unknown = set(options) - {"problem_id"}
        if unknown:
            raise UsageError(f"reset knows the option 'problem_id', not {sorted(unknown)}")
        wanted = options.get("problem_id")
        if wanted is None:
            return self._problems[int(self.np_random.integers(len(self._problems)))]
        if wanted in self._unscorable:
            raise UsageError(f"{wanted} cannot be scored here: {self._unscorable[wanted]}")
        return find_problem(self._problems, wanted)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take the completion and score the code in it. ``info["files"]`` names the files that were found.

        Raises:
            ResetNeeded: The episode has not begun or is over.
            SandboxError: The machine failed; there is no score.
            UsageError: The action is no text, or the call is not this thread's to make.
        """
        with self._caller.calling("step"):
            return self._step(action)

    def _step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        episode = self._episode
        if episode is None or episode.over:
            raise ResetNeeded("the episode is over or has not begun: call reset() before step()")
        if not isinstance(action, str):
            raise UsageError(f"an action is the completion's text (str), got {type(action).__name__}")
        turn = run_sync(episode.step(action))
        self._screen += [f"── answer ──\n{action}"]
        info = turn.info() | {"files": sorted(turn.answer.files) if turn.answer else []}
        return "", turn.reward, turn.terminated, turn.truncated, info

    def render(self) -> str | None:
        """The episode so far as text, for ``render_mode="ansi"``."""
        if self.render_mode is None:
            gym.logger.warn("render() needs render_mode='ansi': gym.make('CVDPSingleTurn-v0', render_mode='ansi')")
            return None
        return "\n".join(part for part in self._screen if part) + "\n"

    def _end_episode(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            run_sync(episode.close())

    def close(self) -> None:
        """End the episode. Idempotent. In a fork of the process that uses the environment, do nothing."""
        if self._caller.elsewhere:
            return
        self._end_episode()
        self._screen = []
        if self._runtime is not None:
            self._runtime = None
            runtime.release(self._weights)
