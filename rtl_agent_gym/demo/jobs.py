"""Training with the shipped models, and the demonstrations: distillation on one problem, on a family, and on a
family whose problems have files that must be read.

::

    python -m rtl_agent_gym.demo.jobs 1problem|family|looking [name=value ...]

All evaluate problems that are never trained on, before and after training. With Tinker's service they train
Qwen3.5-9B, without it a shipped student. Options of a run can be given, and override those of the job.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..cluster import runtime_at
from ..training import launch
from ..training.options import with_older_names
from ..training.plan import is_local, plan_run, plan_sft
from .founding import PROBLEM_ID, compare_habits
from .shipped import SMALL, SPELLED
from .smollm import SMOLLM

RECIPES = (SMALL, SPELLED, SMOLLM)
"""The models that can be built on this machine; without a service, the first is the default."""


def train(given: Mapping[str, Any], *, rl: bool = False) -> launch.Outcome:
    """`launch.train` with `RECIPES`, the first of which is the default without a service."""
    return launch.train(given, rl=rl, recipes=RECIPES, clusters=runtime_at)


def train_sft(given: Mapping[str, Any]) -> launch.Outcome:
    """Supervised training: `launch.launch` with the plan of `plan_sft` and the same recipes."""
    return launch.launch(plan_sft(given, recipes=RECIPES), clusters=runtime_at)


def preview(given: Mapping[str, Any], *, rl: bool = False, supervised: bool = False) -> str:
    """What `train`, or `train_sft`, would do with these options; see `launch.dry_run`."""
    plan = plan_sft(given, recipes=RECIPES) if supervised else plan_run(given, rl=rl, recipes=RECIPES)
    return launch.dry_run(plan)


def run_script(arguments: Sequence[str] | None = None, *, rl: bool = False) -> int:
    """`launch.main` with the models that can be built here: the entry point of the scripts."""
    return launch.main(arguments, rl=rl, recipes=RECIPES, clusters=runtime_at)


def _source(family: str, count: int, seed: int, split: str) -> str:
    return f"family:{family}?count={count}&seed={seed + 1}&split={split}"


def _one_problem(seed: int) -> dict[str, Any]:
    return {
        "problem_ids": PROBLEM_ID,
        "held_out": _source("arbiters", 32, seed, "combinations"),
        "eval_episodes": 32,
        "eval_every": 0,
    }


def _family(seed: int) -> dict[str, Any]:
    return {
        "cvdp_jsonl_path": _source("registers", 200, seed, "train"),
        "held_out": _source("registers", 128, seed, "combinations"),
        "extra_held_out": {split: _source("registers", 16, seed, split) for split in ("wordings", "names")},
        "eval_every": 0,
    }


def _looking(seed: int) -> dict[str, Any]:
    splits = {split: split for split in ("names", "operations", "sizes")}
    splits["lied-documents"] = "combinations&lie=documents"
    return {
        "cvdp_jsonl_path": _source("accumulators", 2000, seed, "train"),
        "held_out": _source("accumulators", 128, seed, "combinations"),
        "extra_held_out": {name: _source("accumulators", 32, seed, split) for name, split in splits.items()},
        "eval_every": 0,
    }


@dataclass(frozen=True)
class Job:
    """The options of a demonstration."""

    problems: Callable[[int], dict[str, Any]]
    """Options with the problems to train on and to evaluate, given the seed."""
    small: Mapping[str, Any]
    """Further options if the shipped student is trained."""
    published: Mapping[str, Any]
    """Further options for other models."""
    recipe: str = SMALL.name
    """The name of the recipe with the shipped models."""
    closing: Callable[[Path], list[str]] = lambda run: []
    """Lines to print when all steps are done, given the run's folder."""

    def options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The job's options, overridden by those in `given`."""
        given = with_older_names(given)
        local = is_local(given.get("engine", "auto"), given.get("base_url"))
        small = local and given.get("student_model", self.recipe) == self.recipe
        seed = str(given.get("seed", 0))
        found = self.problems(int(seed) if seed.isdecimal() else 0) | dict(self.small if small else self.published)
        if "cvdp_jsonl_path" in given:
            found.pop("problem_ids", None)
        return found | given


JOBS = {
    "1problem": Job(
        _one_problem,
        small={"num_steps": 16, "max_lag": 1, "log_path": "runs/distillation_1problem_small"},
        published={"log_path": "runs/distillation_1problem"},
        closing=compare_habits,
    ),
    "family": Job(
        _family,
        small={
            "batch_size": 8,
            "group_size": 1,
            "max_lag": 1,
            "log_path": "runs/distillation_family_small",
        },
        published={"batch_size": 8, "num_steps": 25, "reward_coef": 0.0, "log_path": "runs/distillation_family"},
    ),
    "looking": Job(
        _looking,
        # Distillation needs no hidden tests during training, and they would take a large part of each step's time.
        small={"student_model": SPELLED.name, "reward": "proxy", "log_path": "runs/distillation_looking_small"},
        published={"batch_size": 8, "num_steps": 25, "reward_coef": 0.0, "log_path": "runs/distillation_looking"},
        recipe=SPELLED.name,
    ),
}
"""The demonstrations by name."""


def main(arguments: Sequence[str]) -> int:
    """Run the job that the first argument names, with options as in `launch.main`. Returns the exit code."""
    job = JOBS.get(arguments[0] if arguments else "")
    if job is None:
        print(f"usage: python -m rtl_agent_gym.demo.jobs {'|'.join(JOBS)} [name=value ...]", file=sys.stderr)
        return 2
    return launch.main(arguments[1:], recipes=RECIPES, defaults=job.options, closing=job.closing, clusters=runtime_at)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
