"""Supervised training on reference solutions, or on the student's own episodes that passed (rejection sampling)."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import Any

from learning_options import Run, changed, evaluate_all, given, local_config, summary
from pretrained import demonstrations

from rtl_agent_gym.demo.jobs import train_sft
from rtl_agent_gym.demo.shipped import SMALL, shipped
from rtl_agent_gym.training.options import SftOptions

SUPERVISED = {
    "sft": Run("supervised training on transcripts that write the reference, with as many tokens"),
    "rejection": Run("rejection sampling: supervised training on the student's episodes that passed, six times each"),
}


def supervised(name: str, seed: int, sizes: argparse.Namespace) -> dict[str, Any]:
    """Train on one transcript of each training problem, or on the student's episodes on them that passed."""
    begun, folder = time.monotonic(), sizes.folder / f"{name}-{seed}"
    job, epochs = given({}, seed, sizes), 1 if name == "sft" else 6
    if name == "sft":
        episodes = sizes.folder / f"{name}-{seed}.jsonl"
        episodes.parent.mkdir(parents=True, exist_ok=True)
        episodes.write_text("".join(json.dumps(row) + "\n" for row in demonstrations(job["cvdp_jsonl_path"])))
    else:
        episodes = _own_episodes(job["cvdp_jsonl_path"], seed, sizes.folder / f"{name}-{seed}-episodes")
    prepared = time.monotonic() - begun
    options = {"episodes": str(episodes), "epochs": epochs, "batch_size": job["batch_size"], "learning_rate": 7e-4}
    common = {option: job[option] for option in ("seed", "held_out", "eval_every", "save_every")}
    local = {"engine": "local", "student_model": SMALL.name, "lr_schedule": "linear", "log_path": str(folder)}
    outcome = train_sft({**options, **common, **changed(sizes, SftOptions), **local})
    tokens = sum(row["sft/tokens"] for row in outcome.metrics)
    found = summary(outcome, seed)
    return found | {"tokens": tokens, "seconds": found["seconds"] + round(prepared)}


def _own_episodes(problems: str, seed: int, folder: Path) -> Path:
    asyncio.run(evaluate_all(local_config(shipped("student"), problems, folder, 6, seed=seed)))
    return folder
