"""Turns graded episodes into training datums, with the teacher's judgement and the advantages."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import tinker
import torch
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.types import Trajectory

from ..errors import RequestRefused, ServiceDown, ServiceError
from .advantages import RunningMeans, centred_rewards, token_advantages
from .options import TrainOptions
from .rollouts import PlayedGroup, mean
from .teachers import Judgement, Sampled, Teacher

logger = logging.getLogger(__name__)


@dataclass
class Example:
    """An episode as a training datum; `make_examples` sets its advantages.

    If an environment's observations do not extend the earlier ones, an episode becomes several examples.
    """

    sampled: Sampled
    """All tokens, for the teacher."""
    datum: tinker.Datum
    centred: float
    """The episode's reward minus its baseline."""
    episode: Trajectory | None
    """None if this is only a part of an episode."""
    judgement: Judgement | None = None
    """The teacher's judgement; None without a teacher."""
    failure: ServiceError | None = None
    """Why the teacher did not judge."""

    async def judge(self, teacher: Teacher) -> None:
        """Let the teacher judge. If that fails, the episode has no KL: a refusal would be repeated on each resume.

        Raises:
            ServiceDown: The service cannot be used any more.
        """
        try:
            self.judgement = await teacher.judge(self.sampled)
        except ServiceDown:
            raise
        except ServiceError as error:
            logger.warning("an episode of %s is not judged: %s", self.sampled.problem, error)
            nothing = [0.0] * len(self.sampled.tokens)
            self.judgement, self.failure = Judgement(nothing, nothing), error

    def set_advantages(self, options: TrainOptions) -> None:
        """Combine reward and KL into the datum's advantages."""
        kl_T = weights_T = None
        if self.judgement is not None:
            kl_T = self.judgement.kl[1:]  # the first token is not a target
            weights_T = self.judgement.weights[1:] if self.judgement.weights is not None else None
        advantages_T = token_advantages(self.centred, kl_T, self.sampled.mask[1:], options, weights_T)
        self.datum = with_inputs(self.datum, advantages=torch.tensor(advantages_T, dtype=torch.float32))


def _as_sampled(problem: str, datum: tinker.Datum) -> Sampled:
    """A datum's tokens: its inputs lack the last one, its targets the first one."""
    inputs = datum.loss_fn_inputs
    mask_T, logprobs_T = inputs["mask"].to_torch().tolist(), inputs["logprobs"].to_torch().tolist()
    tokens = [*datum.model_input.to_ints(), int(inputs["target_tokens"].data[-1])]
    return Sampled(problem, tokens, [0.0, *mask_T], [0.0, *logprobs_T])


def with_inputs(datum: tinker.Datum, **inputs: torch.Tensor) -> tinker.Datum:
    """A copy of a datum with some inputs of the loss replaced."""
    made = {name: tinker.TensorData.from_torch(values) for name, values in inputs.items()}
    return tinker.Datum(model_input=datum.model_input, loss_fn_inputs={**datum.loss_fn_inputs, **made})


async def make_examples(
    groups: Sequence[PlayedGroup], teacher: Teacher | None, options: TrainOptions, running: RunningMeans
) -> list[Example]:
    """The training examples of a step, with their advantages.

    Args:
        groups: The graded episodes.
        teacher: The teacher; None for none.
        options: How reward and KL become advantages.
        running: The running means; updated.

    Raises:
        ServiceError: The teacher judged no episode, and not because the service refused them all. Such a step is not
            trained on.
    """
    rewards_P = [group.trajectories.get_total_rewards() for group in groups]
    if options.constant_reward is not None:
        rewards_P = [[options.constant_reward] * len(rewards_G) for rewards_G in rewards_P]
    centred_P = centred_rewards(rewards_P, [group.problem for group in groups], options.baseline, running)
    examples: list[Example] = []
    for group, centred_G in zip(groups, centred_P, strict=True):
        for episode, centred in zip(group.trajectories.trajectories_G, centred_G, strict=True):
            data = trajectory_to_data(episode, 0.0)
            complete = episode if len(data) == 1 else None
            examples += [Example(_as_sampled(group.problem, datum), datum, centred, complete) for datum in data]
    if teacher is not None:
        await asyncio.gather(*(example.judge(teacher) for example in examples))
        failures = [example.failure for example in examples if example.failure is not None]
        transient = [failure for failure in failures if not isinstance(failure, RequestRefused)]
        if transient and len(failures) == len(examples):
            raise ServiceError(f"the teacher judged no episode of the step; {transient[-1]}") from transient[-1]
    for example in examples:
        example.set_advantages(options)
    return examples


def example_metrics(examples: Sequence[Example], *, judged: bool) -> dict[str, float]:
    """The size of the advantages and, if there is a teacher, the KL to it."""
    sampled = max(1.0, sum(sum(example.sampled.mask) for example in examples))
    sizes = [float(example.datum.loss_fn_inputs["advantages"].to_torch().abs().sum()) for example in examples]
    metrics = {
        "advantage/abs_reward": mean([abs(example.centred) for example in examples]),
        "advantage/abs_token": sum(sizes) / sampled,
    }
    if not judged:
        return metrics
    kl, covered = defaultdict[str, float](float), defaultdict[str, float](float)
    for example in examples:
        if example.judgement is not None:
            kl[example.sampled.problem] += sum(example.judgement.kl)
            covered[example.sampled.problem] += sum(example.judgement.covered)
    metrics["teacher_kl"] = sum(kl.values()) / max(1.0, sum(covered.values()))
    metrics["teacher_kl/covered"] = sum(covered.values()) / sampled
    if len(kl) > 1:
        metrics |= {f"teacher_kl/{problem}": kl[problem] / max(1.0, covered[problem]) for problem in kl}
    metrics["teacher_kl/unjudged"] = float(sum(example.failure is not None for example in examples))
    return metrics
