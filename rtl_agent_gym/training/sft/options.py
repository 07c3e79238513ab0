"""The options of supervised training: those of `TrainOptions` that apply to it, and its own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from ..option_types import Names, OptionalText, optional
from ..options import TrainOptions

NOT_APPLICABLE = {
    "teacher_model", "teachers", "teacher_renderer_name", "teacher_system_prompt", "teacher_context", "teacher_lag",
    "control", "prices",
    "kl_penalty_coef", "kl_discount_factor", "kl_clip", "kl_budget", "kl_weight_thinking", "kl_weight_text",
    "kl_weight_call", "reward_coef", "weak_coef", "baseline", "num_steps", "group_size", "loss_fn", "num_substeps",
    "pipeline", "max_lag", "curriculum", "min_survivors", "annotate_transcripts",
}  # fmt: skip
"""Options of runs that play their own training episodes."""


class SftOptions(TrainOptions):
    """All options of a supervised run. The options of episodes apply to the evaluations."""

    episodes: Names = ()
    """Episodes to imitate, separated by commas: transcripts, folders of them, runs, evaluations, or files that
    ``rtl-agent-gym export`` wrote as ``sft`` or ``tokens``."""
    passed_only: bool = True
    """Leave out episodes that did not pass."""
    min_reward: Annotated[float | None, BeforeValidator(optional)] = None
    """Leave out episodes with a lower reward; None for no limit."""
    epochs: int = Field(1, ge=1)
    """How often each episode is trained on."""
    batch_size: int = Field(16, ge=1)
    """Episodes in each step."""
    loss_reduction: Literal["sum", "mean"] = "mean"
    """Whether the loss is the sum or the mean over the trained tokens of a step."""
    teacher_model: OptionalText = None
    """None."""
    kl_penalty_coef: float = 0.0
    """0."""
    log_path: str = "runs/sft"
    """The run's folder."""

    @classmethod
    def names(cls) -> list[str]:
        """The options that can be given, its own first."""
        own = ["episodes", "passed_only", "min_reward", "epochs"]
        return own + [name for name in cls.model_fields if name not in NOT_APPLICABLE and name not in own]
