"""Plays the episodes of each step: ahead of time within the allowed lag, with retries, and saves graded episodes.

Episodes are played by `evaluation.play`, as in an evaluation. After a fault of the machine or the service, the
following are retried, in this order:

- the request, by `engines.requests`;
- the episode, ``rollout_retries`` times; a refused request is not retried, and costs the episode;
- the step, if none of its groups survived, as `retries.STEP_EPISODES` says.

`ServiceDown` ends the run at once. The seed of a turn depends only on the run's seed, the episode's name and the turn's
number, so an episode that is played again samples the same tokens from the same weights.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import tinker
from tenacity import RetryCallState
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.metric_util import compute_trajectory_metrics
from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup, Transition

from ..engines.protocol import Sampler
from ..envs.problem_order import Batches
from ..envs.tinker_config import TinkerEnvConfig
from ..episodes.episode import Episode
from ..episodes.runtime import Runtime
from ..episodes.turns import STOP
from ..errors import RequestRefused, SandboxError, SandboxLost, ServiceDown, UsageError
from ..evaluation.outcome import EpisodeResult
from ..evaluation.play import play, rules_for
from ..files import replace_file
from ..logs import logging_as
from ..policies import ModelOptions
from ..policies.harness import AgentPlayer, HarnessPlayer, HarnessPolicy, InsidePlayer
from ..policies.sampler import TokenSamplerPolicy
from ..policies.streams import TokenStreams
from ..problems import Problem, category_name
from ..renderers import Renderer
from ..renderers.transcript import TokenTranscript
from ..retries import STEP_EPISODES
from ..sandboxes.admission import queueing_as
from .options import TrainOptions
from .progress import Progress

logger = logging.getLogger(__name__)

T = TypeVar("T")

PREFIX = "step-"


@dataclass(frozen=True)
class Rollout:
    """A graded episode."""

    result: EpisodeResult
    streams: tuple[TokenTranscript, ...]
    """What is trained on: the tokens of the episode, or of each conversation of a third-party agent."""
    reward: float
    """Reward of the whole episode, including submissions."""
    numbers: dict[str, float] = field(default_factory=dict)
    """The episode's metrics; see `Episode.trained_numbers`."""
    files: dict[str, str] = field(default_factory=dict)
    """See `Episode.files`."""
    turn_rewards: tuple[float, ...] = ()
    """See `Episode.turn_rewards`; empty if the reward is not divided among the turns."""

    @classmethod
    def of(cls, episode: Episode, result: EpisodeResult, agents: TokenStreams | None = None) -> Rollout:
        """The rollout of a finished episode, played by the student itself or through an agent with these streams."""
        assert result.score is not None
        streams = (episode.tokens,) if agents is None else tuple(agents.transcripts())
        numbers = episode.trained_numbers(result.score) | ({} if agents is None else agents.numbers())
        reward = result.score.reward + sum(turn.progress_reward for turn in episode.turns)
        return cls(result, streams, reward, numbers, episode.files, tuple(episode.turn_rewards))

    @property
    def through_agent(self) -> bool:
        """Whether a third-party agent played it, so that the model's answers are not the episode's turns."""
        return "tokens/streams" in self.numbers

    def to_json(self) -> dict[str, Any]:
        """The rollout as plain data, for `from_json`."""
        return {
            "reward": self.reward,
            "numbers": self.numbers,
            "files": self.files,
            "turn_rewards": self.turn_rewards,
            "result": self.result.model_dump(mode="json"),
            "streams": [stream.to_json() for stream in self.streams],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Rollout:
        streams = tuple(map(TokenTranscript.from_json, data["streams"]))
        result = EpisodeResult.model_validate(data["result"])
        turns = tuple(data.get("turn_rewards", ()))
        return cls(result, streams, data["reward"], data["numbers"], data["files"], turns)

    def trajectory(self) -> Trajectory:
        """The episode as tinker-cookbook's type, for the cookbook's metrics."""
        steps: list[Transition] = []
        for stream in self.streams:
            chunks: list[tinker.ModelInputChunk] = []
            for segment in stream.segments:
                if segment.sampled:
                    action = TokensWithLogprobs(list(segment.ids), list(segment.logprobs))
                    steps.append(Transition(tinker.ModelInput(chunks=list(chunks)), action, 0.0, episode_done=False))
                chunks.append(tinker.EncodedTextChunk(tokens=list(segment.ids)))
        if steps:
            steps[-1].reward, steps[-1].metrics, steps[-1].episode_done = self.reward, dict(self.numbers), True
        return Trajectory(steps, tinker.ModelInput.empty())


PlayEpisode = Callable[[Problem, TokenSamplerPolicy], Awaitable[Rollout]]
"""Plays and grades one episode of a problem with a policy."""


@dataclass(frozen=True)
class EpisodePlayer:
    """A `PlayEpisode` that uses sandboxes."""

    config: TinkerEnvConfig
    renderer: Renderer
    runtime: Runtime
    seed: int
    agent: str = "none"
    """See `TrainOptions.agent`."""

    async def __call__(self, problem: Problem, policy: TokenSamplerPolicy) -> Rollout:
        """Play an episode. Raises like `evaluation.play.play`."""
        rules, config = self.config.episode, self.config
        agent = None if self.agent == "none" else _OneEpisode(self.agent, policy)
        episode = Episode(
            problem,
            provider=self.runtime.agents,
            grader=self.runtime.scorer(config.reward, config.score_cache, options=rules.grading),
            renderer=self.renderer,
            config=rules if agent is None else rules_for(agent, rules),
            # With a shared seed, what one episode learns about a submission's stimuli would help the others. Its own
            # seed is that of turn 0, which is before the first turn.
            seed=policy.seed_of(0, None) if rules.harness_feedback else self.seed,
            turn_budget=self.runtime.turn_budget(rules.turn_grading_time, config.reward),
        )
        if agent is None:
            return Rollout.of(episode, await play(episode, policy))
        try:
            result = await play(episode, agent)
            return Rollout.of(episode, result, agent.streams())
        finally:
            await agent.close()


class _OneEpisode(HarnessPolicy):
    """A third-party agent for one episode, with that episode's policy (weights and seeds) as its model."""

    _player: AgentPlayer | None = None

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> HarnessPlayer | InsidePlayer:
        self._player = player = super().player(problem, renderer, seed)
        return player

    def streams(self) -> TokenStreams:
        assert self._player is not None
        return self._player.streams

    async def close(self) -> None:
        if self._player is not None:
            self._player.end()
        await super().close()


async def with_retries(play: Callable[[], Awaitable[T]], show: Callable[[str], None]) -> T:
    """Play episodes; if faults of the machine or the service cost all of them, retry as `STEP_EPISODES` says.

    Raises:
        SandboxError: The last attempt failed, too.
        RequestRefused: The service refused every episode, and would refuse them again.
        ServiceDown: The service can no longer be used.
    """

    def temporary(error: BaseException) -> bool:
        return isinstance(error, SandboxError) and not isinstance(error, (RequestRefused, ServiceDown))

    def report(state: RetryCallState) -> None:
        assert state.outcome is not None
        text = f"{state.outcome.exception()}; retrying in {state.upcoming_sleep:g} s"
        logger.warning("%s", text)
        show(text)

    return await STEP_EPISODES.retrying(temporary, before_sleep=report)(play)


def student_policy(
    sampler: Sampler, o: TrainOptions, *, temperature: float, turn_seed: Callable[[int], int] | None = None
) -> TokenSamplerPolicy:
    """The student as a policy, within the limits of a run."""
    limits = ModelOptions(temperature=temperature, max_tokens=o.max_tokens, max_context=o.max_trajectory_tokens)
    return TokenSamplerPolicy(sampler, name="student", in_run=True, options=limits, turn_seed=turn_seed)


def turn_seed(seed: int, name: str, turn: int) -> int:
    """A seed of 31 bits that depends only on the arguments."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}/{turn}".encode()).digest()[:4], "big") >> 1


def rollout_name(step: int, group: int, member: int) -> str:
    """The name of an episode of a step."""
    return f"{PREFIX}{step:06d}-{group:03d}-{member:03d}"


class RolloutStore:
    """Keeps the graded episodes of current steps in a folder, so that a resumed run does not play them again.

    One file per episode, written atomically, and kept until its step is in a checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, name: str, problem_id: str) -> Rollout | None:
        """The episode with this name, or None.

        Ignores episodes of another problem, since a resumed run may choose other problems, episodes that an earlier
        version wrote in another format, and damaged files. Such episodes are played again.
        """
        path = self._path(name)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            known = found.get("result", {}).get("problem_id") == problem_id and "streams" in found
            return Rollout.from_json(found) if known else None
        except FileNotFoundError:
            return None
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            logger.warning("%s is damaged, so its episode is played again: %r", path, error)
            return None

    def put(self, name: str, rollout: Rollout) -> None:
        """Save an episode, unless there already is one with this name and problem: the first one counts."""
        if self.get(name, rollout.result.problem_id) is None:
            replace_file(self._path(name), json.dumps(rollout.to_json()), durable=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def drop_before(self, step: int) -> None:
        """Delete the episodes of steps before `step`."""
        for path in self._folder.glob(f"{PREFIX}*"):
            number = path.name.removeprefix(PREFIX)[:6]
            if number.isdigit() and int(number) < step:
                path.unlink(missing_ok=True)


@dataclass(frozen=True)
class PlayedGroup:
    """The graded episodes of one problem."""

    problem: Problem
    rollouts: list[Rollout]

    @property
    def passed(self) -> list[float]:
        """For each episode, 1 if it passed the hidden tests and 0 if not."""
        return [float(rollout.result.passed) for rollout in self.rollouts]


@dataclass
class Batch:
    """The episodes of a step."""

    groups: list[PlayedGroup] = field(default_factory=list)
    faults: list[SandboxError] = field(default_factory=list)
    """Faults of the machine or the service, one for each failed attempt at an episode."""
    dropped: int = 0
    """Number of groups with too few survivors."""
    lag: int = 0
    """How many steps the sampling weights were behind."""
    seconds: float = 0.0
    tokens: int = 0
    """Tokens sampled in these seconds, without those of episodes that were played before the run was resumed."""

    def metrics(self, tested: bool) -> dict[str, Any]:
        """The metrics of the episodes; the cookbook computes those below ``env/``.

        ``stop/REASON`` is the share of the episodes that ended for this reason. There are pass rates only if the hidden
        tests were run (`tested`).
        """
        names = chain(*(rollout.numbers for group in self.groups for rollout in group.rollouts))
        reasons = {name: 0.0 for name in names if name.startswith(STOP)}  # the cookbook's means leave out missing ones
        trajectories = [
            TrajectoryGroup(
                [replace(rollout, numbers=reasons | rollout.numbers).trajectory() for rollout in group.rollouts],
                [0.0] * len(group.rollouts),  # the group itself earns nothing
                [{} for _ in group.rollouts],
            )
            for group in self.groups
        ]
        problems = [group.problem for group in self.groups]
        tags = [["cvdp", category_name(problem.category), problem.difficulty] for problem in problems]
        found: dict[str, Any] = compute_trajectory_metrics(trajectories, tags)
        found |= {
            "time/sample": self.seconds,
            "rollouts/groups_dropped": self.dropped,
            "rollouts/faults": len(self.faults),
            "progress/lag": self.lag,
        }
        if self.tokens:
            found["tokens_per_second"] = self.tokens / max(1e-9, self.seconds)
        agents = [rollout.numbers for group in self.groups for rollout in group.rollouts if rollout.through_agent]
        for name in sorted({name for numbers in agents for name in numbers if name.startswith("tokens/")}):
            found[name] = mean([numbers.get(name, 0.0) for numbers in agents])
        passed = defaultdict[str, list[float]](list)
        for group in self.groups if tested else ():  # several groups may be of one problem
            passed[group.problem.id] += group.passed
        if passed:
            found["pass_rate"] = mean([*chain(*passed.values())])
        if len(passed) > 1:
            found |= {f"pass_rate/{name}": mean(verdicts) for name, verdicts in passed.items()}
        return found


def mean(values: Sequence[float]) -> float:
    """The mean; 0 if there are no values."""
    return sum(values) / max(1, len(values))


class Pending(TypedDict):
    """A step whose episodes were started, as recorded in a checkpoint."""

    problems: list[str]
    version: int
    """Number of steps that the sampling weights were trained for."""
    weights: str | None
    """Path of the saved sampling weights; None if no checkpoint is written before the batch is collected."""


@dataclass
class RolloutProducer:
    """Plays the episodes of the current and later steps, each step with the newest weights when its episodes begin.

    It owns a task for each pending step; `stop` ends the tasks.
    """

    options: TrainOptions
    batches: Batches
    play: PlayEpisode
    folder: Path
    """Where graded episodes are kept until their step is in a checkpoint."""
    progress: Progress

    def __post_init__(self) -> None:
        self.store = RolloutStore(self.folder)
        self._slots = asyncio.Semaphore(self.options.max_concurrent)
        self._pending: dict[int, tuple[Pending, asyncio.Task[Batch]]] = {}

    def due(self, step: int) -> list[int]:
        """The steps from `step` on whose episodes may begin now, and have not begun yet."""
        ahead = range(step, min(step + self.options.lag + 1, self.options.num_steps))
        return [number for number in ahead if number not in self._pending]

    def start(self, step: int, sampler: Sampler, pending: Pending) -> None:
        by_id = {problem.id: problem for problem in self.batches.problems}
        if gone := [name for name in pending["problems"] if name not in by_id]:
            raise UsageError(f"cvdp_jsonl_path: no longer contains the problem {gone[0]!r}, which the run needs next")
        problems = [by_id[name] for name in pending["problems"]]
        self._pending[step] = pending, asyncio.create_task(self._play_step(step, problems, sampler))

    async def collect(self, step: int) -> Batch:
        """Wait for the episodes of a started step. Raises like `with_retries`."""
        pending, task = self._pending[step]
        self.progress.begin(step, "playing", len(pending["problems"]) * self.options.group_size)
        batch = await task
        del self._pending[step]
        batch.lag = step - pending["version"]
        return batch

    def pending(self) -> list[Pending]:
        """What a resumed run must start again, in the order of the steps, for a checkpoint."""
        return [pending for pending, _ in self._pending.values()]

    async def stop(self) -> None:
        """Cancel the running episodes. Idempotent."""
        tasks = [task for _, task in self._pending.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _play_step(self, step: int, problems: Sequence[Problem], sampler: Sampler) -> Batch:
        batch, begun = Batch(), time.monotonic()

        async def attempt() -> Batch:
            before = len(batch.faults)
            async with asyncio.TaskGroup() as tasks:
                groups = [
                    tasks.create_task(self._play_group(step, number, problem, sampler, batch))
                    for number, problem in enumerate(problems)
                ]
            batch.groups = [group for task in groups if (group := task.result()) is not None]
            batch.dropped = len(groups) - len(batch.groups)
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

        await with_retries(attempt, self.progress.print)
        batch.seconds = time.monotonic() - begun
        return batch

    async def _play_group(
        self, step: int, number: int, problem: Problem, sampler: Sampler, batch: Batch
    ) -> PlayedGroup | None:
        """Play a group; None if too few episodes survived. Adds faults and tokens to `batch`."""
        o = self.options
        with queueing_as(f"step {step} group {number}"):
            async with asyncio.TaskGroup() as tasks:
                members = [
                    tasks.create_task(self._play_member(rollout_name(step, number, member), problem, sampler, batch))
                    for member in range(o.group_size)
                ]
        survivors = [rollout for task in members if (rollout := task.result()) is not None]
        if len(survivors) >= o.min_survivors:
            return PlayedGroup(problem, survivors)
        logger.warning(
            "a group of %s was dropped: %d of %d episodes survived; the last fault: %s",
            problem.id, len(survivors), o.group_size, batch.faults[-1],
        )  # fmt: skip
        return None

    async def _play_member(self, name: str, problem: Problem, sampler: Sampler, batch: Batch) -> Rollout | None:
        """The episode of this name, saved or newly played; None if all attempts failed. Adds to `batch`, too."""
        if (kept := self.store.get(name, problem.id)) is not None:
            return kept
        o = self.options
        with logging_as(name):
            for attempt in range(o.rollout_retries + 1):
                seeds = partial(turn_seed, o.seed, name)
                policy = student_policy(sampler, o, temperature=o.temperature, turn_seed=seeds)
                try:
                    async with self._slots:
                        rollout = await _unless_cancelled(self.play(problem, policy))
                except ServiceDown:
                    raise
                except SandboxError as error:
                    batch.faults.append(error)
                    logger.warning("episode %s, attempt %d: %s", name, attempt + 1, error)
                    if isinstance(error, RequestRefused):
                        break
                    continue
                if not math.isfinite(rollout.reward):  # it would spoil the baselines of other episodes
                    raise UsageError(f"{problem.id}: its reward is {rollout.reward}; it must be a finite number")
                self.store.put(name, rollout)
                batch.tokens += sum(sum(stream.mask) for stream in rollout.streams)
                self.progress.episode_done()
                return rollout
        return None


async def _unless_cancelled(playing: Awaitable[Rollout]) -> Rollout:
    """Await an episode. If its work was cancelled but this task was not, a connection broke; this costs the attempt."""
    try:
        return await playing
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        logger.warning("a rollout's work was cancelled", exc_info=True)
        raise SandboxLost("the rollout's work was cancelled, although the run continues") from error
