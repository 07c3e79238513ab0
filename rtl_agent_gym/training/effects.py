"""Checks for options with which a run would learn nothing, or not what they suggest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UsageError
from .options import TrainOptions

_REMEDY = "choose baseline=running, or group_size=2 or more"


def check_effects(o: TrainOptions, engine: str, given: Mapping[str, Any]) -> tuple[str, ...]:
    """The warnings before a run begins; each starts with the name of an option.

    Args:
        o: All options.
        engine: ``local`` or ``tinker``.
        given: The options that the user set.

    Raises:
        UsageError: Every advantage of every step would be 0.
    """
    control = o.constant_reward is not None  # meant to learn nothing
    cancelled = None if control else _reward_cancels_itself(o)
    warnings: list[str] = []
    if not o.distils and not control:
        if o.reward_coef == 0:
            raise UsageError(
                "reward_coef: it is 0, and there is no teacher or kl_penalty_coef=0; nothing would be learned"
            )
        if cancelled:
            raise UsageError(f"{cancelled}, so every advantage would be 0; {_REMEDY}")
    if o.distils and o.reward_coef > 0 and cancelled:
        warnings.append(
            f"{cancelled} and has no effect, only the teacher does; {_REMEDY}, or reward_coef=0 if this is intended"
        )
    if not o.distils and o.kl_penalty_coef > 0 and "kl_penalty_coef" in given:
        warnings.append("kl_penalty_coef: has no effect without a teacher; name one with teacher_model")
    if o.temperature != 1:
        logprobs = (
            "are of that temperature"
            if engine == "local"
            else "are of that temperature or of 1, which the service does not document (see optim/kl_sample_train_v1)"
        )
        warnings.append(
            f"temperature: tokens are sampled at {o.temperature:g}, and their log-probabilities {logprobs}, but the "
            "loss and the teacher assume temperature 1: importance weights are not 1, and the KL is not that of the "
            "model; choose temperature=1 unless this is intended"
        )
    return tuple(warnings)


def _reward_cancels_itself(o: TrainOptions) -> str | None:
    """Why each episode's reward is its own baseline; None if it is not."""
    if o.baseline == "group" and o.group_size == 1:
        return "baseline: with baseline=group and group_size=1 each episode's reward is its own baseline"
    if o.baseline == "batch" and o.group_size * o.batch_size == 1:
        return "baseline: with baseline=batch and one episode a step each episode's reward is its own baseline"
    return None
