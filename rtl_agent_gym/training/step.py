"""From graded episodes to a step of the optimizer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import tinker
import torch
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.metrics import compute_kl_sample_train
from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup

from ..engines.guarded import Answer
from ..engines.protocol import Sampler, Trainer
from ..errors import RequestRefused, ServiceDown, ServiceError
from .advantages import CreditConfig, RunningMeans, centred_rewards, token_advantages
from .annotations import Judged
from .episodes import full_tokens
from .teachers import Judgement, Sampled, Teacher

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """A batch ready to be trained on."""

    data: list[tinker.Datum]
    metrics: dict[str, float]
    episodes: list[Judged] = field(default_factory=list)
    """The episodes that became one example each, with the teacher's judgement."""


async def prepare(
    groups: Sequence[TrajectoryGroup],
    problems: Sequence[str],
    teacher: Teacher | None,
    credit: CreditConfig,
    running: RunningMeans,
) -> Prepared:
    """Training examples with their advantages.

    Args:
        groups: The graded episodes.
        problems: The problem of each group.
        teacher: Asked once an episode; None for none.
        credit: How reward and KL become advantages.
        running: The running means, which are brought up to date.
    """
    rewards_P = [group.get_total_rewards() for group in groups]
    centred_P = centred_rewards(rewards_P, problems, credit.baseline, running)
    examples: list[tuple[tinker.Datum, str, float]] = []
    whole: list[tuple[int, Trajectory]] = []  # examples that hold an episode
    for group, problem, centred_G in zip(groups, problems, centred_P, strict=True):
        for trajectory, centred in zip(group.trajectories_G, centred_G, strict=True):
            found = trajectory_to_data(trajectory, 0.0)
            if len(found) == 1:
                whole.append((len(examples), trajectory))
            examples += [(datum, problem, centred) for datum in found]
    asked = teacher if credit.kl_penalty_coef > 0 else None
    made = await asyncio.gather(*(_credited(*example, asked, credit) for example in examples))
    data = [datum for datum, _ in made]
    sampled = sum(float(datum.loss_fn_inputs["mask"].to_torch().sum()) for datum in data)
    advantages = [datum.loss_fn_inputs["advantages"].to_torch() for datum in data]
    spread = [abs(centred) for centred_G in centred_P for centred in centred_G]
    metrics = {
        "advantage/abs_reward": sum(spread) / max(1, len(spread)),
        "advantage/abs_token": sum(float(values.abs().sum()) for values in advantages) / max(1.0, sampled),
    }
    if asked is not None:
        covered = sum(told.covered for _, told in made)
        metrics["teacher_kl"] = sum(told.kl for _, told in made) / max(1.0, covered)
        metrics["teacher_kl/covered"] = covered / max(1.0, sampled)
        metrics["teacher_kl/unjudged"] = float(_unjudged([told for _, told in made]))
        for problem in sorted(set(problems)) if len(set(problems)) > 1 else ():
            own = [told for (_, of, _), (_, told) in zip(examples, made, strict=True) if of == problem]
            metrics[f"teacher_kl/{problem}"] = sum(t.kl for t in own) / max(1.0, sum(t.covered for t in own))
    episodes = [
        Judged(trajectory, made[at][1].judgement, [0.0, *data[at].loss_fn_inputs["mask"].to_torch().tolist()])
        for at, trajectory in whole
    ]
    return Prepared(data, metrics, episodes)


@dataclass(frozen=True)
class _Told:
    """A judgement and its sums."""

    kl: float = 0.0
    covered: float = 0.0
    judgement: Judgement | None = None
    failure: ServiceError | None = None
    """Why the teacher did not judge."""


def _unjudged(told: Sequence[_Told]) -> int:
    """How many episodes the teacher did not judge.

    Raises:
        ServiceError: It judged none, and not because it refuses to: a step without its teacher is not taken.
    """
    failures = [one.failure for one in told if one.failure is not None]
    passing = [failure for failure in failures if not isinstance(failure, RequestRefused)]
    if passing and len(failures) == len(told):
        raise ServiceError(f"the teacher judged no episode of the step; {passing[-1]}") from passing[-1]
    return len(failures)


async def _credited(
    datum: tinker.Datum, problem: str, centred: float, teacher: Teacher | None, credit: CreditConfig
) -> tuple[tinker.Datum, _Told]:
    mask_T = datum.loss_fn_inputs["mask"].to_torch().tolist()
    told, kl_T, weights_T = _Told(), None, None
    if teacher is not None:
        logprobs_T = datum.loss_fn_inputs["logprobs"].to_torch().tolist()
        sampled = Sampled(problem, full_tokens(datum), [0.0, *mask_T], [0.0, *logprobs_T])
        try:
            judged, failure = await teacher.judge(sampled), None
        except ServiceDown:
            raise
        except ServiceError as error:  # a refusal would come again at each resume: the episode stays without a KL
            logger.warning("an episode of %s is not judged: %s", problem, error)
            judged, failure = Judgement([0.0] * len(sampled.tokens), [0.0] * len(sampled.tokens)), error
        kl_T = judged.kl[1:]  # the first token is nobody's target
        weights_T = None if judged.weights is None else judged.weights[1:]
        told = _Told(sum(judged.kl), sum(judged.covered), judged, failure)
    advantages_T = torch.tensor(token_advantages(centred, kl_T, mask_T, credit, weights_T), dtype=torch.float32)
    inputs = {**datum.loss_fn_inputs, "advantages": tinker.TensorData.from_torch(advantages_T)}
    return tinker.Datum(model_input=datum.model_input, loss_fn_inputs=inputs), told


@dataclass(frozen=True)
class StepConfig:
    """How a step is taken."""

    loss_fn: Any = "importance_sampling"
    num_substeps: int = 1
    reduction: Literal["sum", "mean"] = "sum"
    beta2: float = 0.95
    grad_clip_norm: float = 0.0


async def optimize(
    trainer: Trainer, data: Sequence[tinker.Datum], learning_rate: float, config: StepConfig
) -> dict[str, float]:
    """Train on a batch, in one optimizer step or several, and say how it went.

    All requests are made before the first is awaited: a service then needs no turn of its clock between them.

    Raises:
        ServiceError: One of them failed. What the others did is not known; the trainer is of no use any more.
    """
    adam = tinker.AdamParams(
        learning_rate=learning_rate, beta1=0.9, beta2=config.beta2, eps=1e-8, grad_clip_norm=config.grad_clip_norm
    )
    parts = _split(list(data), config.num_substeps)
    if config.reduction == "mean":
        parts = [_averaged(part) for part in parts]  # each is a step of its own, and so the mean is of its own tokens
    asked = []
    for part in parts:
        asked.append(
            (trainer.forward_backward([_bare(datum) for datum in part], config.loss_fn), trainer.optim_step(adam))
        )
    logprobs: list[torch.Tensor] = []
    metrics: dict[str, float] = {"optim/lr": learning_rate}
    with _cancelling([request for pair in asked for request in pair]):
        for gradient, step in asked:
            output = await gradient
            logprobs += [found["logprobs"].to_torch() for found in output.loss_fn_outputs]
            stepped = await step
            metrics |= {_named(name): float(value) for name, value in (stepped.metrics or {}).items()}
    if any(float(datum.loss_fn_inputs["mask"].to_torch().sum()) for datum in data):
        metrics |= {name: float(value) for name, value in compute_kl_sample_train(list(data), logprobs).items()}
    return metrics


@dataclass(frozen=True)
class Stepped:
    """What a step left."""

    metrics: dict[str, float]
    sampler: Sampler
    """Of the weights behind it."""
    state_path: str | None = None
    """Its checkpoint, if one was asked for."""
    sampler_path: str | None = None


async def step_and_save(
    trainer: Trainer,
    data: Sequence[tinker.Datum],
    learning_rate: float,
    config: StepConfig,
    *,
    state: str | None = None,
    weights: str | None = None,
) -> Stepped:
    """`optimize`, unless there is nothing to train on, and save.

    Args:
        trainer: See `optimize`, as for the next three.
        data: The batch.
        learning_rate: The rate.
        config: How.
        state: A name for the checkpoint; None for none.
        weights: A name for weights to sample from later; None for none.
    """
    metrics = await optimize(trainer, data, learning_rate, config) if data else {}
    sampler = await trainer.save_weights_and_get_sampling_client()
    state_path = (await trainer.save_state(state)).path if state is not None else None
    sampler_path = (await trainer.save_weights_for_sampler(weights)).path if weights is not None else None
    return Stepped(metrics, sampler, state_path, sampler_path)


@contextlib.contextmanager
def _cancelling(requests: Sequence[Any]) -> Iterator[None]:
    """Withdraws the requests, as far as that can be done, if one of them fails."""
    try:
        yield
    except BaseException:
        for request in requests:
            if isinstance(request, Answer):
                request.cancel()
        raise


def _averaged(data: Sequence[tinker.Datum]) -> list[tinker.Datum]:
    """The data with advantages over the number of sampled tokens: engines sum over tokens."""
    sampled = max(1.0, sum(float(datum.loss_fn_inputs["mask"].to_torch().sum()) for datum in data))
    made = []
    for datum in data:
        advantages = tinker.TensorData.from_torch(datum.loss_fn_inputs["advantages"].to_torch() / sampled)
        inputs = {**datum.loss_fn_inputs, "advantages": advantages}
        made.append(tinker.Datum(model_input=datum.model_input, loss_fn_inputs=inputs))
    return made


def _named(name: str) -> str:
    return name if "/" in name else f"optim/{name}"


def _bare(datum: tinker.Datum) -> tinker.Datum:
    """The datum as a loss takes it, without the mask."""
    inputs = {name: value for name, value in datum.loss_fn_inputs.items() if name != "mask"}
    return tinker.Datum(model_input=datum.model_input, loss_fn_inputs=inputs)


def _split(data: list[tinker.Datum], parts: int) -> list[list[tinker.Datum]]:
    """Nearly equal runs, none of them empty."""
    parts = max(1, min(parts, len(data)))
    edges = [round(number * len(data) / parts) for number in range(parts + 1)]
    return [data[begin:end] for begin, end in pairwise(edges) if end > begin]
