"""The training loops: on the student's own episodes, and on recorded ones (`SupervisedLoop`).

::

    choose problems ─► play episodes ─► rewards ─┐
                                                 ├─► advantages ─► optimizer step ─► checkpoint, metrics ─► again
                       teacher's logprobs ─► KL ─┘

With `TrainOptions.max_lag`, the episodes of later steps are played at the same time, each step's with the newest
weights when they begin. ``progress/lag`` is how many steps those weights are behind; importance weights correct for it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tinker
import torch

from ..engines.protocol import Sampler
from ..envs.problem_order import Batches
from ..renderers import Renderer
from ..sandboxes.admission import QueueMetrics
from .advantages import RunningMeans, weights_of_rewards
from .checkpointer import Checkpointer, Stepped
from .datums import Example, annotate, check_first_judgements, example_metrics, judge, make_examples, warnings_of
from .evaluator import Evaluator
from .options import SftOptions, TrainOptions
from .progress import Progress
from .rollouts import PlayEpisode, RolloutProducer
from .run_folder import RunFolder
from .sft.data import EncodedEpisode, SupervisedData
from .teachers import SelfTeacher, Teacher

logger = logging.getLogger(__name__)

OnMetrics = Callable[[dict[str, Any], int], None]
"""Called with the metrics of each step and its number, for other loggers."""


@dataclass
class TrainingLoop:
    """A run, from its first step or from its last checkpoint."""

    options: TrainOptions
    batches: Batches
    play: PlayEpisode
    checkpointer: Checkpointer
    """Must be open."""
    teachers: Mapping[str, Teacher]
    """The teachers by problem; empty if there are none."""
    evaluate: Evaluator
    folder: RunFolder
    progress: Progress
    renderer: Renderer | None = None
    """The student's renderer, which knows the text and the kind of each token."""
    on_metrics: OnMetrics | None = None

    def __post_init__(self) -> None:
        self._producer = RolloutProducer(self.options, self.batches, self.play, self.folder.episodes, self.progress)
        self._self_teacher = next(
            (teacher for teacher in self.teachers.values() if isinstance(teacher, SelfTeacher)), None
        )
        self._queues = QueueMetrics()
        self._running = RunningMeans(means=self.checkpointer.state.get("running", {}))
        self._tested = self.options.reward_config().simulate
        self._weights = weights_of_rewards(self.batches.problems, self.options)
        self.batches.problem_sampler.restore(self.checkpointer.state.get("problem_sampler", {}))

    async def run(self) -> None:
        """Do the remaining steps. If it is cancelled, the folder is in the state of the last checkpoint."""
        first, total = self.checkpointer.steps, self.options.num_steps
        if first >= total:
            return
        sampler = await self.checkpointer.sampler(None)
        before = await self.evaluate(sampler, 0, "_before") if first == 0 else {}
        try:
            for step, pending in enumerate(self.checkpointer.state.get("pending", []), first):
                self._producer.start(step, await self.checkpointer.sampler(pending["weights"]), pending)
            for saved in self.checkpointer.state.get("teacher", []):
                assert self._self_teacher is not None  # a run has the same teacher when it is resumed
                earlier = await self.checkpointer.sampler(saved["weights"])
                self._self_teacher.keep(saved["version"], earlier, saved["weights"])
            for step in range(first, total):
                sampler = await self._step(step, sampler, before)
                before = {}
        finally:
            await self._producer.stop()

    async def _step(self, step: int, sampler: Sampler, before: dict[str, float]) -> Sampler:
        """Sample and grade, judge, optimize, evaluate, save. Returns a sampler of the new weights."""
        begun = time.monotonic()
        await self._start_rollouts(step, sampler)
        batch = await self._producer.collect(step)
        if self._tested:
            for group in batch.groups:
                self.batches.learn(group.problem.id, group.passed)
        collected = time.monotonic()

        self.progress.begin(step, "training")
        examples = make_examples(batch.groups, self.options, self._running, self._weights)
        await judge(examples, self.teachers)
        if step == 0:
            check_first_judgements(examples, self.teachers, self.options)
        for example in examples:
            example.set_advantages(self.options, self.renderer)
        found = example_metrics(examples, judged=bool(self.teachers))
        for text in warnings_of(found):
            self.progress.print(f"warning: step {step + 1}: {text}")
            logger.warning("step %d: %s", step + 1, text)
        judged = time.monotonic()
        stepped = await self._optimize(step, examples)
        trained = time.monotonic()

        metrics = before | batch.metrics(self._tested) | found
        metrics |= stepped.metrics | {
            "progress/done_frac": (step + 1) / self.options.num_steps,
            "service/steps_repeated": float(self.checkpointer.repeated),
            "time/wait": collected - begun,
            "time/teacher": judged - collected,
            "time/train": trained - judged,
            "time/total": trained - begun,
        }
        if self.options.evaluates_after(step):
            metrics |= await self.evaluate(stepped.sampler, step + 1)
        metrics |= self._queues.since()
        state = {
            "running": self._running.means,
            "problem_sampler": self.batches.problem_sampler.state(),
            "pending": self._producer.pending(),
            "teacher": [] if self._self_teacher is None else self._self_teacher.saved(step + 1),
        }
        if await self.checkpointer.commit(step, metrics, stepped, state):
            self._producer.store.drop_before(step + 1)
        if self.on_metrics is not None:
            self.on_metrics(metrics, step)
        self.progress.step_done(step, metrics)
        logger.info("step %d: %s", step, {name: round(value, 5) for name, value in metrics.items()})
        return stepped.sampler

    async def _start_rollouts(self, step: int, sampler: Sampler) -> None:
        """Begin the episodes of this step, and of later steps within the lag, with the newest weights.

        The newest weights are also kept for the later steps in which a self-teacher uses them.
        """
        due, teacher = self._producer.due(step), self._self_teacher
        later = 0 if teacher is None else teacher.steps_needed(step, self.options.num_steps)
        weights = await self.checkpointer.save_sampler(step, max(later, self.options.lag if due else 0))
        if teacher is not None:
            teacher.keep(step, sampler, weights)
            teacher.begin(step)
        for later_step in due:
            problems = [problem.id for problem in self.batches.choose(later_step)]
            self._producer.start(later_step, sampler, {"problems": problems, "version": step, "weights": weights})

    async def _optimize(self, step: int, examples: Sequence[Example]) -> Stepped:
        async with asyncio.TaskGroup() as tasks:  # the transcripts are written while the engine computes
            if self.options.annotate_transcripts:
                tasks.create_task(asyncio.to_thread(annotate, examples, self.renderer))
            training = tasks.create_task(self.checkpointer.train(step, [example.datum for example in examples]))
        return training.result()


@dataclass
class SupervisedLoop:
    """A supervised run, from its first step or from its last checkpoint.

    The data of each step depend only on the options and the step's number, so a resumed run uses the same data.
    """

    options: SftOptions
    data: SupervisedData
    checkpointer: Checkpointer
    """Must be open."""
    evaluate: Evaluator
    progress: Progress
    on_metrics: OnMetrics | None = None

    async def run(self) -> None:
        """Do the remaining steps. If it is cancelled, the folder is in the state of the last checkpoint."""
        first, before = self.checkpointer.steps, dict[str, float]()
        if first == 0:
            self.progress.print(self.data.summary())
            logger.info("%s", self.data.summary())
            before = await self._evaluate(await self.checkpointer.sampler(None), 0, "_before")
        for step in range(first, self.options.num_steps):
            await self._step(step, before)
            before = {}

    async def _step(self, step: int, before: dict[str, float]) -> None:
        o, begun = self.options, time.monotonic()
        self.progress.begin(step, "training")
        episodes = self.data.batch(step, o.batch_size, o.epochs, o.seed)
        stepped = await self.checkpointer.train(step, [as_datum(episode) for episode in episodes])
        trained = time.monotonic()
        metrics = before | stepped.metrics
        metrics |= {
            "sft/episodes": float(len(episodes)),
            "sft/tokens": float(sum(sum(episode.mask) for episode in episodes)),
            "sft/epoch": min((step + 1) * o.batch_size / len(self.data.train), o.epochs),
            "progress/done_frac": (step + 1) / o.num_steps,
            "service/steps_repeated": float(self.checkpointer.repeated),
            "time/train": trained - begun,
            "time/total": trained - begun,
        }
        if o.evaluates_after(step):
            metrics |= await self._evaluate(stepped.sampler, step + 1)
        await self.checkpointer.commit(step, metrics, stepped, {"pending": []})
        if self.on_metrics is not None:
            self.on_metrics(metrics, step)
        self.progress.step_done(step, metrics)
        logger.info("step %d: %s", step, {name: round(value, 5) for name, value in metrics.items()})

    async def _evaluate(self, sampler: Sampler, version: int, when: str = "") -> dict[str, float]:
        """Evaluate in sandboxes, and on the validation episodes."""
        metrics = await self.evaluate(sampler, version, when)
        if self.data.validation:
            known, total = await self._validation_logprobs(sampler)
            text = "unknown"
            if known:
                metrics[f"sft/val_nll{when}"] = nll = -sum(known) / len(known)
                text = f"{nll:.4f} nats a token"
            if missing := total - len(known):
                text += f", without {missing} of {total} tokens, whose probability is unknown"
            self.progress.print(f"validation after {version} steps: {text}")
        return metrics

    async def _validation_logprobs(self, sampler: Sampler) -> tuple[list[float], int]:
        """The finite log-probabilities of the model's tokens in the validation episodes, and the number of tokens."""
        slots = asyncio.Semaphore(self.options.max_concurrent)

        async def of(episode: EncodedEpisode) -> list[float | None]:
            async with slots:
                logprobs = await sampler.compute_logprobs(tinker.ModelInput.from_ints(episode.tokens))
            return [logprob for logprob, kept in zip(logprobs, episode.mask, strict=True) if kept]

        found = [logprob for part in await asyncio.gather(*map(of, self.data.validation)) for logprob in part]
        return [logprob for logprob in found if logprob is not None and math.isfinite(logprob)], len(found)


def as_datum(episode: EncodedEpisode) -> tinker.Datum:
    """An episode for the loss ``cross_entropy``, with the mask of the trained tokens for `checkpointer.optimize`."""
    mask = tinker.TensorData.from_torch(torch.tensor(episode.mask[1:], dtype=torch.float32))
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(episode.tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData.from_torch(torch.tensor(episode.tokens[1:], dtype=torch.int64)),
            "weights": mask,
            "mask": mask,
        },
    )
