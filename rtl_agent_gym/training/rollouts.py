"""Episodes sampled for a step: seeded, retried when the machine fails, never played twice.

Built on tinker-cookbook's rollouts: a `SeededCompleter` is the policy of one episode, and `SeededRetries` the strategy
of a group. The seed of each turn follows from the run's seed, the episode's name and the turn alone, so an episode
that is played anew, after a fault or a crash, samples the same tokens from the same weights.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import tinker
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.rollout_strategy import RolloutResult, RolloutStrategy
from tinker_cookbook.rl.rollouts import do_group_rollout, do_single_rollout
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RolloutError, Trajectory, TrajectoryGroup

from ..engines.guarded import context_of
from ..engines.protocol import Sampler
from ..errors import RequestRefused, SandboxError, SandboxLost, ServiceDown
from .episodes import EpisodeStore

logger = logging.getLogger(__name__)


class GroupDropped(SandboxError):
    """Too few of a group's episodes survived the faults of the machine and the service.

    Args:
        message: How many, and the last fault.
        refused: What the service said, if it refused a request of each episode that is missing: a retry is useless.
    """

    def __init__(self, message: str, refused: RequestRefused | None = None) -> None:
        super().__init__(message)
        self.refused = refused


@dataclass(frozen=True)
class SamplingConfig:
    """How completions are drawn."""

    max_tokens: int
    """In one turn."""
    max_trajectory_tokens: int
    """In an episode: prompt, results and completions."""
    temperature: float = 1.0
    seed: int = 0


class SeededCompleter(TokenCompleter):
    """Samples the turns of one episode.

    Args:
        sampler: The weights.
        config: Limits and temperature.
        name: The episode's name; with the run's seed it decides what is drawn.
    """

    def __init__(self, sampler: Sampler, config: SamplingConfig, name: str) -> None:
        self._sampler, self._config, self._name = sampler, config, name
        self._turn = 0
        context = context_of(sampler, None)
        self._limit = min(config.max_trajectory_tokens, context) if context else config.max_trajectory_tokens

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """The next turn. An episode without room for another token gets an empty one, cut off by length."""
        config = self._config
        room = min(config.max_tokens, self._limit - model_input.length)
        if max_tokens is not None:
            room = min(room, max_tokens)
        self._turn += 1
        if room < 1:
            return TokensWithLogprobs([], [], "length")
        response = await self._sampler.sample(
            model_input,
            1,
            tinker.SamplingParams(
                max_tokens=room,
                temperature=config.temperature,
                stop=stop,
                seed=turn_seed(config.seed, self._name, self._turn),
            ),
        )
        sequence = response.sequences[0]
        return TokensWithLogprobs(list(sequence.tokens), list(sequence.logprobs or []), sequence.stop_reason)


def turn_seed(seed: int, name: str, turn: int) -> int:
    """A seed of 31 bits that follows from its arguments alone."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}/{turn}".encode()).digest()[:4], "big") >> 1


@dataclass(frozen=True)
class GroupPlan:
    """One group of a step."""

    name: Callable[[int], str]
    """The name of a member."""
    retries: int = 3
    min_survivors: int = 1
    gate: asyncio.Semaphore | None = None
    """Bounds the episodes under way."""
    on_done: Callable[[Trajectory], None] | None = None
    """Told of each episode as it ends."""


@dataclass
class SeededRetries(RolloutStrategy):
    """Each member has its own completer; a machine's fault has it played anew; kept episodes are taken as they are."""

    sampler: Sampler
    config: SamplingConfig
    plan: GroupPlan
    store: EpisodeStore | None = None
    errors: list[RolloutError] = field(default_factory=list)
    refusals: list[RequestRefused] = field(default_factory=list)
    """What the service refused; each cost an episode."""

    async def execute(self, env_group_builder: EnvGroupBuilder, policy: TokenCompleter) -> RolloutResult:
        """Play the group. Raises `GroupDropped` when too few survive."""
        envs = list(await env_group_builder.make_envs())

        async def member(number: int) -> Trajectory | None:
            name = self.plan.name(number)
            found = self.store.get(name) if self.store is not None else None
            if found is None:
                found = await self._play(env_group_builder, number, name, envs)
            if found is not None and self.plan.on_done is not None:
                self.plan.on_done(found)
            return found

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(member(number)) for number in range(len(envs))]
        played = [(task.result(), env) for task, env in zip(tasks, envs, strict=True)]
        survivors = [(trajectory, env) for trajectory, env in played if trajectory is not None]
        if len(survivors) < self.plan.min_survivors:
            all_refused = len(self.refusals) == len(envs) - len(survivors)
            raise GroupDropped(
                f"{len(survivors)} of {len(envs)} episodes survived; the last fault: {self.errors[-1].error_message}",
                self.refusals[-1] if all_refused else None,
            )
        return RolloutResult([trajectory for trajectory, _ in survivors], [env for _, env in survivors], self.errors)

    async def _play(self, builder: EnvGroupBuilder, number: int, name: str, envs: list[Env]) -> Trajectory | None:
        for attempt in range(self.plan.retries + 1):
            try:
                async with self.plan.gate or asyncio.Semaphore():
                    env = envs[number]
                    trajectory = await _rollout(SeededCompleter(self.sampler, self.config, name), env)
            except ServiceDown:
                raise
            except SandboxError as error:
                self.errors.append(RolloutError(type(error).__name__, str(error)))
                logger.warning("episode %s, attempt %d: %s", name, attempt + 1, error)
                if isinstance(error, RequestRefused):
                    self.refusals.append(error)
                    return None
                if attempt < self.plan.retries:
                    envs[number] = (await builder.make_envs())[number]
                continue
            if self.store is not None:
                self.store.put(name, trajectory)
            return trajectory
        return None


async def _rollout(policy: TokenCompleter, env: Env) -> Trajectory:
    """A rollout. A cancellation that nobody asked this task for is a connection that broke below, not the run's end."""
    try:
        return await do_single_rollout(policy, env)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        logger.warning("a rollout was cancelled from below", exc_info=True)
        raise SandboxLost("the rollout's work was cancelled from below") from error


@dataclass
class Batch:
    """The episodes of a step."""

    groups: list[TrajectoryGroup] = field(default_factory=list)
    builders: list[EnvGroupBuilder] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """The problem of each group."""
    dropped: int = 0
    """Groups with too few survivors."""
    faults: int = 0
    """Episodes that the machine or the service broke."""
    refused: RequestRefused | None = None
    """What the service said, if it refused all the episodes of each group that was dropped."""


async def collect(
    builders: Sequence[EnvGroupBuilder],
    problems: Sequence[str],
    strategies: Sequence[SeededRetries],
) -> Batch:
    """Play the groups of a step, all at once. A group that is lost is counted, and the others go on."""

    async def one(builder: EnvGroupBuilder, strategy: SeededRetries) -> TrajectoryGroup | SandboxError:
        try:
            return await do_group_rollout(builder, TokenCompleter(), strategy)
        except ServiceDown:
            raise
        except SandboxError as error:
            logger.warning("a group was dropped: %s", error)
            return error

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(*pair)) for pair in zip(builders, strategies, strict=True)]
    batch = Batch(faults=sum(len(strategy.errors) for strategy in strategies))
    lost: list[SandboxError] = []
    for task, builder, problem in zip(tasks, builders, problems, strict=True):
        found = task.result()
        if isinstance(found, SandboxError):
            batch.dropped += 1
            lost.append(found)
            continue
        batch.groups.append(found)
        batch.builders.append(builder)
        batch.problems.append(problem)
    refusals = [error.refused if isinstance(error, GroupDropped) else None for error in lost]
    batch.refused = refusals[-1] if refusals and all(refusals) else None
    return batch
