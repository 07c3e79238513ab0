"""Supervised training on a teacher's episodes, or on the student's own that passed (rejection sampling)."""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any

from learning_options import Run, given, summary

from rtl_agent_gym import evaluate
from rtl_agent_gym.demo.family_episode import RENDERER, SYSTEM_PROMPT
from rtl_agent_gym.demo.recipe import train_sft
from rtl_agent_gym.demo.shipped import SMALL, shipped
from rtl_agent_gym.episodes.episode import EpisodeConfig
from rtl_agent_gym.evaluation import EvaluationConfig
from rtl_agent_gym.policies import ModelOptions

SUPERVISED = {
    "sft": Run("supervised training on the teacher's episodes, with as many tokens"),
    "rejection": Run("rejection sampling: supervised training on the student's episodes that passed, of as many"),
}


def supervised(name: str, seed: int, sizes: argparse.Namespace) -> dict[str, Any]:
    """Record episodes on the training problems, and train on those that passed."""
    begun, folder = time.monotonic(), sizes.folder / f"{name}-{seed}"
    model, epochs = ("teacher", 1) if name == "sft" else ("student", 6)
    job = given({}, seed, sizes)
    config = EvaluationConfig(
        problems=job["cvdp_jsonl_path"],
        policy=f"local:{shipped(model)}",
        renderer=RENDERER,
        model=ModelOptions(max_tokens=SMALL.defaults["max_tokens"], max_context=1000),
        episode=EpisodeConfig(system_prompt=SYSTEM_PROMPT, max_turns=6),
        seed=seed,
        folder=sizes.folder / f"{name}-{seed}-episodes",
    )
    asyncio.run(evaluate(config))
    options = {"episodes": str(config.folder), "epochs": epochs, "batch_size": job["batch_size"], "learning_rate": 7e-4}
    common = {option: job[option] for option in ("seed", "held_out", "eval_every", "save_every")}
    outcome = train_sft({**options, **common, "lr_schedule": "linear", "log_path": str(folder)})
    tokens = sum(row["sft/tokens"] for row in outcome.metrics)
    return summary(outcome, seed) | {"tokens": tokens, "seconds": round(time.monotonic() - begun)}
