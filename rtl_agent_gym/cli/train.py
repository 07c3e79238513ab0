"""``rtl-agent-gym train``: distillation and reinforcement learning."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from ..training.options import split_arguments
from ..training.run import describe_options, summary_line, train
from .options import JsonOption


class Recipe(StrEnum):
    """What drives the learning."""

    distill = "distill"
    rl = "rl"


def train_command(
    recipe: Annotated[
        Recipe, typer.Argument(help="distill: from a teacher. rl: from the reward alone.")
    ] = Recipe.distill,
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="Options; --options lists them.")
    ] = None,
    list_options: Annotated[bool, typer.Option("--options", help="List the options with their defaults.")] = False,
    json_: JsonOption = False,
) -> None:
    """Train a model on problems, with live progress; the same command resumes.

    Without TINKER_API_KEY and base_url= it trains a tiny model on this machine.
    """
    if list_options:
        print(describe_options())
        return
    outcome = train(split_arguments(options or []), rl=recipe is Recipe.rl)
    if json_:
        print(summary_line(outcome))
