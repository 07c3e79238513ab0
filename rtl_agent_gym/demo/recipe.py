"""Training with the shipped models where there is no service: the entry points of the scripts and the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..training import launch
from .shipped import SMALL


def train(given: Mapping[str, Any], *, rl: bool = False) -> launch.Outcome:
    """`launch.train` with the shipped models, which are the default without a service."""
    return launch.train(given, rl=rl, recipe=SMALL)


def main(arguments: Sequence[str] | None = None, *, rl: bool = False) -> int:
    """`launch.main` with the shipped models: the entry point of the scripts."""
    return launch.main(arguments, rl=rl, recipe=SMALL)
