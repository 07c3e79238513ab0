"""``rtl-agent-gym train``: distillation, reinforcement learning and supervised training."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from ..demo.jobs import preview, train, train_sft
from ..errors import UsageError
from ..training.options import SftOptions, TrainOptions, describe_options, split_arguments
from .options import JsonOption, refuse_options_of_nodes


class TrainCommand(TyperCommand):
    """A command whose help also lists the training options, which are passed as arguments NAME=VALUE."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help, followed by the training options."""
        super().format_help(ctx, formatter)
        typer.echo(describe_options())


COMMAND_CLASS = TrainCommand


def train_command(
    context: typer.Context,
    recipe: Annotated[
        Literal["distill", "rl", "sft"],
        typer.Argument(help="distill: from a teacher. rl: from the reward alone. sft: imitate recorded episodes."),
    ] = "distill",
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="Options of the run; they are listed below.")
    ] = None,
    list_options: Annotated[bool, typer.Option("--options", help="Only list the options.")] = False,
    dry_run: Annotated[
        bool, typer.Option(help="Only show what the run would do and, on a service, its tokens and cost.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Train a model on problems, with live progress. The same command resumes the run.

    Without TINKER_API_KEY and base_url=, it trains a small model, which the package contains, on this machine.
    """
    if json_ and (list_options or dry_run):
        raise UsageError("--json is for a run that trains: leave out --json, or leave out --dry-run and --options")
    supervised, rl = recipe == "sft", recipe == "rl"
    if list_options:
        print(describe_options(kind=SftOptions if supervised else TrainOptions))
        return
    given = split_arguments(options or [])
    if given.get("ray_address"):
        refuse_options_of_nodes(context)
    if dry_run:
        print(preview(given, rl=rl, supervised=supervised))
        return
    outcome = train_sft(given) if supervised else train(given, rl=rl)
    if json_:
        print(outcome.summary_line())
