"""The interface for tinker-cookbook's own trainers: `CVDPEnv`, and `CVDPEnvGroupBuilder`, which makes groups of it.

Tokens in, tokens out: the sampled ids go into the next prompt unchanged, followed by the command's output, so each
observation extends the one before it and an episode is one training datum.

A machine fault raises `SandboxError`, which the cookbook's rollout strategy handles. It is never a reward.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import tinker
from tinker_cookbook.completers import StopCondition
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.types import (
    Action,
    ActionExtra,
    Env,
    EnvGroupBuilder,
    InitialObservationOverflow,
    Logs,
    StepResult,
)

from ..episodes.episode import Episode, Grader, Turn
from ..episodes.prompt import PromptTooLong
from ..episodes.runtime import Lease, acquire
from ..episodes.turn_rewards import refuse_turn_rewards
from ..episodes.turns import STOP
from ..errors import SandboxLost, UsageError
from ..policies.protocol import Completion
from ..problems import Problem, category_name
from ..problems.validation import missing_here
from ..renderers import Renderer
from ..sandboxes import SandboxProvider
from ..sandboxes.client import finished
from ..scoring.scorer import require_scorable
from .tinker_config import TinkerEnvConfig, load_renderer

logger = logging.getLogger(__name__)

T = TypeVar("T")


class CVDPEnv(Env):
    """One episode of one problem, for one rollout.

    It owns its `Episode`, and with it a container, from `initial_observation` until the last step, an error, a
    cancellation or `close`.

    The `renderer` must have its vocabulary; `seed` is recorded in the transcript. With submissions each environment
    draws its own seed instead: with a shared one, what one environment learns of the stimuli would help the others.
    """

    def __init__(
        self,
        problem: Problem,
        config: TinkerEnvConfig,
        *,
        renderer: Renderer,
        provider: SandboxProvider,
        grader: Grader,
        seed: int | None = None,
    ) -> None:
        refuse_turn_rewards(config.episode.turn_rewards, "tinker-cookbook")
        self.problem, self.config, self.example_id = problem, config, problem.id
        self.episode = Episode(
            problem,
            provider=provider,
            grader=grader,
            renderer=renderer,
            config=config.episode,
            seed=None if config.episode.harness_feedback else seed,
        )
        self._renderer = renderer
        self._opened = False
        self._running: asyncio.Future[Any] | None = None
        self._closing: asyncio.Future[None] | None = None
        self.rollout_limits = RolloutLimits(
            max_turn_tokens=config.episode.max_tokens, max_trajectory_tokens=config.episode.max_trajectory_tokens
        )
        """Read by the cookbook's rollout loop: it keeps each sample within the budgets."""

    async def initial_observation(self) -> tuple[tinker.ModelInput, StopCondition] | InitialObservationOverflow:
        """Start the episode and return the prompt, shortened to its budget, or the overflow result if it cannot fit.

        Raises:
            SandboxError: No container starts.
            UsageError: The environment has been used before.
        """
        return await self._run(self._open())

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        """Run what the sampled tokens request. On the last step the files are scored.

        Raises `SandboxError` if the machine failed; there is no reward.
        """
        cut_off = (extra or {}).get("stop_reason") == "length"
        return await self._run(self._step(list(action), cut_off))

    async def close(self) -> None:
        """End the episode, its container and all that runs in it. Idempotent."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._end())
        await asyncio.shield(self._closing)

    async def _end(self) -> None:
        running = self._running
        if running is not None and not running.done():
            running.cancel()
            await asyncio.wait([running])
        await self.episode.close()

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` so that `close` can cancel it. If it fails or is cancelled, the container is ended.

        `work` is cancelled at most once: a second cancellation would interrupt its clean-up.
        """
        if self._closing is not None:
            work.close()
            raise SandboxLost("this environment is closed; its group was cleaned up, or its rollout has failed before")
        self._running = running = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(running)
        except BaseException as error:
            cancelled_by_close = isinstance(error, asyncio.CancelledError) and running.cancelled()
            await finished(self.close())
            if cancelled_by_close:
                raise SandboxLost("this environment was closed during the call") from None
            raise

    async def _open(self) -> tuple[tinker.ModelInput, StopCondition] | InitialObservationOverflow:
        self._opened = True
        try:
            opening = await self.episode.start()
        except PromptTooLong as error:
            logger.warning("%s", error)
            return InitialObservationOverflow(
                reward=self.config.overflow_reward,
                metrics={"prompt_overflow": 1.0, f"{STOP}max_tokens": 1.0},
                logs={"problem_id": self.problem.id, "initial_observation_overflow": str(error)},
            )
        if opening.cut:
            logger.info("%s: the prompt was shortened: %s", self.problem.id, "; ".join(opening.cut))
        tokens = await asyncio.to_thread(lambda: self.episode.tokens)
        return tokens.model_input(), self.episode.renderer.stop

    async def _step(self, ids: list[int], cut_off: bool) -> StepResult:
        episode = self.episode
        if not self._opened:
            raise UsageError("call initial_observation() before step()")
        turn = await episode.step(Completion(self._renderer.decode(ids), token_ids=ids, cut_off=cut_off))
        if episode.over:
            await episode.close()  # now, not only when the whole group is done
        return StepResult(
            reward=turn.reward,
            episode_done=episode.over,
            next_observation=episode.tokens.model_input(),
            next_stop_condition=episode.renderer.stop,
            metrics={} if turn.score is None else episode.trained_numbers(turn.score),  # once per episode
            logs=self._logs(turn),
        )

    def _logs(self, turn: Turn) -> Logs:
        logs: Logs = {
            "problem_id": self.problem.id,
            "turn": turn.number,
            "action": turn.action.kind,
            "transcript": str(self.episode.transcript_path or ""),
            "command": "\n".join(turn.action.commands),
            "observation": turn.observation,
            "submissions": "; ".join(str(submission) for submission in turn.submissions),
        }
        logs = {name: value for name, value in logs.items() if value != ""}
        if turn.score is not None:
            logs |= {"stop_reason": str(turn.stop_reason), "score_reason": turn.score.reason}
            logs["tests"] = f"{turn.score.tests_passed}/{turn.score.tests_total}"
        return logs


class CVDPEnvGroupBuilder(EnvGroupBuilder):
    """Makes a group of environments of one problem.

    A pickled builder has only its configuration. Providers and scorers are made where `make_envs` runs, once for all
    groups of an event loop, and end with the last group's `cleanup`. An environment starts its container when its
    rollout begins, within the loop's start-up limit.

    Raises:
        UsageError: `group_size` is not positive, the problem cannot be scored here, or the rules set
            ``turn_rewards``.
    """

    def __init__(
        self, problem: Problem, config: TinkerEnvConfig | None = None, group_size: int = 1, seed: int | None = None
    ) -> None:
        if group_size < 1:
            raise UsageError(f"group_size must be at least 1, got {group_size}")
        self.problem, self.config, self.group_size, self.seed = problem, config or TinkerEnvConfig(), group_size, seed
        refuse_turn_rewards(self.config.episode.turn_rewards, "tinker-cookbook")
        if missing_here(problem) is not None:
            require_scorable(problem, self.config.episode.grading)
        self._envs: list[CVDPEnv] = []
        self._lease: Lease | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_envs": [], "_lease": None}

    async def make_envs(self) -> Sequence[CVDPEnv]:
        """Environments of one group. May be called again, as the cookbook does to retry an environment."""
        renderer = await asyncio.to_thread(load_renderer, self.config)
        if self._lease is None:
            self._lease = acquire(sandbox=self.config.episode.sandbox.kind)
        provider = self._lease.runtime.agents
        options = self.config.episode.grading
        grader = self._lease.runtime.scorer(self.config.reward, self.config.score_cache, options=options)
        made = [
            CVDPEnv(self.problem, self.config, renderer=renderer, provider=provider, grader=grader, seed=self.seed)
            for _ in range(self.group_size)
        ]
        self._envs += made
        return made

    async def cleanup(self) -> None:
        """End every environment of the group, also during its rollout. Idempotent.

        If cancelled, it finishes its work first. Failures are only logged, as the cookbook requires.
        """
        envs, self._envs = self._envs, []
        lease, self._lease = self._lease, None

        async def end() -> None:
            ended = await asyncio.gather(*(env.close() for env in envs), return_exceptions=True)
            if lease is not None:
                ended += await asyncio.gather(lease.release(), return_exceptions=True)
            for error in ended:
                if isinstance(error, BaseException):
                    logger.warning("cleaning up a group: %s: %s", type(error).__name__, error)

        await finished(end())

    def logging_tags(self) -> list[str]:
        """``cvdp``, the category such as ``cid003``, and the difficulty."""
        return ["cvdp", category_name(self.problem.category), self.problem.difficulty]
