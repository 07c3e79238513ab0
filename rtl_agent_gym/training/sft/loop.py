"""Supervised training: the loop that imitates recorded episodes.

The data of each step depend only on the options and the step's number, so a resumed run continues with the same data.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tinker
import torch

from ...engines.protocol import Sampler
from ..checkpointer import Checkpointer
from ..evaluator import Evaluator
from ..options import SftOptions
from ..progress import Progress
from .data import EncodedEpisode, SupervisedData

logger = logging.getLogger(__name__)


@dataclass
class SupervisedLoop:
    """A supervised run, from its first step or from its last checkpoint."""

    options: SftOptions
    data: SupervisedData
    checkpointer: Checkpointer
    """Must be open."""
    evaluate: Evaluator
    """Evaluates the weights before the first step and after later ones."""
    progress: Progress
    on_metrics: Callable[[dict[str, Any], int], None] | None = None

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
        metrics = (
            before
            | stepped.metrics
            | {
                "sft/episodes": float(len(episodes)),
                "sft/tokens": float(sum(sum(episode.mask) for episode in episodes)),
                "sft/epoch": min((step + 1) * o.batch_size / len(self.data.train), o.epochs),
                "progress/done_frac": (step + 1) / o.num_steps,
                "service/steps_repeated": float(self.checkpointer.repeated),
                "time/train": trained - begun,
                "time/total": trained - begun,
            }
        )
        if o.evaluates_after(step):
            metrics |= await self._evaluate(stepped.sampler, step + 1)
        await self.checkpointer.commit(step, metrics, stepped, {"pending": []})
        if self.on_metrics is not None:
            self.on_metrics(metrics, step)
        self.progress.step_done(step, metrics)
        logger.info("step %d: %s", step, {name: round(value, 5) for name, value in metrics.items()})

    async def _evaluate(self, sampler: Sampler, version: int, when: str = "") -> dict[str, float]:
        """Evaluate in real shells, and on the validation episodes."""
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
    """An episode for the loss ``cross_entropy``, with the mask of the trained tokens for `step.optimize`."""
    mask = tinker.TensorData.from_torch(torch.tensor(episode.mask[1:], dtype=torch.float32))
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(episode.tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData.from_torch(torch.tensor(episode.tokens[1:], dtype=torch.int64)),
            "weights": mask,
            "mask": mask,
        },
    )
