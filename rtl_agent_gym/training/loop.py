"""The training loop.

::

    choose problems ─► play episodes ─► rewards ─┐
                                                 ├─► advantages ─► optimizer step ─► checkpoint, metrics ─► again
                       teacher's logprobs ─► KL ─┘

With `TrainOptions.max_lag`, the episodes of later steps are played at the same time, each with the newest weights when
it begins. ``progress/lag`` is the number of steps that those weights are behind; the importance weights correct for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..engines.protocol import Sampler
from ..envs.tinker_data import CVDPDataset
from .advantages import RunningMeans
from .annotations import TokenBytes, annotate
from .checkpointer import Checkpointer
from .datums import Example, example_metrics, make_examples
from .evaluator import Evaluator
from .options import TrainOptions
from .progress import Progress
from .rollouts import RolloutProducer
from .run_folder import RunFolder
from .step import Stepped, step_and_save
from .teachers import Teacher

logger = logging.getLogger(__name__)

OnMetrics = Callable[[int, dict[str, Any]], None]
"""Called with each step and its metrics, for other loggers."""


class TrainingLoop:
    """A run, from its first step or from its last checkpoint.

    Args:
        options: The run's options.
        dataset: The problems to train on.
        checkpointer: The checkpointer, open.
        teacher: The teacher; None for none.
        evaluate: Evaluates the weights before the first step and after later ones.
        folder: Where graded episodes are kept.
        progress: Where to show progress.
        token_bytes: Gives the text of the student's tokens for transcripts.
        on_metrics: See `OnMetrics`.
    """

    def __init__(
        self,
        options: TrainOptions,
        dataset: CVDPDataset,
        checkpointer: Checkpointer,
        teacher: Teacher | None,
        evaluate: Evaluator,
        folder: RunFolder,
        progress: Progress,
        *,
        token_bytes: TokenBytes | None = None,
        on_metrics: OnMetrics | None = None,
    ) -> None:
        self.options, self.dataset, self.teacher, self.evaluate = options, dataset, teacher, evaluate
        self._checkpointer, self._progress = checkpointer, progress
        self._token_bytes, self._on_metrics = token_bytes, on_metrics
        self._producer = RolloutProducer(options, dataset, folder.episodes, progress)
        self._running = RunningMeans()
        self._running.load(checkpointer.state.get("running", {}))
        dataset.pass_rates = dict(checkpointer.state.get("pass_rates", {}))

    async def run(self) -> None:
        """Do the remaining steps. If it is cancelled, the folder is in the state of the last checkpoint."""
        first, total = self._checkpointer.steps, self.options.num_steps
        if first >= total:
            return
        sampler = await self._checkpointer.sampler(None)
        before = await self.evaluate(sampler, 0, "_before") if first == 0 else {}
        try:
            await self._resume_rollouts(first)
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
        for group in batch.groups:
            self.dataset.learn(group.problem, group.passed)
        collected = time.monotonic()

        self._progress.begin(step, "training")
        examples = await make_examples(batch.groups, self.teacher, self.options, self._running)
        judged = time.monotonic()
        stepped = await self._optimize(step, examples)
        trained = time.monotonic()

        metrics = before | batch.metrics() | example_metrics(examples, judged=self.teacher is not None)
        metrics |= stepped.metrics | {
            "progress/done_frac": (step + 1) / self.options.num_steps,
            "service/steps_repeated": float(self._checkpointer.repeated),
            "time/wait": collected - begun,
            "time/teacher": judged - collected,
            "time/train": trained - judged,
            "time/total": trained - begun,
        }
        if self.evaluate.is_due(step):
            metrics |= await self.evaluate(stepped.sampler, step + 1)
        await self._commit(step, metrics, stepped)
        self._report(step, metrics)
        return stepped.sampler

    async def _start_rollouts(self, step: int, sampler: Sampler) -> None:
        """Begin the episodes of this step, and of later ones within the lag, with the newest weights."""
        due = self._producer.due(step)
        weights = await self._checkpointer.save_sampler(step) if due else None
        for one in due:
            self._producer.start(one, sampler, step, weights)

    async def _resume_rollouts(self, first: int) -> None:
        """Begin the episodes that were pending at the last checkpoint, with the same weights as before."""
        by_id = {problem.id: problem for problem in self.dataset.problems}
        for step, pending in enumerate(self._checkpointer.state.get("pending", []), first):
            sampler = await self._checkpointer.sampler(pending["weights"])
            problems = [by_id[name] for name in pending["problems"]]
            self._producer.start(step, sampler, pending["version"], pending["weights"], problems)

    async def _optimize(self, step: int, examples: Sequence[Example]) -> Stepped:
        data, rate = [example.datum for example in examples], self.options.learning_rate_at(step)
        names = self._checkpointer.names(step)
        async with asyncio.TaskGroup() as tasks:  # the transcripts are written while the engine computes
            if self.options.annotate_transcripts:
                tasks.create_task(asyncio.to_thread(annotate, examples, self._token_bytes))
            training = tasks.create_task(
                self._checkpointer.apply(
                    step, lambda trainer: step_and_save(trainer, data, rate, self.options, **names)
                )
            )
        return training.result()

    async def _commit(self, step: int, metrics: dict[str, Any], stepped: Stepped) -> None:
        pending = self._producer.pending()
        state = {"running": self._running.state(), "pass_rates": self.dataset.pass_rates, "pending": pending}
        needed = sorted({one["weights"] for one in pending})
        if await self._checkpointer.commit(step, metrics, stepped, state, needed):
            self._producer.store.drop_before(step + 1)

    def _report(self, step: int, metrics: dict[str, Any]) -> None:
        if self._on_metrics is not None:
            self._on_metrics(step, metrics)
        self._progress.step_done(step, metrics)
        logger.info("step %d: %s", step, {name: round(value, 5) for name, value in metrics.items()})
