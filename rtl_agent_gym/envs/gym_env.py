"""The Gymnasium environments: ``CVDPAgentic-v0`` and ``CVDPSingleTurn-v0``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
from gymnasium.error import ResetNeeded

from ..episodes.episode import Episode, EpisodeConfig
from ..episodes.results import result_numbers
from ..episodes.rewards import FunctionGrader, Reward, read_reward
from ..episodes.runtime import Lease, acquire, background_loop, run_sync
from ..errors import UsageError
from ..problems import Problem, find_problem
from ..renderers import Renderer
from .gym_options import Caller, read_problems, read_renderer
from .spaces import UnicodeText


class CVDPAgenticEnv(gym.Env[str, str]):
    """A multi-turn RTL task in a persistent Docker shell, scored by hidden tests at its end.

    The action is the model's completion, any text. The observation is the prompt at reset (system and user text) and
    afterwards the output of the shell as the model reads it. Each observation holds only new text: the caller keeps the
    history. Rewards are 0 until the episode's end, except for those of submissions.

    An environment may be used by one thread at a time, in the process that used it first; other calls raise
    `UsageError`.

    Args:
        problems: ``"bundled"``, a path, a Hugging Face id, or a list of `Problem`. Those that cannot be scored here are
            left out, with a warning.
        renderer: A dialect's name, or a `Renderer`.
        config: The rules of the episodes; None for the defaults.
        reward: How the score becomes a reward: `RewardWeights`, a mapping of them, a preset's name such as
            ``"dense"``, or a function of the `Score`; the default gives at most 1.4.
        on_output: Called with the raw output of commands while they run.
        render_mode: ``"ansi"`` makes `render` return the episode so far as text.
        **rules: Any option of `EpisodeConfig` by its name, such as ``max_turns=20``, ``transcript_dir="runs"`` or
            ``judge="chat:MODEL"``; it replaces the one in `config`. Gymnasium's ``max_episode_steps`` and `TimeLimit`
            are refused, as they would end episodes ungraded.

    Raises:
        UsageError: An option is wrong, or none of the problems can be scored here.

    Example:
        env = gym.make("CVDPAgentic-v0", config=EpisodeConfig(max_turns=20, system_prompt="Be brief."))
        observation, info = env.reset(seed=0)
        observation, reward, terminated, truncated, info = env.step("```bash\\nls rtl docs\\n```")
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - as Gymnasium declares it

    workspace: Literal["shell", "answer"] = "shell"
    """The environment's own `EpisodeConfig.workspace`, whatever `config` has."""

    def __init__(
        self,
        problems: str | Path | Sequence[Problem] = "bundled",
        renderer: str | Renderer = "qwen3",
        config: EpisodeConfig | None = None,
        reward: Reward = None,
        on_output: Callable[[bytes], None] | None = None,
        render_mode: str | None = None,
        **rules: Any,
    ) -> None:
        if render_mode not in (None, "ansi"):
            raise UsageError(f"render_mode must be None or 'ansi', got {render_mode!r}")
        if on_output is not None and not callable(on_output):
            raise UsageError(f"on_output must be a function of bytes or None, got {on_output!r}")
        if config is not None and not isinstance(config, EpisodeConfig):
            raise UsageError(f"config must be an EpisodeConfig or None, got {config!r}")
        self.render_mode = render_mode
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()
        self.config = (config or EpisodeConfig()).with_options(**{"workspace": self.workspace, **rules})
        if self.config.workspace != self.workspace:
            raise UsageError(
                f"this environment's workspace is {self.workspace!r}: CVDPAgentic-v0 is for shells, CVDPSingleTurn-v0 "
                "for answers"
            )
        self._problems, self._unscorable = read_problems(problems, self.config.grading)
        self._renderer = read_renderer(renderer)
        self._weights, self._function = read_reward(reward)
        self._on_output, self._caller = on_output, Caller()
        self._lease: Lease | None = None
        self._episode: Episode | None = None
        self._screen: list[str] = []

    @property
    def episode(self) -> Episode | None:
        """The running episode, for wrappers that need more than `step` returns."""
        return self._episode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: Chooses the problem: equal seeds choose equal problems.
            options: ``{"problem_id": ID}`` chooses it by its id.

        Raises:
            UsageError: Unknown problem or option, a problem that cannot be scored here, or a call from another process,
                or from a thread during another thread's call.
            SandboxError: The machine could not start a sandbox.
        """
        with self._caller.calling("reset"):
            super().reset(seed=seed)
            problem = self._choose(options or {})
            self._end_episode()
            if self._lease is None:
                self._lease = acquire(background_loop())
            runtime = self._lease.runtime
            scorer = runtime.scorer(self._weights, waiting=1, options=self.config.grading)
            self._episode = Episode(
                problem,
                provider=runtime.agents,
                grader=scorer if self._function is None else FunctionGrader(scorer, self._function),
                renderer=self._renderer,
                config=self.config,
                seed=seed,
                on_output=self._on_output,
            )
            try:
                opening = run_sync(self._episode.start())
            except BaseException:
                self._end_episode()  # so that `step` asks for another reset
                raise
            self._screen = []
            self._show(opening.text)
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
        """Play one turn: run what the completion asks for. On the last turn the files are scored: `info` has the
        ``score``, and as ``numbers`` those of `result_numbers`.

        Raises:
            ResetNeeded: The episode has not begun or is over.
            SandboxError: The machine failed; the episode is over and has no score.
            UsageError: The action is not a str, or another process or thread uses the environment; see `reset`.
        """
        with self._caller.calling("step"):
            episode = self._episode
            if episode is None or episode.over:
                raise ResetNeeded("the episode is over or has not begun: call reset() before step()")
            if not isinstance(action, str):
                raise UsageError(f"an action is the completion's text (str), got {type(action).__name__}")
            turn = run_sync(episode.step(action))
            title = "answer" if self.workspace == "answer" else f"turn {turn.number}"
            self._show(f"── {title} ──\n{action}", turn.observation)
            info = turn.info()
            if turn.score is not None:
                info["numbers"] = result_numbers(turn.score, turn.stop_reason, episode.turns, episode.oom_kills)
            return turn.observation, turn.reward, turn.terminated, turn.truncated, info

    def _show(self, *texts: str) -> None:
        """Keep what `render` returns; without a render mode, nothing."""
        if self.render_mode is not None:
            self._screen += texts

    def render(self) -> str | None:
        """The episode so far as text, for ``render_mode="ansi"``."""
        if self.render_mode is None:
            gym.logger.warn("render() needs render_mode='ansi': gym.make(..., render_mode='ansi')")
            return None
        return "\n".join(part for part in self._screen if part) + "\n"

    def _end_episode(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            run_sync(episode.close())

    def close(self) -> None:
        """End the episode's container. Idempotent; does nothing in a fork of the process that uses the environment."""
        if self._caller.in_fork:
            return
        self._end_episode()
        self._screen = []
        lease, self._lease = self._lease, None
        if lease is not None:
            run_sync(lease.release())


class CVDPSingleTurnEnv(CVDPAgenticEnv):
    """An RTL task answered by one completion: the files in its fenced blocks are scored by hidden tests.

    The observation at reset is the prompt with all files of the problem; the action is the completion, any text. The
    first step ends the episode, and ``info["files"]`` names the files that were found. Agentic and single-turn problems
    both work. The arguments are those of `CVDPAgenticEnv`.

    Example:
        env = gym.make("CVDPSingleTurn-v0")
        prompt, info = env.reset(seed=0)
        _, reward, _, _, info = env.step("```systemverilog rtl/top.sv\\nmodule top; endmodule\\n```")
    """

    workspace = "answer"
