"""The loop: sample, grade, judge, step, save. One class, one step after another.

::

    choose problems ─► play episodes ─► rewards ─┐
                                                 ├─► advantages ─► optimizer step ─► checkpoint, metrics ─► again
                       teacher's logprobs ─► KL ─┘

With `TrainOptions.pipeline` the next step's episodes are played, by the weights as they are, while this step's are
trained on; they are then one step off the policy, which the importance weights account for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tinker_cookbook.rl.types import EnvGroupBuilder

from ..engines.protocol import Sampler, Trainer
from ..errors import RequestRefused, SandboxError
from ..problems import Problem
from .advantages import RunningMeans
from .annotations import Spell, annotate
from .batch_metrics import batch_metrics, passes
from .curriculum import Curriculum
from .episodes import EpisodeStore, step_key
from .folder import RunFolder
from .optimize import StepConfig, Stepped, prepare, step_and_save
from .options import TrainOptions
from .progress import Progress
from .recovery import MakeTrainer, TrainerInUse
from .rollouts import Batch, GroupPlan, SamplingConfig, SeededRetries, collect
from .services import Engine
from .teachers import Teacher

logger = logging.getLogger(__name__)

PAUSES = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
"""Seconds to wait before a step is sampled anew after the machine broke every one of its groups."""

MakeGroup = Callable[[Problem, int], EnvGroupBuilder]
"""Makes the environments of a problem, so many of them."""


@dataclass
class Parts:
    """What a loop works with."""

    engine: Engine
    trainer: Trainer
    teacher: Teacher | None
    problems: Sequence[Problem]
    make_group: MakeGroup
    folder: RunFolder
    progress: Progress
    on_metrics: Callable[[int, dict[str, Any]], None] | None = None
    """Told of each step's metrics, for other loggers."""
    spell: Spell | None = None
    """The bytes of the student's tokens, for transcripts."""
    make_trainer: MakeTrainer | None = None
    """Makes the trainer anew after the service failed; without it such a failure ends the run."""


@dataclass
class _Flight:
    """A step's episodes under way."""

    step: int
    version: int
    """Steps that the sampling weights had seen."""
    problems: list[Problem]
    task: asyncio.Task[Batch]
    started: float


@dataclass
class Loop:
    """One run, from its first step or from where a checkpoint left it."""

    options: TrainOptions
    parts: Parts
    running: RunningMeans = field(default_factory=RunningMeans)
    start: int = 0
    """Steps that are done."""

    def __post_init__(self) -> None:
        o = self.options
        self.curriculum = Curriculum(self.parts.problems, o.curriculum, o.batch_size, o.num_steps, o.seed)
        self._store = EpisodeStore(self.parts.folder.episodes)
        self._gate = asyncio.Semaphore(o.max_concurrent)
        self._sampling = SamplingConfig(o.max_tokens, o.max_trajectory_tokens, o.temperature, o.seed)
        self._training = TrainerInUse(self.parts.trainer, self.parts.make_trainer, self.parts.progress)
        self._unsaved: list[dict[str, Any]] = []
        self._rolling: list[list[str]] = []
        self._chosen: list[str] | None = None
        self._behind: str | None = None
        self._totals = {"groups_dropped": 0, "episode_faults": 0}

    def restore(self, record: dict[str, Any]) -> None:
        """Go on behind a checkpoint."""
        self.start = int(record["batch"])
        self._training.checkpointed(self.start, record["state_path"])
        state = record.get("loop", {})
        self.running.load(state.get("running", {}))
        self.curriculum.load(state.get("pass_rates", {}))
        self._totals |= state.get("totals", {})
        self._chosen, self._behind = state.get("next"), state.get("behind")
        self._rolling = [list(paths) for paths in state.get("rolling", [])]

    async def run(self) -> None:
        """All steps that are left. Cancelled, it leaves the folder as the last checkpoint has it."""
        o, total = self.options, self.options.num_steps
        if self.start >= total:
            return
        sampler = await self._training.do(self.start, lambda trainer: trainer.save_weights_and_get_sampling_client())
        before = await self._evaluate(sampler, self.start, "test_before") if self.start == 0 else {}
        flight = self._take_off(self.start, await self._first_sampler(sampler), self._first_version())
        try:
            for step in range(self.start, total):
                begun = time.monotonic()
                batch = await self._land(flight)
                lag = step - flight.version
                waited = time.monotonic() - begun
                following: _Flight | None = None
                saved_sampler: str | None = None
                if o.pipeline and step + 1 < total:
                    saved_sampler = await self._save_for_resume(step) if self._saves(step) else None
                    following = self._take_off(step + 1, sampler, step)
                metrics = before | self._batch_metrics(batch, flight, lag)
                before = {}
                stepped = await self._train(batch, step)
                sampler = stepped.sampler
                metrics |= stepped.metrics
                metrics |= {"time/wait": waited, "time/total": time.monotonic() - begun}
                if self._evaluates(step):
                    metrics |= await self._evaluate(sampler, step + 1, "test")
                upcoming = [problem.id for problem in following.problems] if following else None
                await self._commit(step, metrics, stepped, upcoming, saved_sampler)
                if step + 1 < total:
                    flight = following or self._take_off(step + 1, sampler, step + 1)
        finally:
            flight.task.cancel()
            await asyncio.gather(flight.task, return_exceptions=True)

    async def _first_sampler(self, sampler: Sampler) -> Sampler:
        """In a resumed pipelined run, the weights that were sampling when the checkpoint was written."""
        return await self.parts.engine.sampler(self._behind) if self._behind is not None else sampler

    def _first_version(self) -> int:
        return self.start - 1 if self._behind is not None else self.start

    # Playing

    def _take_off(self, step: int, sampler: Sampler, version: int) -> _Flight:
        by_id = {problem.id: problem for problem in self.parts.problems}
        chosen, self._chosen = self._chosen, None
        problems = [by_id[name] for name in chosen] if chosen else self.curriculum.choose(step)
        self.parts.progress.begin(step, "playing", len(problems) * self.options.group_size)
        task = asyncio.create_task(self._play(step, problems, sampler))
        return _Flight(step, version, problems, task, time.monotonic())

    async def _land(self, flight: _Flight) -> Batch:
        return await flight.task

    async def _play(self, step: int, problems: Sequence[Problem], sampler: Sampler) -> Batch:
        """A step's episodes. A machine that breaks them all is given time to come back."""
        faults = dropped = 0
        for pause in (*PAUSES, None):
            batch = await self._collect(
                problems, sampler, self.options.group_size, lambda group, member: step_key(step, group, member)
            )
            batch.faults, batch.dropped = batch.faults + faults, batch.dropped + dropped
            if batch.groups:
                return batch
            faults, dropped = batch.faults, batch.dropped
            if batch.refused is not None:
                raise RequestRefused(f"the service refused every episode of step {step + 1}: {batch.refused}")
            if pause is not None:
                text = f"step {step + 1}: every episode was lost to faults (see logs.log); again in {pause:g} s"
                logger.warning("%s", text)
                self.parts.progress.say(text)
                await asyncio.sleep(pause)
        raise SandboxError(
            f"every group of step {step} was lost to faults of the machine or the service, {len(PAUSES) + 1} times "
            f"over {sum(PAUSES):g} s; see logs.log, mend the machine (rtl-agent-gym doctor), "
            "and start the same command again to go on from here"
        )

    async def _collect(
        self, problems: Sequence[Problem], sampler: Sampler, size: int, name: Callable[[int, int], str]
    ) -> Batch:
        o = self.options
        builders = [self.parts.make_group(problem, size) for problem in problems]
        strategies = [
            SeededRetries(
                sampler,
                self._sampling,
                GroupPlan(
                    name=lambda member, group=group: name(group, member),  # type: ignore[misc]
                    retries=o.rollout_retries,
                    min_survivors=min(o.min_survivors, size),
                    gate=self._gate,
                    on_done=lambda _: self.parts.progress.episode_done(),
                ),
                self._store,
            )
            for group in range(len(builders))
        ]
        return await collect(builders, [problem.id for problem in problems], strategies)

    # Training

    async def _train(self, batch: Batch, step: int) -> Stepped:
        o, parts = self.options, self.parts
        parts.progress.begin(step, "training")
        begun = time.monotonic()
        self._reward(batch)
        made = await prepare(batch.groups, batch.problems, parts.teacher, o.credit(), self.running)
        judged = time.monotonic()
        config = StepConfig(o.loss_fn, o.num_substeps, o.loss_reduction, o.adam_beta2, o.grad_clip_norm)
        rate = o.learning_rate_at(step)
        state = self._checkpoint_name(step) if self._saves(step) else None
        weights = state if self._keeps(step) else None
        async with asyncio.TaskGroup() as group:  # the transcripts are written while the engine computes
            if o.annotate_transcripts:
                group.create_task(asyncio.to_thread(annotate, made.episodes, parts.spell))
            training = group.create_task(
                self._training.do(
                    step,
                    lambda trainer: step_and_save(trainer, made.data, rate, config, state=state, weights=weights),
                )
            )
        stepped = training.result()
        took = {"time/teacher": judged - begun, "time/train": time.monotonic() - judged}
        repeated = {"service/steps_repeated": float(self._training.repeated)}
        return replace(stepped, metrics=made.metrics | stepped.metrics | took | repeated)

    def _reward(self, batch: Batch) -> None:
        """Every reward made the same, where the options ask for the control."""
        constant = self.options.constant_reward
        if constant is None:
            return
        for group in batch.groups:
            earned = group.get_total_rewards()
            group.final_rewards_G = [
                final + constant - total for final, total in zip(group.final_rewards_G, earned, strict=True)
            ]

    def _batch_metrics(self, batch: Batch, flight: _Flight, lag: int) -> dict[str, Any]:
        for problem, passed in zip(batch.problems, map(passes, batch.groups), strict=True):
            self.curriculum.learn(problem, passed)
        self._totals["groups_dropped"] += batch.dropped
        self._totals["episode_faults"] += batch.faults
        progress = {"progress/lag": lag, "progress/done_frac": (flight.step + 1) / self.options.num_steps}
        return batch_metrics(batch, time.monotonic() - flight.started) | progress

    # Evaluating

    def _evaluates(self, step: int) -> bool:
        o = self.options
        if not o.eval_episodes:
            return False
        return step + 1 == o.num_steps or (o.eval_every > 0 and (step + 1) % o.eval_every == 0)

    async def _evaluate(self, sampler: Sampler, version: int, prefix: str) -> dict[str, float]:
        """Fresh episodes of every problem, never trained on."""
        o = self.options
        if not o.eval_episodes:
            return {}
        size = max(1, round(o.eval_episodes / len(self.parts.problems)))
        self.parts.progress.begin(max(0, version - 1), "evaluating", size * len(self.parts.problems))
        begun = time.monotonic()
        batch = await self._collect(
            self.parts.problems, sampler, size, lambda group, member: f"{step_key(version, group, member)}-{prefix}"
        )
        passed = [one for group in batch.groups for one in passes(group)]
        rewards = [reward for group in batch.groups for reward in group.get_total_rewards()]
        found = {
            f"{prefix}/pass_rate": sum(passed) / max(1, len(passed)),
            f"{prefix}/reward": sum(rewards) / max(1, len(rewards)),
            f"{prefix}/episodes": float(len(passed)),
            f"time/{prefix}": time.monotonic() - begun,
        }
        self.parts.progress.say(
            f"{len(passed)} fresh episodes after {version} steps: "
            f"{found[f'{prefix}/pass_rate']:.0%} pass, reward {found[f'{prefix}/reward']:.3f}"
        )
        return found

    # Saving

    def _keeps(self, step: int) -> bool:
        """Whether the checkpoint behind a step stays."""
        o, done = self.options, step + 1
        return done == o.num_steps or (o.save_every > 0 and done % o.save_every == 0)

    def _saves(self, step: int) -> bool:
        return self._keeps(step) or (step + 1) % self.options.resume_every == 0

    async def _save_for_resume(self, step: int) -> str:
        """The weights that the next step's episodes are sampled from, for a run that is resumed in their midst."""
        name = f"behind-{step:06d}"
        saved = await self._training.do(step, lambda trainer: trainer.save_weights_for_sampler(name))
        return str(saved.path)

    def _checkpoint_name(self, step: int) -> str:
        return "final" if step + 1 == self.options.num_steps else f"{step + 1:06d}"

    async def _commit(
        self, step: int, metrics: dict[str, Any], stepped: Stepped, upcoming: list[str] | None, behind: str | None
    ) -> None:
        """Make a step count, whose weights are saved: the checkpoint's line, then the metrics."""
        o, done = self.options, step + 1
        self._unsaved.append({"step": step, **metrics})
        final = done == o.num_steps
        keep = self._keeps(step)
        if stepped.state_path is not None:
            name, state, sampler = self._checkpoint_name(step), stepped.state_path, stepped.sampler_path
            disposable = [path for path in (None if keep else state, behind) if path is not None]
            old = self._rolling[:-1]
            self._rolling = [*self._rolling[-1:], disposable]
            loop_state = {
                "running": self.running.state(),
                "pass_rates": self.curriculum.pass_rates,
                "totals": self._totals,
                "next": upcoming,
                "behind": behind,
                "rolling": self._rolling,
            }
            record = {"name": name, "batch": done, "final": final, "state_path": state, "sampler_path": sampler}
            self.parts.folder.add_checkpoint(
                {**record, "rolling": not keep, "metrics": self._unsaved, "loop": loop_state}
            )
            for row in self._unsaved:
                self.parts.folder.add_metrics(row["step"], {k: v for k, v in row.items() if k != "step"})
            self._unsaved = []
            self._store.drop_before(done)
            for path in (path for paths in old for path in paths):
                await self.parts.engine.delete(path)
        self._training.checkpointed(done, stepped.state_path)
        if self.parts.on_metrics is not None:
            self.parts.on_metrics(step, metrics)
        self.parts.progress.step_done(step, metrics)
        logger.info("step %d: %s", step, {name: round(value, 5) for name, value in metrics.items()})
