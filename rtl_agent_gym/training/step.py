"""One step of the optimizer on a batch of datums."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import tinker
import torch
from tinker_cookbook.rl.metrics import compute_kl_sample_train

from ..engines.guarded import Answer
from ..engines.protocol import Sampler, Trainer
from .datums import with_inputs
from .options import TrainOptions


async def optimize(
    trainer: Trainer, data: Sequence[tinker.Datum], learning_rate: float, options: TrainOptions
) -> dict[str, float]:
    """Train on a batch, in one optimizer step or several, and return the optimizer's metrics.

    All requests are made before the first is awaited: a service then needs no turn of its clock between them.

    Raises:
        ServiceError: One of them failed. What the others did is not known; the trainer cannot be used any more.
    """
    adam = tinker.AdamParams(
        learning_rate=learning_rate,
        beta1=0.9,
        beta2=options.adam_beta2,
        eps=1e-8,
        grad_clip_norm=options.grad_clip_norm,
    )
    requests = []
    for part in _split(data, options.num_substeps):
        inputs = [_for_engine(datum, _sampled(part) if options.loss_reduction == "mean" else 1.0) for datum in part]
        requests.append((trainer.forward_backward(inputs, options.loss_fn), trainer.optim_step(adam)))
    logprobs: list[torch.Tensor] = []
    metrics: dict[str, float] = {"optim/lr": learning_rate}
    with _cancelling([request for pair in requests for request in pair]):
        for gradient, step in requests:
            output = await gradient
            logprobs += [found["logprobs"].to_torch() for found in output.loss_fn_outputs]
            for name, value in ((await step).metrics or {}).items():
                metrics[name if "/" in name else f"optim/{name}"] = float(value)
    if any(_sampled([datum]) for datum in data):
        metrics |= {name: float(value) for name, value in compute_kl_sample_train(list(data), logprobs).items()}
    return metrics


@dataclass(frozen=True)
class Stepped:
    """The result of a step."""

    metrics: dict[str, float]
    sampler: Sampler
    """Of the new weights."""
    state_path: str | None = None
    """The checkpoint, if one was asked for."""
    sampler_path: str | None = None


async def step_and_save(
    trainer: Trainer,
    data: Sequence[tinker.Datum],
    learning_rate: float,
    options: TrainOptions,
    *,
    state: str | None = None,
    weights: str | None = None,
) -> Stepped:
    """`optimize`, unless there is nothing to train on, and save.

    Args:
        trainer: See `optimize`, also for the next three.
        data: The batch.
        learning_rate: The rate.
        options: The run's.
        state: A name for the checkpoint; None for none.
        weights: A name for weights to sample from later; None for none.
    """
    metrics = await optimize(trainer, data, learning_rate, options) if data else {}
    sampler = await trainer.save_weights_and_get_sampling_client()
    state_path = (await trainer.save_state(state)).path if state is not None else None
    sampler_path = (await trainer.save_weights_for_sampler(weights)).path if weights is not None else None
    return Stepped(metrics, sampler, state_path, sampler_path)


@contextlib.contextmanager
def _cancelling(requests: Sequence[Any]) -> Iterator[None]:
    """Withdraws the requests, as far as possible, if one of them fails."""
    try:
        yield
    except BaseException:
        for request in requests:
            if isinstance(request, Answer):
                request.cancel()
        raise


def _sampled(data: Sequence[tinker.Datum]) -> float:
    return sum(float(datum.loss_fn_inputs["mask"].to_torch().sum()) for datum in data)


def _for_engine(datum: tinker.Datum, divisor: float) -> tinker.Datum:
    """The datum as a loss takes it: without the mask, its advantages divided, since engines sum over tokens."""
    scaled = with_inputs(datum, advantages=datum.loss_fn_inputs["advantages"].to_torch() / max(1.0, divisor))
    inputs = {name: value for name, value in scaled.loss_fn_inputs.items() if name != "mask"}
    return tinker.Datum(model_input=datum.model_input, loss_fn_inputs=inputs)


def _split(data: Sequence[tinker.Datum], parts: int) -> list[Sequence[tinker.Datum]]:
    """Nearly equal parts, none of them empty."""
    parts = max(1, min(parts, len(data)))
    bounds = [round(number * len(data) / parts) for number in range(parts + 1)]
    return [data[begin:end] for begin, end in pairwise(bounds)]
