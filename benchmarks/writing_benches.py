"""The runs in which a student writes benches for registers, and is measured by the mutants that the benches reject.

`scripts/make_bench_models.py` makes the models. The hidden designs of the problems must be examined first; otherwise,
an error names the command.
"""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

from deceived import another_specification, reading_something_else
from learning_options import REWARD, Run, summary
from spelled import made_options

from research.benches import KIND
from rtl_agent_gym.demo.jobs import train
from rtl_agent_gym.evaluation.results import read_results

BENCHES = {
    "benches-following": Run("distillation from a teacher that writes right benches"),
    "benches-reward": Run("the mutants alone, as the reward", {**REWARD, "reward": "dense"}),
    "benches-specification": Run("control: the teacher reads another specification", teacher="specification"),
    "benches-permuted": Run(
        "control: rewards permuted between problems", {**REWARD, "reward": "dense", "control": "permuted_rewards"}
    ),
}
"""The runs by their name on the command line."""
TRAINED = 128
"""Number of problems that each run is trained on."""


def source(count: int, seed: int, split: str) -> str:
    """Verification problems of a split. Up to a tenth of the registers may have too few mutants that differ."""
    return f"family:registers?count={count + count // 10}&seed={seed}&split={split}+verify?kind={KIND}&count={count}"


def writing(name: str, seed: int, sizes: argparse.Namespace) -> dict[str, Any]:
    """Do or continue a run, and return its result; ``killed`` is the mean share of mutants, before and after."""
    run, folder = BENCHES[name], sizes.folder / f"{name}-{seed}"
    options = made_options("make_bench_models", run, seed, sizes, reward="proxy")
    options |= {"cvdp_jsonl_path": source(TRAINED, 1, "train"), "log_path": str(folder)}
    options |= {"held_out": source(sizes.held_out, 100 + seed, "combinations"), "system_prompt": "@/dev/null"}
    deceived: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if run.teacher == "specification":
        texts = another_specification(options["cvdp_jsonl_path"])
        deceived = reading_something_else(texts, options["teacher_model"])
    with deceived:
        outcome = train(options)
    evaluations = sorted((folder / "evaluations").glob("*-test"))
    killed = [
        [result.score.tests_passed / result.score.tests_total for result in read_results(evaluation) if result.score]
        for evaluation in (evaluations[0], evaluations[-1])
    ]
    return summary(outcome, seed) | {"killed": [round(sum(shares) / len(shares), 4) for shares in killed]}
