"""Draws tokens from logits, and finds where a sequence stops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tinker
import torch
from torch import Tensor

from ..errors import NotFinite, UsageError


def check_params(params: tinker.SamplingParams) -> None:
    """Raise `UsageError` for invalid values."""
    if params.max_tokens is not None and params.max_tokens < 1:
        raise UsageError(f"max_tokens must be at least 1, got {params.max_tokens}")
    if not 0 <= params.temperature < math.inf:
        raise UsageError(f"temperature must be a finite number of at least 0, got {params.temperature}")
    if not 0 < params.top_p <= 1:
        raise UsageError(f"top_p must be above 0 and at most 1, got {params.top_p}")
    if params.top_k == 0 or params.top_k < -1:
        raise UsageError(f"top_k must be at least 1, or -1 for no limit; got {params.top_k}")


def draw(
    logits: Tensor, params: Sequence[tinker.SamplingParams], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Draw one token for each row.

    Each token is chosen by inverse transform sampling with the row's own uniform number. So it depends on no other row,
    and rounding differences in the logits hardly ever change it.

    Args:
        logits: Rows × vocabulary.
        params: Temperature, top_k and top_p of each row.
        uniforms: A number from [0, 1) for each row.

    Returns:
        The tokens, and the log-probability of each in the distribution that it was drawn from (after temperature,
        `top_k` and `top_p`), as importance weights need it. At temperature 0, where nothing is drawn, it is the
        model's log-probability at temperature 1.

    Raises:
        NotFinite: A row of the logits has no distribution, because it holds NaN or infinity.
    """
    scaled = logits.double()
    temperatures = torch.tensor([one.temperature for one in params], dtype=torch.float64, device=logits.device)
    if any(one.temperature != 1 for one in params):
        scaled = scaled / temperatures.clamp(min=1e-9).unsqueeze(1)
    probabilities = torch.softmax(scaled, dim=-1)
    for row, one in enumerate(params):
        if one.top_k > 0 or one.top_p < 1:
            probabilities[row] = _truncate(probabilities[row], one.top_k, one.top_p)
    cumulative = probabilities.cumsum(-1)
    if not cumulative[:, -1].isfinite().all():
        raise NotFinite("the model's output is NaN or infinite; its weights are damaged, or its type overflows")
    points = torch.tensor(uniforms, dtype=torch.float64, device=logits.device).unsqueeze(1) * cumulative[:, -1:]
    ids = torch.searchsorted(cumulative, points, right=True).clamp(max=logits.shape[1] - 1).squeeze(1)
    ids = torch.where(temperatures == 0, logits.argmax(-1), ids)
    chosen = probabilities.gather(1, ids.unsqueeze(1)).squeeze(1)
    logprobs = chosen.log() - cumulative[:, -1].log()
    for row in ((temperatures == 0) | (chosen == 0)).nonzero().flatten().tolist():
        logprobs[row] = logits[row].double().log_softmax(-1)[ids[row]]
    return ids.tolist(), logprobs.tolist()


def _truncate(probabilities: Tensor, top_k: int, top_p: float) -> Tensor:
    """Keep the `top_k` most likely tokens, and of those the most likely ones that together reach `top_p`."""
    ordered, order = probabilities.sort(descending=True, stable=True)
    if top_k > 0:
        ordered[top_k:] = 0
    before = ordered.cumsum(-1) - ordered
    ordered[before >= top_p * ordered.sum()] = 0
    return torch.zeros_like(probabilities).scatter_(0, order, ordered)


class Stops:
    """The stop condition of a request.

    Args:
        stop: ``SamplingParams.stop``.
        end_ids: The model's own end tokens, used if `stop` is None.
        tokenizer: Returns the tokenizer; called only if `stop` has texts.
    """

    def __init__(self, stop: Any, end_ids: Sequence[int], tokenizer: Any) -> None:
        listed = [stop] if isinstance(stop, str) else list(end_ids if stop is None else stop)
        self._ids = {one for one in listed if isinstance(one, int)}
        self._texts = [one for one in listed if isinstance(one, str) and one]
        self._tokenizer = tokenizer() if self._texts else None
        # A text of n bytes has at most n tokens; the first may begin with bytes before it, so look at one more.
        self._tail = max((len(text.encode()) for text in self._texts), default=0) + 1

    def reached(self, tokens: list[int]) -> bool:
        """Whether the last of these sampled tokens ends the sequence."""
        if tokens[-1] in self._ids:
            return True
        if self._tokenizer is None:
            return False
        tail = self._tokenizer.decode(tokens[-self._tail :], skip_special_tokens=False)
        return any(text in tail for text in self._texts)
