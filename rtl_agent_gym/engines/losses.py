"""The loss functions of Tinker's service, each summed over all tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tinker
import torch
from torch import Tensor

from ..errors import UsageError
from .models import Weights

_INPUTS: dict[str, tuple[str, ...]] = {
    "cross_entropy": ("weights",),
    "importance_sampling": ("logprobs", "advantages"),
    "ppo": ("logprobs", "advantages"),
}
_PPO_OPTIONS = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}


@dataclass(frozen=True)
class Example:
    """A datum, checked: `targets` and each of `inputs` have one value per token."""

    tokens: Sequence[int]
    targets: Tensor
    inputs: dict[str, Tensor]


def read_data(data: Sequence[tinker.Datum], loss_fn: str) -> list[Example]:
    """Check and convert the data of a request. Raises `UsageError` that names the wrong datum and key."""
    if loss_fn not in _INPUTS:
        raise UsageError(f"the local engine has no loss {loss_fn!r}; it has {', '.join(_INPUTS)}")
    if not data:
        raise UsageError("there is no data to train on")
    return [_read_datum(datum, loss_fn, f"datum {number}") for number, datum in enumerate(data)]


def read_options(loss_fn: str, config: Mapping[str, float | str] | None) -> dict[str, float]:
    """The options of a loss with its defaults. Raises `UsageError` for an unknown one."""
    known = _PPO_OPTIONS if loss_fn == "ppo" else {}
    unknown = set(config or ()) - set(known)
    if unknown:
        raise UsageError(f"{loss_fn} has no option {', '.join(sorted(unknown))}")
    return known | {name: float(value) for name, value in (config or {}).items()}


def _read_datum(datum: tinker.Datum, loss_fn: str, name: str) -> Example:
    wanted = ("target_tokens", *_INPUTS[loss_fn])
    tokens = datum.model_input.to_ints()
    values = {key: value.to_torch() for key, value in datum.loss_fn_inputs.items()}
    if loss_fn == "cross_entropy":
        values.setdefault("weights", torch.ones(len(tokens)))
    missing = [key for key in wanted if key not in values]
    extra = [key for key in values if key not in wanted]
    if missing or extra:
        what = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(extra)}"
        raise UsageError(f"{name}: loss_fn_inputs {what}; {loss_fn} takes exactly {', '.join(wanted)}")
    for key, value in values.items():
        if tuple(value.shape) != (len(tokens),):
            raise UsageError(f"{name}: {key} has the shape {tuple(value.shape)}; the input has {len(tokens)} tokens")
    if not tokens:
        raise UsageError(f"{name}: the input has no tokens")
    return Example(tokens, values.pop("target_tokens").long(), values)


def batches(examples: Sequence[Example], max_tokens: int) -> Iterator[list[Example]]:
    """Split examples, in order, into batches of at most `max_tokens` tokens with padding, but at least one example."""
    batch: list[Example] = []
    for example in examples:
        longest = max(len(one.tokens) for one in [*batch, example])
        if batch and longest * (len(batch) + 1) > max_tokens:
            yield batch
            batch = []
        batch.append(example)
    if batch:
        yield batch


def target_logprobs(module: Any, batch: Sequence[Example], device: str) -> list[Tensor]:
    """The log-probability of each target, differentiable, one float32 tensor an example.

    Padding is on the right, which causal attention ignores.
    """
    width = max(len(example.tokens) for example in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    targets = torch.zeros(len(batch), width, dtype=torch.long)
    for row, example in enumerate(batch):
        ids[row, : len(example.tokens)] = torch.tensor(example.tokens)
        targets[row, : len(example.tokens)] = example.targets
    logits = module(input_ids=ids.to(device), use_cache=False).logits.float()
    chosen = logits.gather(-1, targets.to(device).unsqueeze(-1)).squeeze(-1)
    logprobs = chosen - logits.logsumexp(-1)
    return [logprobs[row, : len(example.tokens)] for row, example in enumerate(batch)]


def loss_of(loss_fn: str, logprobs: Tensor, example: Example, options: Mapping[str, float]) -> Tensor:
    """The loss of one example, summed over its tokens; see `Trainer.forward_backward` for the formulas.

    An importance weight that overflows (above about e^88) is not clamped: it means that `logprobs` are not those of the
    policy that sampled, and a clamped one would hide that. The loss is infinite then, and the step is refused.
    """
    inputs = {key: value.to(logprobs.device) for key, value in example.inputs.items()}
    if loss_fn == "cross_entropy":
        weights = inputs["weights"]
        return -torch.where(weights != 0, weights * logprobs, 0.0).sum()  # 0 · −inf is NaN
    advantages = inputs["advantages"]
    # Tokens that were not sampled have no sampling log-probability to compare with; their advantage is 0.
    log_ratio = torch.where(advantages != 0, logprobs - inputs["logprobs"], 0.0)
    if loss_fn == "importance_sampling":
        return -(torch.exp(log_ratio) * advantages).sum()
    # Behind the clip the loss has no slope; but autograd would make that of an infinite ratio 0 · ∞.
    ratio = torch.exp(torch.where(advantages > 0, log_ratio.clamp(max=80.0), log_ratio))
    clipped = ratio.clamp(options["clip_low_threshold"], options["clip_high_threshold"])
    return -torch.minimum(ratio * advantages, clipped * advantages).sum()


def score(weights: Weights, tokens: Sequence[int]) -> list[float | None]:
    """The log-probability of each token given those before it; None for the first."""
    weights.base.check_prompt(tokens, weights.base.context)
    if len(tokens) == 1:
        return [None]
    example = Example(tokens[:-1], torch.tensor(tokens[1:]), {})
    with torch.inference_mode():
        return [None, *target_logprobs(weights.module, [example], weights.base.device.name)[0].tolist()]
