"""The run without an API key: a tiny student and teacher, built on this machine, and their options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..training import launch
from ..training.plan import ModelRecipe, Plan
from ..training.sft_plan import plan_sft
from . import tiny, tiny_episode
from .smollm import SMOLLM


def make_models(plan: Plan) -> Plan:
    """Build those of the models that are called ``tiny``, or take them from the cache. See `ModelRecipe.make`."""
    made = tiny.make_tiny(plan.options.seed)
    if plan.teacher == TINY.name:
        plan = replace(plan, teacher=str(made.teacher_path))
    if plan.student != TINY.name:
        return plan
    plan = replace(plan, student=str(made.student_path))
    if plan.options.env == "agentic" and plan.system_prompt is None:
        plan = replace(plan, system_prompt=tiny_episode.SYSTEM_PROMPT)
    if plan.options.env == "agentic" and plan.user_prompt is None:
        plan = replace(plan, user_prompt=tiny_episode.USER_PROMPT)
    return plan


TINY = ModelRecipe(
    name="tiny",
    renderer=tiny_episode.RENDERER,
    defaults={
        "student_model": "tiny",
        "teacher_model": "tiny",
        "problem_ids": (tiny_episode.PROBLEM_ID,),
        "max_turns": 6,
        "max_tokens": 160,
        "max_trajectory_tokens": 1200,
        "group_size": 16,
        "num_steps": 40,
        "learning_rate": 2e-4,
        "warmup_steps": 6,
        "lr_schedule": "linear",
        "lora_rank": 0,
        "kl_penalty_coef": 1.0,
        "kl_clip": 2.0,
        "kl_budget": 6.0,
        "loss_reduction": "mean",
        "reward_coef": 0.0,
        "grad_clip_norm": 1.0,
        "adam_beta2": 0.999,
        "timeout_seconds": 10.0,
        "log_path": "runs/distillation_1problem_tiny",
    },
    make=make_models,
)
"""The tiny models. docs/training.md has measurements with these options."""


RECIPES = (TINY, SMOLLM)
"""The models that can be built on this machine; without a service, the first is the default."""


def train(given: Mapping[str, Any], *, rl: bool = False) -> launch.Outcome:
    """`launch.train` with the tiny models, which are the default without a service."""
    return launch.train(given, rl=rl, recipes=RECIPES)


def train_sft(given: Mapping[str, Any]) -> launch.Outcome:
    """Supervised training: `launch.launch` with the plan of `plan_sft`, and the same models."""
    return launch.launch(plan_sft(given, recipes=RECIPES))


def main(arguments: Sequence[str] | None = None, *, rl: bool = False) -> int:
    """`launch.main` with the tiny models: the entry point of the scripts."""
    return launch.main(arguments, rl=rl, recipes=RECIPES)
