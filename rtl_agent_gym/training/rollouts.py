"""Plays the episodes of each step: sampled ahead within the allowed lag, retried, and kept once they are graded.

After a fault of the machine or the service, these are retried, in this order:

- the request, by `engines.requests`;
- the episode, in a new environment, ``rollout_retries`` times. A refused request is not retried: it costs the episode;
- the step, if no group of it survived, as `retries.STEP_EPISODES` says.

`ServiceDown` ends the run at once. The seed of a turn depends only on the run's seed, the episode's name and the turn's
number, so an episode that is played again samples the same tokens from the same weights.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import tinker
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.metric_util import compute_trajectory_metrics
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Env, Trajectory, TrajectoryGroup

from ..engines.protocol import Sampler
from ..engines.requests import context_length
from ..envs.tinker_data import CVDPDataset
from ..errors import RequestRefused, SandboxError, SandboxLost, ServiceDown, UsageError
from ..logs import logging_as
from ..problems import Problem
from ..retries import STEP_EPISODES
from ..sandboxes.admission import queueing_as
from .options import TrainOptions
from .progress import Progress
from .rollout_store import RolloutStore, rollout_name

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass
class SeededCompleter(TokenCompleter):
    """Samples the turns of one episode."""

    sampler: Sampler
    options: TrainOptions
    """Limits, temperature and seed."""
    name: str
    """The episode's name, for the seeds."""
    _turn: int = field(default=0, init=False)

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """Sample the next turn. It is empty, with stop reason "length", if the episode's token limit is reached."""
        options = self.options
        left = token_limit(self.sampler, options) - model_input.length
        limit = min(options.max_tokens, left, max_tokens or options.max_tokens)
        self._turn += 1
        if limit < 1:
            return TokensWithLogprobs([], [], "length")
        seed = turn_seed(options.seed, self.name, self._turn)
        parameters = tinker.SamplingParams(max_tokens=limit, temperature=options.temperature, stop=stop, seed=seed)
        sequence = (await self.sampler.sample(model_input, 1, parameters)).sequences[0]
        return TokensWithLogprobs(list(sequence.tokens), list(sequence.logprobs or []), sequence.stop_reason)


async def with_retries(play: Callable[[], Awaitable[T]], show: Callable[[str], None]) -> T:
    """Play episodes, again as `STEP_EPISODES` says if all were lost to faults of the machine or the service.

    Raises:
        SandboxError: The last attempt failed, too.
        RequestRefused: The service refused every episode, and would refuse them again.
        ServiceDown: The service cannot be used any more.
    """
    for failures in range(1, STEP_EPISODES.attempts):
        try:
            return await play()
        except (RequestRefused, ServiceDown):
            raise
        except SandboxError as error:
            pause = STEP_EPISODES.pause(failures)
            text = f"{error}; retrying in {pause:g} s"
        logger.warning("%s", text)
        show(text)
        await asyncio.sleep(pause)
    return await play()


def token_limit(sampler: Sampler, options: TrainOptions) -> int:
    """Maximum number of tokens of an episode: the option's, or the model's context length if that is smaller."""
    return min(options.max_trajectory_tokens, context_length(sampler) or options.max_trajectory_tokens)


def turn_seed(seed: int, name: str, turn: int) -> int:
    """A seed of 31 bits that depends only on the arguments."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}/{turn}".encode()).digest()[:4], "big") >> 1


@dataclass(frozen=True)
class PlayedGroup:
    """The graded episodes of one problem."""

    problem: str
    tags: list[str]
    """The tags by which the cookbook groups metrics."""
    trajectories: TrajectoryGroup

    @property
    def passed(self) -> list[float]:
        """For each episode, 1 if it passed the hidden tests and 0 if not."""
        return [
            max((float(step.metrics.get("tests_passed", 0.0)) for step in trajectory.transitions), default=0.0)
            for trajectory in self.trajectories.trajectories_G
        ]


@dataclass
class Batch:
    """The episodes of a step."""

    groups: list[PlayedGroup] = field(default_factory=list)
    faults: list[SandboxError] = field(default_factory=list)
    """Faults of the machine or the service, one for each lost attempt at an episode."""
    dropped: int = 0
    """Number of groups with too few survivors."""
    lag: int = 0
    """How many steps the sampling weights were behind."""
    seconds: float = 0.0

    def metrics(self) -> dict[str, Any]:
        """The metrics of the episodes."""
        found: dict[str, Any] = compute_trajectory_metrics(
            [group.trajectories for group in self.groups], [group.tags for group in self.groups]
        )
        found |= {
            "pass_rate": mean([one for group in self.groups for one in group.passed]),
            "time/sample": self.seconds,
            "tokens_per_second": found["env/all/total_ac_tokens"] / max(1e-9, self.seconds),
            "rollouts/groups_dropped": self.dropped,
            "rollouts/faults": len(self.faults),
            "progress/lag": self.lag,
        }
        if len({group.problem for group in self.groups}) > 1:
            found |= {f"pass_rate/{group.problem}": mean(group.passed) for group in self.groups}
        return found


def mean(values: Sequence[float]) -> float:
    """The mean; 0 if there are no values."""
    return sum(values) / max(1, len(values))


class Pending(TypedDict):
    """A step whose episodes have been started, as a checkpoint records it."""

    problems: list[str]
    """Their ids."""
    version: int
    """Number of steps that the sampling weights were trained for."""
    weights: str | None
    """Path of the saved sampling weights; None if no checkpoint is written before the batch is collected."""


@dataclass
class RolloutProducer:
    """Plays the episodes of the current and the next steps, each step with the newest weights when it begins.

    It owns a task for each pending step; `stop` ends them.
    """

    options: TrainOptions
    dataset: CVDPDataset
    """Chooses the problems and creates their environments."""
    folder: Path
    """Where graded episodes are kept until their step is in a checkpoint."""
    progress: Progress

    def __post_init__(self) -> None:
        self.store = RolloutStore(self.folder)
        self._slots = asyncio.Semaphore(self.options.max_concurrent)
        self._pending: dict[int, tuple[Pending, asyncio.Task[Batch]]] = {}

    def due(self, step: int) -> list[int]:
        """The steps whose episodes may begin together with `step`, and have not begun yet."""
        ahead = range(step, min(step + self.options.lag + 1, self.options.num_steps))
        return [one for one in ahead if one not in self._pending]

    def start(self, step: int, sampler: Sampler, pending: Pending) -> None:
        """Begin a step's episodes with the weights of `sampler`."""
        by_id = {problem.id: problem for problem in self.dataset.problems}
        if gone := [name for name in pending["problems"] if name not in by_id]:
            raise UsageError(f"cvdp_jsonl_path: it no longer has the problem {gone[0]!r}, which is the run's next one")
        problems = [by_id[name] for name in pending["problems"]]
        self._pending[step] = pending, asyncio.create_task(self._play_step(step, problems, sampler))

    async def collect(self, step: int) -> Batch:
        """Wait for the episodes of a started step.

        Raises:
            SandboxError: No group survived, after all retries.
            RequestRefused: The service refused every episode.
            ServiceDown: The service cannot be used any more.
        """
        pending, task = self._pending[step]
        self.progress.begin(step, "playing", len(pending["problems"]) * self.options.group_size)
        batch = await task
        del self._pending[step]
        batch.lag = step - pending["version"]
        return batch

    def pending(self) -> list[Pending]:
        """What a resumed run must start again, in the order of the steps; for a checkpoint."""
        return [pending for pending, _ in self._pending.values()]

    async def stop(self) -> None:
        """Cancel the running episodes. Idempotent."""
        tasks = [task for _, task in self._pending.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _play_step(self, step: int, problems: Sequence[Problem], sampler: Sampler) -> Batch:
        batch, begun = Batch(), time.monotonic()

        async def play() -> Batch:
            before = len(batch.faults)
            async with asyncio.TaskGroup() as tasks:
                groups = [
                    tasks.create_task(self._play_group(step, number, problem, sampler, batch.faults))
                    for number, problem in enumerate(problems)
                ]
            batch.groups = [group for task in groups if (group := task.result()) is not None]
            batch.dropped += len(groups) - len(batch.groups)
            faults = batch.faults[before:]
            if batch.groups:
                return batch
            if faults and all(isinstance(fault, RequestRefused) for fault in faults):
                text = f"the service refused every episode of step {step + 1}: {faults[-1]}"
                raise RequestRefused(text) from faults[-1]
            raise SandboxError(
                f"step {step + 1}: every group was lost to faults of the machine or the service; see logs.log, and "
                "repair the machine (rtl-agent-gym doctor); the same command resumes the run"
            )

        await with_retries(play, self.progress.print)
        batch.seconds = time.monotonic() - begun
        return batch

    async def _play_group(
        self, step: int, number: int, problem: Problem, sampler: Sampler, faults: list[SandboxError]
    ) -> PlayedGroup | None:
        """Play and grade a group; None if too few episodes survived. Adds to `faults`."""
        o = self.options
        builder = self.dataset.group(problem, o.group_size)

        async def play(member: int, env: Env) -> tuple[Trajectory, Env] | None:
            name = rollout_name(step, number, member)
            if (kept := self.store.get(name, problem.id)) is not None:
                return kept, env
            with logging_as(name):
                return await attempts(name, member, env)

        async def attempts(name: str, member: int, env: Env) -> tuple[Trajectory, Env] | None:
            for attempt in range(o.rollout_retries + 1):
                try:
                    if attempt:
                        env = (await builder.make_envs())[member]
                    async with self._slots:
                        trajectory = await _roll_out(SeededCompleter(sampler, o, name), env)
                    _check_rewards(problem, env, (one.reward for one in trajectory.transitions))
                    self.store.put(name, problem.id, trajectory)
                    self.progress.episode_done()
                    return trajectory, env
                except ServiceDown:
                    raise
                except SandboxError as error:
                    faults.append(error)
                    logger.warning("episode %s, attempt %d: %s", name, attempt + 1, error)
                    if isinstance(error, RequestRefused):
                        break
            return None

        try:
            envs = await builder.make_envs()
            with queueing_as(f"step {step} group {number}"):
                async with asyncio.TaskGroup() as tasks:
                    members = [tasks.create_task(play(*one)) for one in enumerate(envs)]
            survivors = [one for task in members if (one := task.result()) is not None]
            if len(survivors) < o.min_survivors:
                raise SandboxError(f"{len(survivors)} of {len(envs)} episodes survived; the last fault: {faults[-1]}")
            trajectories, envs = zip(*survivors, strict=True)
            rewards, metrics = zip(*await builder.compute_group_rewards(list(trajectories), envs), strict=True)
            group = TrajectoryGroup(list(trajectories), list(rewards), list(metrics))
            _check_rewards(problem, builder, group.get_total_rewards())
            return PlayedGroup(problem.id, builder.logging_tags(), group)
        except SandboxError as error:
            logger.warning("a group of %s was dropped: %s", problem.id, error)
            return None
        finally:
            await builder.cleanup()


def _check_rewards(problem: Problem, source: object, rewards: Iterable[float]) -> None:
    """Raise `UsageError` if a reward is not finite: it would spoil the baseline of all episodes around it."""
    for reward in rewards:
        if not math.isfinite(reward):
            raise UsageError(
                f"{problem.id}: {type(source).__name__} gave the reward {reward}; it must be a finite number. Raise "
                "SandboxError for an episode whose reward is unknown"
            )


async def _roll_out(policy: TokenCompleter, env: Env) -> Trajectory:
    """Play an episode. If its work is cancelled but this task is not, a connection broke; that costs the episode."""
    try:
        return await do_single_rollout(policy, env)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        logger.warning("a rollout's work was cancelled", exc_info=True)
        raise SandboxLost("the rollout's work was cancelled, although the run continues") from error
