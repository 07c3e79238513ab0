"""The runs whose episodes mini-swe-agent plays, with the student as its model.

`scripts/make_agent_models.py` makes the models. Problems, options and numbers of steps are those of the job `family`.
"""

from __future__ import annotations

import argparse
from typing import Any

from learning_options import REWARD, Run, given, summary
from spelled import folder_of

from research.agents import AGENT
from rtl_agent_gym.demo.jobs import train
from rtl_agent_gym.demo.shipped import RENDERER, SMALL

AGENTS = {
    "agent-following": Run("distillation through mini-swe-agent"),
    "agent-reward": Run("the reward alone, through mini-swe-agent", REWARD),
    "agent-permuted": Run(
        "control: rewards permuted between problems, through mini-swe-agent", {**REWARD, "control": "permuted_rewards"}
    ),
    "agent-negated": Run("control: the KL with the opposite sign, through mini-swe-agent", {"control": "negated_kl"}),
}
"""The runs by their name on the command line."""
_NOT_SHARED = ("student_model", "teacher_model", "problem_ids", "log_path")


def through_agent(name: str, seed: int, sizes: argparse.Namespace) -> dict[str, Any]:
    """Do a run, or what is left of it, and return its result."""
    folder = sizes.folder / f"{name}-{seed}"
    shared = {option: value for option, value in SMALL.defaults.items() if option not in _NOT_SHARED}
    student, teacher = (folder_of(sizes.models, model, "make_agent_models") for model in ("student", "teacher"))
    taught: dict[str, Any] = {"teacher_model": teacher, "teacher_renderer_name": RENDERER}
    options = shared | given({**taught, **AGENTS[name].options}, seed, sizes)
    if options["teacher_model"] == "none":
        options.pop("teacher_renderer_name")
    outcome = train(
        options
        | {
            "agent": AGENT,
            "engine": "local",
            "student_model": student,
            "renderer_name": RENDERER,
            "log_path": str(folder),
        }
    )
    rows = outcome.metrics
    return summary(outcome, seed) | {
        "curve": [round(row["pass_rate"], 3) for row in rows if "pass_rate" in row],
        "streams": sum(row["tokens/streams"] for row in rows if "tokens/streams" in row) / len(rows),
    }
