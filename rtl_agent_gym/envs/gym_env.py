"""The Gymnasium face of an episode: ``gym.make("CVDPAgentic-v0")``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.error import ResetNeeded

from ..episodes import runtime
from ..episodes.background import run_sync
from ..episodes.episode import Episode, EpisodeConfig, Opening, Turn
from ..episodes.rewards import FunctionGrader, Reward, read_reward
from ..errors import UsageError
from ..problems import Problem
from ..renderers import Renderer
from .gym_options import Caller, check_render_mode, read_folder, read_problems, read_renderer
from .spaces import UnicodeText


class CVDPAgenticEnv(gym.Env[str, str]):
    """A multi-turn RTL task in a persistent Docker shell, scored by hidden tests at its end.

    The action is the model's completion, any text. The observation is the prompt at reset (system and user text) and
    afterwards what the shell returned, as the model reads it. Rewards are 0 until the episode's end, but for what
    submissions earn. Each observation is what is new: whoever asks a model keeps the history.

    One thread at a time may use an environment, in the process that used it first; anyone else gets a `UsageError`.

    Args:
        problems: ``"bundled"``, a path, a Hugging Face id, or a list of `Problem`. Those that cannot be scored here are
            left out with a warning.
        renderer: A dialect's name, or a `Renderer`.
        max_turns: Turns before the episode is truncated, and graded. Gymnasium's ``max_episode_steps`` is refused, and
            its `TimeLimit` must not be wrapped around, as both leave the episode ungraded.
        command_timeout: Seconds one command may run.
        reward: What the score is worth: `RewardWeights`, or a mapping of them, or a preset's name (``"dense"``), or a
            function of the `Score`; the default gives at most 1.4.
        transcript_dir: Folder for transcripts; None records none.
        max_output: Characters of one command's output that the model reads.
        on_output: Told of commands' raw output while they run.
        render_mode: ``"ansi"`` makes `render` return the episode so far as text.
        harness_feedback: How often the agent may have its files graded before the end, by the command ``submit``; it
            is told the names of the checks that fail. ``info["submission"]`` says what came of it.
        progress_coef: Reward for the whole way to all tests passed, paid in the step of a submission that came nearer.

    Raises:
        UsageError: An argument cannot be meant so, or none of the problems can be scored here.

    Example:
        env = gym.make("CVDPAgentic-v0")
        observation, info = env.reset(seed=0)
        observation, reward, terminated, truncated, info = env.step("```bash\\nls rtl docs\\n```")
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(
        self,
        problems: str | Path | Sequence[Problem] = "bundled",
        renderer: str | Renderer = "qwen3",
        max_turns: int = 50,
        command_timeout: float = 30.0,
        reward: Reward = None,
        transcript_dir: str | Path | None = None,
        max_output: int = 16_000,
        on_output: Callable[[bytes], None] | None = None,
        render_mode: str | None = None,
        harness_feedback: int = 0,
        progress_coef: float = 0.5,
    ) -> None:
        check_render_mode(render_mode)
        if on_output is not None and not callable(on_output):
            raise UsageError(f"on_output must be a function of bytes or None, got {on_output!r}")
        self.render_mode = render_mode
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()
        self._problems, self._unscorable = read_problems(problems)
        self._renderer = read_renderer(renderer)
        self._config = EpisodeConfig(
            max_turns=max_turns,
            command_timeout=command_timeout,
            max_output=max_output,
            transcript_dir=read_folder(transcript_dir),
            harness_feedback=harness_feedback,
            progress_coef=progress_coef,
        )
        self._weights, self._function = read_reward(reward)
        self._on_output, self._caller = on_output, Caller()
        self._runtime: runtime.Runtime | None = None
        self._episode: Episode | None = None
        self._screen: list[str] = []

    @property
    def episode(self) -> Episode | None:
        """The running episode, for wrappers that want more than the contract."""
        return self._episode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: Chooses the problem: equal seeds choose equal problems.
            options: ``{"problem_id": ID}`` chooses it by name.

        Raises:
            UsageError: No such problem or option, a problem that cannot be scored here, or a call that is not this
                thread's to make.
            SandboxError: The machine could not give a sandbox.
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
        self._episode = Episode(
            problem,
            provider=self._runtime.provider,
            grader=scorer if self._function is None else FunctionGrader(scorer, self._function),
            renderer=self._renderer,
            config=self._config,
            seed=seed,
            on_output=self._on_output,
        )
        opening: Opening = run_sync(self._episode.start())
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
        for problem in self._problems:
            if problem.id == wanted:
                return problem
        if wanted in self._unscorable:
            raise UsageError(f"{wanted} cannot be scored here: {self._unscorable[wanted]}")
        known = ", ".join(problem.id for problem in self._problems[:5])
        raise UsageError(
            f"no problem {wanted!r} among {len(self._problems)}: {known}{' …' * (len(self._problems) > 5)}"
        )

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """One turn: run what the completion asks for. At the end the files are scored.

        Raises:
            ResetNeeded: The episode has not begun or is over.
            SandboxError: The machine failed; the episode is over and has no score.
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
        turn: Turn = run_sync(episode.step(action))
        self._screen += [f"── turn {turn.number} ──\n{action}", turn.observation]
        return turn.observation, turn.reward, turn.terminated, turn.truncated, turn.info()

    def render(self) -> str | None:
        """The episode so far as text, for ``render_mode="ansi"``."""
        if self.render_mode is None:
            gym.logger.warn("render() needs render_mode='ansi': gym.make('CVDPAgentic-v0', render_mode='ansi')")
            return None
        return "\n".join(part for part in self._screen if part) + "\n"

    def _end_episode(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            run_sync(episode.close())

    def close(self) -> None:
        """End the episode's container. Idempotent. In a fork of the process that uses the environment, do nothing."""
        if self._caller.elsewhere:
            return
        self._end_episode()
        self._screen = []
        if self._runtime is not None:
            self._runtime = None
            runtime.release(self._weights)
