#!/usr/bin/env python
"""GRPO with TRL's own trainer: the model works in real shells, and hidden tests give the reward.

    .venv/bin/python examples/grpo_trl.py [--model Qwen/Qwen3-1.7B] [--problems bundled] [--rows all] [--group 8]
        [--max-turns 12] [--max-tokens 12000] [--steps 100] [--learning-rate 1e-6] [--settings FILE] [--out runs/grpo]

Everything except the environment, its dataset and the reward is TRL's. Other settings of `GRPOConfig`, such as
generation with vLLM, come from a YAML file: ``examples/trl`` has one for 8 GPUs.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # environments are an experimental feature of TRL

import yaml
from trl import GRPOConfig, GRPOTrainer

from rtl_agent_gym import EpisodeConfig
from rtl_agent_gym.integrations.trl import RTLEnvironment, hidden_tests, make_dataset
from rtl_agent_gym.problems import load_problems


def make_trainer(options: argparse.Namespace, kind: type[GRPOTrainer] = GRPOTrainer, **more: Any) -> GRPOTrainer:
    """The trainer.

    Args:
        options: See `read_options`; ``model`` may also be a loaded model, and ``problems`` a list.
        kind: The trainer's class.
        more: Settings that override these: ``processing_class`` of the trainer, and those of `GRPOConfig`.
    """
    problems = options.problems
    if isinstance(problems, str):
        problems = load_problems(problems, rows=options.rows)
    environment = partial(RTLEnvironment, problems, config=EpisodeConfig(max_turns=options.max_turns))
    tokenizer = more.pop("processing_class", None)
    settings = {
        "output_dir": options.out,
        "max_steps": options.steps,
        "learning_rate": options.learning_rate,
        "num_generations": options.group,
        "per_device_train_batch_size": options.group,  # this many episodes have a sandbox at the same time
        "max_tool_calling_iterations": options.max_turns,
        "max_completion_length": options.max_tokens,
        "logging_steps": 1,
        "report_to": [],
    }
    config = GRPOConfig(**settings | more)
    return kind(
        model=options.model,
        args=config,
        train_dataset=make_dataset(environment),
        environment_factory=environment,
        reward_funcs=[hidden_tests],
        processing_class=tokenizer,
    )


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="Qwen/Qwen3-1.7B", help="a model whose chat template declares tools")
    parser.add_argument("--problems", default="bundled", help="source of the problems, such as a JSON Lines file")
    parser.add_argument("--rows", default="all", choices=("all", "fair", "partial", "sound"), help="which rows of CVDP")
    parser.add_argument("--group", type=int, default=8, help="episodes of one problem in a step")
    parser.add_argument("--max-turns", type=int, default=12, help="turns of an episode")
    parser.add_argument("--max-tokens", type=int, default=12000, help="tokens of an episode, outputs included")
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps")
    parser.add_argument("--learning-rate", type=float, default=1e-6, help="learning rate")
    parser.add_argument("--settings", type=Path, help="YAML file of other settings of GRPOConfig")
    parser.add_argument("--out", default="runs/grpo", help="folder for checkpoints")
    return parser.parse_args()


if __name__ == "__main__":
    options = read_options()
    settings = yaml.safe_load(options.settings.read_text()) if options.settings else {}
    trainer = make_trainer(options, **settings)
    trainer.train()
    trainer.save_model()
