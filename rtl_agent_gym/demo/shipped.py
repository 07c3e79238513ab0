"""The models in this package, two pairs of a student and a teacher.

- ``small``: a student that often writes textbook habits, and a teacher that follows specifications. Their weights are
  nearly the same. Their episodes have one form: read the specification, write the design, compile or submit it, done.
- ``spelled``: a student and a teacher that share no weights, for problems whose files must be read. They spell
  every name and number, and their episodes have 4 to 8 turns.

The programs in ``research/`` made them; ``recipe.json`` in their folders says how.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..errors import UsageError
from ..training.plan import ModelRecipe, Plan
from .founding import PROBLEM_ID

RENDERER = "qwen3"
"""The models' dialect."""

SYSTEM_PROMPT = ""
"""Replaces the environment's system prompt, which is too long for a small model."""

FEEDBACK_PROMPT = "You may use `submit`."
"""Replaces it in episodes with submissions; without this text the models do not submit."""

FOLDER = Path(__file__).parent / "weights"
"""The folder of the models, each in the format of transformers."""


def shipped(name: str) -> Path:
    """The folder of a model: ``student``, ``teacher``, ``spelled/student`` or ``spelled/teacher``.

    Raises:
        UsageError: The folder does not exist.
    """
    folder = FOLDER / name
    if not folder.is_dir():
        raise UsageError(f"this installation has no model {name!r}: {folder} is missing")
    return folder


def find_models(plan: Plan, name: str = "small", folder: str = "") -> Plan:
    """The plan with the folders of the models instead of `name`; see `ModelRecipe.make`."""
    prompt = FEEDBACK_PROMPT if plan.options.harness_feedback else SYSTEM_PROMPT
    return plan.with_models(name, shipped(f"{folder}student"), shipped(f"{folder}teacher"), prompt)


def shipped_digest(name: str, folder: str = "") -> str:
    """A digest of the files of a shipped model. Raises like `shipped`."""
    from ..policies.sampler import files_digest

    return files_digest(shipped(f"{folder}{name}"))


DISTILLED: dict[str, object] = {
    "lr_schedule": "linear",
    "lora_rank": 0,
    "kl_penalty_coef": 1.0,
    "loss_reduction": "mean",
    "reward_coef": 0.0,
    "timeout_seconds": 10.0,
}
"""Default options of all models that are trained without a service."""

_SHIPPED = DISTILLED | {"max_tokens": 220, "warmup_steps": 4, "kl_budget": 20.0, "grad_clip_norm": 0.1}

SMALL = ModelRecipe(
    name="small",
    renderer=RENDERER,
    defaults=_SHIPPED
    | {
        "student_model": "small",
        "teacher_model": "small",
        "problem_ids": (PROBLEM_ID,),
        "max_turns": 6,
        "max_trajectory_tokens": 900,
        "group_size": 8,
        "max_concurrent": 12,
        "num_steps": 24,
        "learning_rate": 5e-4,
        "kl_clip": 3.0,
        "log_path": "runs/distillation_small",
    },
    make=find_models,
    digest=shipped_digest,
)
"""The default shipped models and suitable options; unless others are given, the problem is the bundled arbiter."""

SPELLED = ModelRecipe(
    name="spelled",
    renderer=RENDERER,
    defaults=_SHIPPED
    | {
        "student_model": "spelled",
        "teacher_model": "spelled",
        "cvdp_jsonl_path": "family:accumulators?count=2000",
        "max_turns": 9,
        "max_trajectory_tokens": 1000,
        "batch_size": 32,
        "group_size": 1,
        "max_concurrent": 32,
        "num_steps": 130,
        "learning_rate": 1e-3,
        "lr_final": 0.1,
        "kl_clip": 1.0,
        "local_batch": 32,
        "local_batch_tokens": 2048,
        "eval_every": 0,
        "save_every": 0,
        "log_path": "runs/distillation_spelled",
    },
    make=partial(find_models, name="spelled", folder="spelled/"),
    digest=partial(shipped_digest, folder="spelled/"),
)
"""The shipped models that share no weights, and suitable options."""
