"""A pretrained model: a warm start on transcripts of a family, then distillation from itself with the reference."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from learning_options import SELF, changed, final_weights, summary

from rtl_agent_gym.demo.jobs import train, train_sft
from rtl_agent_gym.demo.smollm import SMOLLM, WARM_START_EPISODES, demonstrations
from rtl_agent_gym.training.options import SftOptions
from rtl_agent_gym.training.run_folder import RunFolder

REFERENCES = 0.3
"""Share of the transcripts with a reference solution in the prompt: the model will be its own teacher."""
WARM_START = {"batch_size": 4, "learning_rate": 2e-4, "warmup_steps": 5, "lr_schedule": "linear", "resume_every": 30}


def pretrained(name: str, seed: int, sizes: argparse.Namespace) -> dict[str, Any]:
    """Train, or do what is left of it: ``sft`` is the warm start, ``self`` the distillation after it."""
    begun, start = time.monotonic(), sizes.folder / f"smollm2-sft-{seed}"
    folder = sizes.folder / f"smollm2-{name}-{seed}"
    shared = {option: SMOLLM.defaults[option] for option in ("local_dtype", "local_batch", "local_batch_tokens")}
    shared |= {
        "engine": "local",
        "student_model": SMOLLM.name,
        "seed": seed,
        "held_out": f"family:registers?count={sizes.held_out}&seed={seed + 1}&split=combinations",
        "eval_every": 0,
        "save_every": 0,
        "log_path": str(folder),
    }
    if name == "sft":
        episodes = sizes.folder / f"smollm2-{seed}.jsonl"
        episodes.parent.mkdir(parents=True, exist_ok=True)
        source = f"family:registers?count={WARM_START_EPISODES}&seed={seed + 101}&split=train"
        rows = demonstrations(source, references=REFERENCES, seed=seed)
        episodes.write_text("".join(json.dumps(row) + "\n" for row in rows))
        outcome = train_sft(shared | WARM_START | changed(sizes, SftOptions) | {"episodes": str(episodes)})
    else:
        pretrained("sft", seed, sizes)  # goes on with it, if it is not at its end
        checkpoint = RunFolder(start).checkpoints()[-1]["state_path"]
        options = {"cvdp_jsonl_path": f"family:registers?count=200&seed={seed + 1}&split=train"}
        outcome = train(shared | options | SELF | changed(sizes) | {"load_checkpoint_path": checkpoint})
    return summary(outcome, seed) | {
        "weights": str(final_weights(folder)),
        "curve": [round(row["pass_rate"], 3) for row in outcome.metrics if "pass_rate" in row],
        "seconds": round(time.monotonic() - begun),
    }


PRETRAINED = {
    "sft": "a warm start on transcripts",
    "self": "then distillation from itself with the reference solution in the prompt",
}
