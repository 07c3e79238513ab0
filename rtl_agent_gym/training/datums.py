"""From graded episodes to training datums: the teacher's judgement, the advantages, and what both amount to."""

from __future__ import annotations

import asyncio
import logging
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
    """An episode as a training datum, whose advantages are set by `make_examples`.

    Where an environment does not extend its observations, an episode becomes several examples.
    """

    problem: str
    datum: tinker.Datum
    centred: float
    """The episode's reward less its baseline."""
    episode: Trajectory | None
    """None where this is only a part of one."""
    judgement: Judgement | None = None
    """The teacher's, of all tokens; None without a teacher."""
    failure: ServiceError | None = None
    """Why the teacher did not judge."""

    @property
    def tokens(self) -> list[int]:
        """All ids of the datum: its inputs and its last target."""
        return [*self.datum.model_input.to_ints(), int(self.datum.loss_fn_inputs["target_tokens"].data[-1])]

    @property
    def mask(self) -> list[float]:
        """For each of `tokens`, 1 if the student sampled it."""
        return [0.0, *self.inputs("mask").tolist()]

    @property
    def kl(self) -> float:
        """The sum of the tokens' KL to the teacher."""
        return sum(self.judgement.kl) if self.judgement else 0.0

    @property
    def covered(self) -> float:
        """The number of tokens for which the teacher told a KL."""
        return sum(self.judgement.covered) if self.judgement else 0.0

    def inputs(self, name: str) -> torch.Tensor:
        """A value for each target, which is the token behind each input."""
        return self.datum.loss_fn_inputs[name].to_torch()

    async def judge(self, teacher: Teacher) -> None:
        """Ask the teacher, once. Without its answer the episode has no KL: a refusal would come again at each resume.

        Raises:
            ServiceDown: The service cannot be used any more.
        """
        sampled = Sampled(self.problem, self.tokens, self.mask, [0.0, *self.inputs("logprobs").tolist()])
        try:
            self.judgement = await teacher.judge(sampled)
        except ServiceDown:
            raise
        except ServiceError as error:
            logger.warning("an episode of %s is not judged: %s", self.problem, error)
            self.judgement, self.failure = Judgement([0.0] * len(self.tokens), [0.0] * len(self.tokens)), error

    def set_advantages(self, options: TrainOptions) -> None:
        """Combine reward and KL into the datum's advantages."""
        judged = self.judgement
        kl_T = judged.kl[1:] if judged else None  # the first token is nobody's target
        weights_T = judged.weights[1:] if judged and judged.weights is not None else None
        advantages_T = token_advantages(self.centred, kl_T, self.mask[1:], options, weights_T)
        self.datum = with_inputs(self.datum, advantages=torch.tensor(advantages_T, dtype=torch.float32))


def with_inputs(datum: tinker.Datum, **inputs: torch.Tensor) -> tinker.Datum:
    """A datum with some of its values replaced."""
    made = {name: tinker.TensorData.from_torch(values) for name, values in inputs.items()}
    return tinker.Datum(model_input=datum.model_input, loss_fn_inputs={**datum.loss_fn_inputs, **made})


async def make_examples(
    groups: Sequence[PlayedGroup], teacher: Teacher | None, options: TrainOptions, running: RunningMeans
) -> list[Example]:
    """The training examples of a step, with their advantages.

    Args:
        groups: The graded episodes.
        teacher: Asked once an episode; None for none.
        options: How reward and KL become advantages.
        running: The running means, which are updated.

    Raises:
        ServiceError: The teacher judged no episode, and not because it refuses to: such a step is not taken.
    """
    rewards_P = [group.trajectories.get_total_rewards() for group in groups]
    if options.constant_reward is not None:
        rewards_P = [[options.constant_reward] * len(rewards_G) for rewards_G in rewards_P]
    centred_P = centred_rewards(rewards_P, [group.problem for group in groups], options.baseline, running)
    examples: list[Example] = []
    for group, centred_G in zip(groups, centred_P, strict=True):
        for episode, centred in zip(group.trajectories.trajectories_G, centred_G, strict=True):
            data = trajectory_to_data(episode, 0.0)
            examples += [Example(group.problem, datum, centred, episode if len(data) == 1 else None) for datum in data]
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
    """The size of the advantages and, where there was a teacher, the KL to it."""
    sampled = max(1.0, sum(sum(example.mask) for example in examples))
    metrics = {
        "advantage/abs_reward": mean([abs(example.centred) for example in examples]),
        "advantage/abs_token": sum(float(example.inputs("advantages").abs().sum()) for example in examples) / sampled,
    }
    if not judged:
        return metrics
    problems = sorted({example.problem for example in examples})
    by_problem = {f"teacher_kl/{problem}": [e for e in examples if e.problem == problem] for problem in problems}
    for name, part in {"teacher_kl": examples, **(by_problem if len(problems) > 1 else {})}.items():
        metrics[name] = sum(example.kl for example in part) / max(1.0, sum(example.covered for example in part))
    metrics["teacher_kl/covered"] = sum(example.covered for example in examples) / sampled
    metrics["teacher_kl/unjudged"] = float(sum(example.failure is not None for example in examples))
    return metrics
