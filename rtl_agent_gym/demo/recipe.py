"""Training with the shipped models where there is no service: the entry points of the scripts and the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..cluster import runtime_at
from ..training import launch
from ..training.sft.plan import plan_sft
from .shipped import SMALL
from .smollm import SMOLLM

RECIPES = (SMALL, SMOLLM)
"""The models that can be built on this machine; without a service, the first is the default."""


def train(given: Mapping[str, Any], *, rl: bool = False) -> launch.Outcome:
    """`launch.train` with the shipped models, which are the default without a service."""
    return launch.train(given, rl=rl, recipes=RECIPES, clusters=runtime_at)


def train_sft(given: Mapping[str, Any]) -> launch.Outcome:
    """Supervised training: `launch.launch` with the plan of `plan_sft`, and the same models."""
    return launch.launch(plan_sft(given, recipes=RECIPES), clusters=runtime_at)


def main(arguments: Sequence[str] | None = None, *, rl: bool = False) -> int:
    """`launch.main` with the shipped models: the entry point of the scripts."""
    return launch.main(arguments, rl=rl, recipes=RECIPES, clusters=runtime_at)
