"""The options of the runs of `learning.py`: those of the job `family`, and what each run changes."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rtl_agent_gym import evaluate
from rtl_agent_gym.demo.jobs import JOBS
from rtl_agent_gym.demo.shipped import RENDERER, SMALL, SYSTEM_PROMPT
from rtl_agent_gym.episodes.episode import EpisodeConfig
from rtl_agent_gym.errors import SandboxError
from rtl_agent_gym.evaluation import Evaluation, EvaluationConfig, Summary
from rtl_agent_gym.policies import ModelOptions, Policy
from rtl_agent_gym.policies.sampler import TokenSamplerPolicy
from rtl_agent_gym.training.launch import Outcome
from rtl_agent_gym.training.options import TrainOptions
from rtl_agent_gym.training.run_folder import RunFolder
from rtl_agent_gym.visible import plural

HELD_OUT = "family:registers?count={count}&seed={seed}&split=combinations"
NO_TEACHER = {"teacher_model": "none", "kl_penalty_coef": 0, "reward_coef": 1}
REWARD = {**NO_TEACHER, "batch_size": 4, "group_size": 8, "learning_rate": 5e-4, "num_steps": 24}
SELF = {"teacher_model": "self", "teacher_context": "reference"}
SHORT = {"num_steps": 12}
"""For the runs with submissions, which are compared only with each other."""


@dataclass(frozen=True)
class Run:
    """What a run learns from: options on top of the job's."""

    what: str
    """Its description in the table."""
    options: Mapping[str, Any] = field(default_factory=dict)
    teacher: str = ""
    """What its teacher reads from another problem: ``specification`` or ``reference``; empty for nothing."""
    splits: bool = False
    """Whether the splits `wordings` and `names` are also evaluated."""


def given(options: Mapping[str, Any], seed: int, sizes: argparse.Namespace) -> dict[str, Any]:
    """The options of a run. Training and held-out problems differ between seeds."""
    job = JOBS["family"].options({"engine": "local", "seed": seed})
    held_out = HELD_OUT.format(count=sizes.held_out, seed=seed + 1)
    return job | {"held_out": held_out, "extra_held_out": {}, "save_every": 0, **options, **changed(sizes)}


def changed(sizes: argparse.Namespace, kind: type[TrainOptions] = TrainOptions) -> dict[str, str]:
    """The options changed on the command line (``--set``) that options of this kind have."""
    pairs = dict(pair.split("=", 1) for pair in sizes.set)
    return {name: value for name, value in pairs.items() if name in kind.names()}


def final_weights(folder: Path) -> Path:
    """The weights after a run's last step."""
    return Path(RunFolder(folder).checkpoints()[-1]["sampler_path"])


async def evaluate_all(config: EvaluationConfig, policy: Policy | None = None) -> Evaluation:
    """Like `evaluate`, but raises `SandboxError` if an episode has no verdict because the machine failed."""
    found: Evaluation = await evaluate(config, policy)
    if missing := sum(result.score is None for result in found.results):
        raise SandboxError(f"no verdict on {plural(missing, 'episode')}; the same command continues")
    return found


def played(config: EvaluationConfig, policy: Policy, model: TokenSamplerPolicy) -> Summary:
    """The summary of `evaluate_all`. Closes the model with which the policy plays."""

    async def play() -> Summary:
        try:
            return (await evaluate_all(config, policy)).summary
        finally:
            await model.close()

    return asyncio.run(play())


def local_config(model: Path, problems: str, folder: Path, max_turns: int, **more: Any) -> EvaluationConfig:
    """The evaluation of a model that is trained like the shipped students."""
    return EvaluationConfig(
        problems=problems,
        policy=f"local:{model}",
        renderer=RENDERER,
        model=ModelOptions(max_tokens=SMALL.defaults["max_tokens"], max_context=1000),
        episode=EpisodeConfig(system_prompt=SYSTEM_PROMPT, max_turns=max_turns),
        folder=folder,
        **more,
    )


def seconds(outcome: Outcome) -> float:
    """Seconds that the steps and evaluations of a run took, over all its interruptions."""
    names = ("time/total", "time/evaluate_before", "time/evaluate")
    return float(sum(row.get(name, 0.0) for row in outcome.metrics for name in names))


def summary(outcome: Outcome, seed: int) -> dict[str, Any]:
    """The held-out pass rates in a run's first and last line of metrics, and how long the run took."""
    first, last = outcome.metrics[0], outcome.metrics[-1]
    return {
        "seed": seed,
        "steps": outcome.steps,
        "before": first["test_before/pass_rate"],
        "after": last["test/pass_rate"],
        "episodes": last["test/episodes"],
        "seconds": round(seconds(outcome)),
    }
