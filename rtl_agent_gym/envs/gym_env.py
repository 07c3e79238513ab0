"""The Gymnasium environments: ``CVDPAgentic-v0`` and ``CVDPSingleTurn-v0``."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
from gymnasium.error import ResetNeeded
from gymnasium.utils import RecordConstructorArgs
from gymnasium.wrappers import TimeLimit

from ..episodes.episode import Episode, EpisodeConfig
from ..episodes.rules import FunctionGrader, Reward, read_reward
from ..episodes.runtime import Lease, acquire, background_loop, run_sync
from ..episodes.turns import result_numbers
from ..errors import UsageError
from ..problems import Problem, find_problem, load_problems
from ..renderers import Renderer, renderer_named
from ..scoring.options import GradingOptions
from ..scoring.scorer import scorable
from .text_space import UnicodeText


class CVDPAgenticEnv(gym.Env[str, str]):
    """A multi-turn RTL task in a persistent shell in a sandbox, scored by hidden tests at its end.

    The action is the model's completion, any text. The observation is the prompt at reset (system and user text) and
    afterwards the output of the shell as the model reads it. Each observation has only new text: the caller keeps the
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
            ``judge="chat:MODEL"``; it replaces that of `config`. ``max_episode_steps`` of ``gym.make`` and
            ``gym.make_vec`` is refused, since it would end episodes without grading them. A `TimeLimit` around the
            environment also does so, and cannot be detected from inside: use ``max_turns``.

    Raises:
        UsageError: An option is wrong, or none of the problems can be scored here.

    Example:
        env = gym.make("CVDPAgentic-v0", config=EpisodeConfig(max_turns=20, system_prompt="Be brief."))
        observation, info = env.reset(seed=0)
        observation, reward, terminated, truncated, info = env.step("```bash\\nls rtl docs\\n```")
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - as Gymnasium declares it

    workspace: Literal["shell", "answer"] = "shell"
    """This environment's `EpisodeConfig.workspace`; that of `config` is not used."""

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
        if not isinstance(renderer, str | Renderer):
            raise UsageError(f"renderer must be a dialect's name or a Renderer, got {renderer!r}")
        self._renderer = renderer_named(renderer) if isinstance(renderer, str) else renderer
        self._weights, self._function = read_reward(reward)
        self._on_output, self._caller = on_output, SingleCaller()
        self._lease: Lease | None = None
        self.episode: Episode | None = None
        """The running episode, for wrappers that need more than `step` returns. Its coroutines belong to another loop:
        call ``run_sync(env.unwrapped.episode.sandbox.run("ls"))``, with `rtl_agent_gym.episodes.runtime.run_sync`.
        """
        self._screen: list[str] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: Chooses the problem and seeds the episode. Later resets without a seed draw both from it, so equal
                seeds give the same sequence of problems and of episode seeds.
            options: ``{"problem_id": ID}`` chooses the problem by its id.

        Raises:
            UsageError: Unknown problem or option, a problem that cannot be scored here, or a call from another process,
                or from a thread during another thread's call.
            SandboxError: The machine could not start a sandbox.
        """
        with self._caller.calling("reset"):
            self._end_episode()  # first, so that `step` requires another reset if this one fails
            super().reset(seed=seed)
            problem = self._choose({} if options is None else options)
            if self._lease is None:
                self._lease = acquire(background_loop(), self.config.sandbox.kind)
            runtime = self._lease.runtime
            scorer = runtime.scorer(self._weights, waiting=1, options=self.config.grading)
            self.episode = Episode(
                problem,
                provider=runtime.agents,
                grader=scorer if self._function is None else FunctionGrader(scorer, self._function),
                renderer=self._renderer,
                config=self.config,
                seed=int(self.np_random.integers(1 << 31)) if seed is None else seed,
                on_output=self._on_output,
                turn_budget=runtime.turn_budget(self.config.turn_grading_time, self._weights, self._function),
            )
            try:
                opening = run_sync(self.episode.start())
            except BaseException:
                self._end_episode()
                raise
            self._screen = []
            self._show(opening.text)
            info = {"problem_id": problem.id, "category": problem.category, "difficulty": problem.difficulty}
            return opening.text, {**info, "messages": opening.messages}

    def _choose(self, options: dict[str, Any]) -> Problem:
        wanted = options.get("problem_id") if isinstance(options, dict) else options
        if not isinstance(wanted, str | None) or set(options) - {"problem_id"}:
            raise UsageError(f"options of reset must be {{'problem_id': ID}} or None, got {options!r}")
        if wanted is None:
            return self._problems[int(self.np_random.integers(len(self._problems)))]
        if wanted in self._unscorable:
            raise UsageError(f"{wanted} cannot be scored here: {self._unscorable[wanted]}")
        return find_problem(self._problems, wanted)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one turn: run what the completion requests. On the last turn the files are scored: `info` then has
        ``score``, ``numbers`` (`result_numbers`) and, with the rule ``turn_rewards``, ``turn_rewards`` of all turns.

        Raises:
            ResetNeeded: The episode has not begun or is over.
            SandboxError: The machine failed; the episode is over and has no score.
            UsageError: The action is not a str, or another process or thread uses the environment; see `reset`.
        """
        with self._caller.calling("step"):
            episode = self.episode
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
                if self.config.turn_rewards != "none":
                    info["turn_rewards"] = list(episode.turn_rewards)
            return turn.observation, turn.reward, turn.terminated, turn.truncated, info

    def __getstate__(self) -> dict[str, Any]:
        if self._lease is not None:
            raise TypeError("an environment cannot be copied or pickled between reset() and close(): make another one")
        return self.__dict__

    def _show(self, *texts: str) -> None:
        if self.render_mode is not None:
            self._screen += texts

    def render(self) -> str | None:
        """The episode so far as text, for ``render_mode="ansi"``."""
        if self.render_mode is None:
            gym.logger.warn("render() needs render_mode='ansi': gym.make(..., render_mode='ansi')")
            return None
        return "\n".join(part for part in self._screen if part) + "\n"

    def _end_episode(self) -> None:
        episode, self.episode = self.episode, None
        if episode is not None:
            run_sync(episode.close())

    def close(self) -> None:
        """End the episode's container. Idempotent; does nothing in a fork of the process that uses the environment."""
        if self._caller.in_fork or sys.is_finalizing():  # in `__del__` at exit: the container ends with the process
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


class NoTimeLimit(gym.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Raises `UsageError` if one of the wrapped environments is a `TimeLimit`; otherwise changes nothing.

    `TimeLimit` ends an episode without notifying the environment: the files are not graded, and the container stays.
    ``gym.make(..., max_episode_steps=5)`` adds one, so this wrapper is registered as the outermost. It cannot detect
    a `TimeLimit` that is added around it afterwards.
    """

    def __init__(self, env: gym.Env[str, str]) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        inner: Any = env
        while isinstance(inner, gym.Wrapper):
            if isinstance(inner, TimeLimit):
                env.close()
                raise UsageError(
                    "max_episode_steps would end episodes without a score: use max_turns instead, "
                    "which ends an episode with its score"
                )
            inner = inner.env


def read_problems(
    problems: str | Path | Sequence[Problem], options: GradingOptions | None = None, *, texts: bool = True
) -> tuple[list[Problem], dict[str, str]]:
    """The problems that can be scored with these options, and the reason why each of the others cannot, by id.

    Without `texts`, those whose answer is text cannot. Raises `UsageError` if none can, or if the argument contains
    anything but problems, or two with the same id.
    """
    if isinstance(problems, Problem):
        raise UsageError("`problems` is a list of problems: put the one problem into a list")
    if not isinstance(problems, (str, Path, Sequence)):
        raise UsageError(f"`problems` must be 'bundled', a path, a data set's id or a list, got {problems!r}")
    found = load_problems(problems)
    if not found:
        raise UsageError("there is no problem to work on: `problems` is empty")
    kept, left = scorable(found, problems if isinstance(problems, (str, Path)) else "the list", options, texts=texts)
    if left:
        gym.logger.warn(
            f"{len(left)} of {len(found)} problems cannot be scored here and are left out: {left[0][0].id} …"
        )
    return kept, {problem.id: reason for problem, reason in left}


class SingleCaller:
    """Restricts an environment to the process that used it first, and to one thread at a time.

    Any other call would block, on a container of another process or on a call in progress, so it raises at once.
    """

    def __init__(self) -> None:
        self._process: int | None = None
        self._busy = threading.Lock()

    def __reduce__(self) -> tuple[type[SingleCaller], tuple[()]]:
        return SingleCaller, ()  # a copied or unpickled environment is unused

    @property
    def in_fork(self) -> bool:
        """Whether this process is a fork of the process that used the environment first."""
        return self._process not in (None, os.getpid())

    @contextmanager
    def calling(self, method: str) -> Iterator[None]:
        """Reserve the environment for a call of `method`. Raises `UsageError` if another process or thread uses it."""
        if self.in_fork:
            raise UsageError(
                f"{method}() in process {os.getpid()}: this environment is in use in process {self._process}, of which "
                "this one is a fork. Make an environment in each process, as AsyncVectorEnv does"
            )
        if not self._busy.acquire(blocking=False):
            raise UsageError(
                f"{method}() while another thread's call of this environment is under way: "
                "an environment serves one thread at a time, so make one for each thread"
            )
        try:
            self._process = os.getpid()
            yield
        finally:
            self._busy.release()
