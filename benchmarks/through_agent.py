"""The runs whose episodes mini-swe-agent plays, with the student as its model.

`scripts/make_agent_models.py` makes the models. Problems, options and numbers of steps are those of the job `family`.
"""

from __future__ import annotations

import argparse
from typing import Any

from learning_options import REWARD, Run, summary
from spelled import made_options

from research.agents import AGENT
from rtl_agent_gym.demo.jobs import train

AGENTS = {
    "agent-following": Run("distillation through mini-swe-agent"),
    "agent-reward": Run("the reward alone, through mini-swe-agent", REWARD),
    "agent-permuted": Run(
        "control: rewards permuted between problems, through mini-swe-agent", {**REWARD, "control": "permuted_rewards"}
    ),
    "agent-negated": Run("control: the KL with the opposite sign, through mini-swe-agent", {"control": "negated_kl"}),
}
"""The runs by their name on the command line."""


def through_agent(name: str, seed: int, sizes: argparse.Namespace) -> dict[str, Any]:
    """Do or continue a run, and return its result."""
    options = made_options("make_agent_models", AGENTS[name], seed, sizes)
    outcome = train(options | {"agent": AGENT, "log_path": str(sizes.folder / f"{name}-{seed}")})
    rows = outcome.metrics
    return summary(outcome, seed) | {
        "curve": [round(row["pass_rate"], 3) for row in rows if "pass_rate" in row],
        "streams": sum(row["tokens/streams"] for row in rows if "tokens/streams" in row) / len(rows),
    }
