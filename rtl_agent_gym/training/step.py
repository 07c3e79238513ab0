"""Trains on one batch, and saves the result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import tinker
import torch
from tinker.types import LossFnType
from tinker_cookbook.rl.metrics import compute_kl_sample_train

from ..engines.protocol import Sampler, Trainer
from ..engines.requests import SentRequest
from ..errors import NotFinite
from .datums import with_inputs
from .options import TrainOptions


async def optimize(
    trainer: Trainer, data: Sequence[tinker.Datum], learning_rate: float, options: TrainOptions
) -> dict[str, float]:
    """Train on a batch, in one or more optimizer steps, and return the optimizer's metrics.

    Data with ``weights`` are trained on with cross-entropy, and data with ``advantages`` with ``loss_fn``. Both have a
    ``mask`` of the trained tokens. With several targets per token, the first is the sampled token.

    All requests are sent before the first is awaited, so that the service can execute them without a pause.

    Raises:
        ServiceError: A request failed. It is unknown which of the others were executed, so the trainer cannot be used
            any more.
        NotFinite: An input, the loss or a metric is NaN or infinite. A service may have taken the step by then, so the
            trainer's weights must not be used any more.
    """
    for datum in data:
        for name, tensor in datum.loss_fn_inputs.items():
            if not tensor.to_torch().isfinite().all():
                raise NotFinite(f"an episode's {name} are not finite")
    adam = tinker.AdamParams(
        learning_rate=learning_rate,
        beta1=0.9,
        beta2=options.adam_beta2,
        eps=1e-8,
        grad_clip_norm=options.grad_clip_norm,
    )
    supervised = any("weights" in datum.loss_fn_inputs for datum in data)
    loss_fn: LossFnType = "cross_entropy" if supervised else options.loss_fn
    requests = []
    for part in _split(data, options.num_substeps):
        inputs = [_for_engine(datum, _sampled(part) if options.loss_reduction == "mean" else 1.0) for datum in part]
        requests.append((trainer.forward_backward(inputs, loss_fn), trainer.optim_step(adam)))
    logprobs: list[torch.Tensor] = []
    metrics: dict[str, float] = {"optim/lr": learning_rate}
    try:
        for gradient, step in requests:
            output = await gradient
            _require_finite(output.metrics)
            logprobs += [found["logprobs"].to_torch() for found in output.loss_fn_outputs]
            for name, value in ((await step).metrics or {}).items():
                metrics[name if "/" in name else f"optim/{name}"] = float(value)
    except BaseException:
        for pair in requests:
            for request in pair:
                if isinstance(request, SentRequest):
                    request.cancel()
        raise
    distilled = any(_is_wide(datum) for datum in data)
    if distilled:
        data, logprobs = _of_sampled_tokens(data, logprobs)
    if supervised and not distilled:
        metrics["sft/nll"] = -_masked_sum(data, logprobs) / max(1.0, _sampled(data))
    elif any(_sampled([datum]) for datum in data):
        metrics |= {name: float(value) for name, value in compute_kl_sample_train(list(data), logprobs).items()}
    _require_finite(metrics)
    return metrics


def _require_finite(metrics: Mapping[str, float]) -> None:
    """Raise `NotFinite` that names the first metric of an engine that is not finite."""
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise NotFinite(f"{name} is {value}")


@dataclass(frozen=True)
class Stepped:
    """The result of a step."""

    metrics: dict[str, float]
    sampler: Sampler
    """Sampler of the new weights."""
    state_path: str | None = None
    """Path of the checkpoint, if it was requested."""
    sampler_path: str | None = None
    """Path of the weights for sampling, if they were requested."""


async def step_and_save(
    trainer: Trainer,
    data: Sequence[tinker.Datum],
    options: TrainOptions,
    step: int,
    state: str | None = None,
    weights: str | None = None,
) -> Stepped:
    """`optimize` with the learning rate of a step, unless `data` is empty, and save.

    `state` and `weights` name the checkpoint and the weights for sampling to be saved; None for none.
    """
    metrics = await optimize(trainer, data, options.learning_rate_at(step), options) if data else {}
    sampler = await trainer.save_weights_and_get_sampling_client()
    state_path = (await trainer.save_state(state)).path if state is not None else None
    sampler_path = (await trainer.save_weights_for_sampler(weights)).path if weights is not None else None
    return Stepped(metrics, sampler, state_path, sampler_path)


def _is_wide(datum: tinker.Datum) -> bool:
    """Whether its tokens have several targets each."""
    return len(datum.loss_fn_inputs["target_tokens"].shape or ()) > 1


def _of_sampled_tokens(
    data: Sequence[tinker.Datum], logprobs: Sequence[torch.Tensor]
) -> tuple[list[tinker.Datum], list[torch.Tensor]]:
    """Data whose mask has only trained tokens, and their log-probabilities of the first targets, the sampled tokens."""
    weights = [datum.loss_fn_inputs["weights"].to_torch() for datum in data]
    masked = [
        with_inputs(datum, mask=(weight != 0).any(-1).float()) for datum, weight in zip(data, weights, strict=True)
    ]
    return masked, [values.reshape(weight.shape)[:, 0] for values, weight in zip(logprobs, weights, strict=True)]


def _masked_sum(data: Sequence[tinker.Datum], logprobs: Sequence[torch.Tensor]) -> float:
    masks = (datum.loss_fn_inputs["mask"].to_torch() for datum in data)
    return sum(float(values[mask > 0].sum()) for mask, values in zip(masks, logprobs, strict=True))


def _sampled(data: Sequence[tinker.Datum]) -> float:
    return sum(float(datum.loss_fn_inputs["mask"].to_torch().sum()) for datum in data)


def _for_engine(datum: tinker.Datum, divisor: float) -> tinker.Datum:
    """What the loss takes of a datum (engines reject the rest), with its weights or advantages divided by `divisor`."""
    supervised = "weights" in datum.loss_fn_inputs
    factor = "weights" if supervised else "advantages"
    scaled = with_inputs(datum, **{factor: datum.loss_fn_inputs[factor].to_torch() / max(1.0, divisor)})
    others = {"mask", "logprobs", "advantages"} if supervised else {"mask"}
    inputs = {name: value for name, value in scaled.loss_fn_inputs.items() if name not in others}
    return tinker.Datum(model_input=datum.model_input, loss_fn_inputs=inputs)


def _split(data: Sequence[tinker.Datum], parts: int) -> list[Sequence[tinker.Datum]]:
    parts = max(1, min(parts, len(data)))
    bounds = [round(number * len(data) / parts) for number in range(parts + 1)]
    return [data[begin:end] for begin, end in pairwise(bounds)]
