"""Options under which a run would learn nothing, or something else than they suggest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UsageError
from .options import TrainOptions

_REMEDY = "take baseline=running, or group_size=2 or more"


def check_effects(o: TrainOptions, engine: str, given: Mapping[str, Any]) -> tuple[str, ...]:
    """What to warn of before a run begins; each warning begins with the name of an option.

    Args:
        o: All options.
        engine: ``local`` or ``tinker``.
        given: Those that the user named.

    Raises:
        UsageError: Every advantage of every step would be 0.
    """
    control = o.constant_reward is not None  # it is meant to learn nothing
    cancelled = None if control else _reward_cancels_itself(o)
    warnings: list[str] = []
    if not o.distils and not control:
        if o.reward_coef == 0:
            raise UsageError(
                "reward_coef: it is 0, and there is no teacher or kl_penalty_coef=0; nothing would be learnt"
            )
        if cancelled:
            raise UsageError(f"{cancelled}, so that every advantage would be 0; {_REMEDY}")
    if o.distils and o.reward_coef > 0 and cancelled:
        warnings.append(
            f"{cancelled} and is not learnt from, only the teacher is; {_REMEDY}, or reward_coef=0 if that is meant"
        )
    if not o.distils and o.kl_penalty_coef > 0 and "kl_penalty_coef" in given:
        warnings.append("kl_penalty_coef: there is no teacher, so it does nothing; name one with teacher_model")
    if o.temperature != 1:
        of = (
            "are of that temperature"
            if engine == "local"
            else "are of that temperature or of 1, which the service does not say (optim/kl_sample_train_v1 tells)"
        )
        warnings.append(
            f"temperature: tokens are drawn at {o.temperature:g}, and their log-probabilities {of}, but the loss "
            "and the teacher know temperature 1 alone: importance weights are not 1, and the KL is not the model's "
            "own; take temperature=1 unless that is meant"
        )
    return tuple(warnings)


def _reward_cancels_itself(o: TrainOptions) -> str | None:
    """Why each episode's reward is its own baseline; None where it is not."""
    if o.baseline == "group" and o.group_size == 1:
        return "baseline: with baseline=group and group_size=1 each episode's reward is its own baseline"
    if o.baseline == "batch" and o.group_size * o.batch_size == 1:
        return "baseline: with baseline=batch and one episode a step each episode's reward is its own baseline"
    return None
