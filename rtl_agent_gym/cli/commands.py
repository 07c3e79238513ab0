"""The commands by name; each is imported only when needed."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from .. import __version__

COMMANDS = {
    "doctor": "doctor_command",
    "run": "eval:run_command",
    "shell": "shell_command",
    "score": "score_command",
    "eval": "eval_command",
    "replay": "replay_command",
    "view": "view_command",
    "report": "view:report_command",
    "export": "export_command",
    "export-model": "export:export_model_command",
    "train": "train_command",
    "serve": "serve_command",
    "cluster": "cluster_app",
    "image": "image_app",
    "problems": "problems_app",
}
"""Each command is a function, or a `typer.Typer` with subcommands, in the module of its name or before the colon."""


class _Command(TyperCommand):
    """A command whose numbers must be finite: NaN passes the bounds of an option, and no option means infinity."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        for option in list[Any](self.params):
            value = ctx.params.get(option.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise typer.BadParameter(f"{value} is not a finite number.", ctx=ctx, param=option)
        return rest


def make_app(arguments: Sequence[str] = ()) -> typer.Typer:
    """The command line for these arguments: only the command that they name, or all if they name none.

    Importing all commands would take a second.
    """
    made = typer.Typer(
        name="rtl-agent-gym",
        help="Work on RTL problems with agents in Docker shells, scored by hidden tests.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    made.callback()(_options)
    for name in needed(arguments):
        *place, function = COMMANDS[name].split(":")
        module = importlib.import_module(f".{place[0] if place else name}", __package__)
        command = getattr(module, function)
        if isinstance(command, typer.Typer):
            made.add_typer(command, name=name)
        else:
            made.command(name, cls=getattr(module, "COMMAND_CLASS", _Command))(command)
    return made


def needed(arguments: Sequence[str]) -> list[str]:
    """The commands that these arguments need."""
    first = arguments[0] if arguments else ""
    if first == "--version":
        return []
    return [first] if first in COMMANDS else list(COMMANDS)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rtl-agent-gym {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    allow_weak_limits: Annotated[
        bool,
        typer.Option(
            "--allow-weak-limits",
            help="Also grade on a Docker host that cannot enforce the limits of sandboxes, as `doctor` reports. There, "
            "verdicts may depend on the load of the machine.",
        ),
    ] = False,
    sandbox: Annotated[
        Literal["auto", "docker", "podman", "namespaces", "apptainer"] | None,
        typer.Option(help="How this command makes sandboxes, as the variable RTL_GYM_SANDBOX says it."),
    ] = None,
) -> None:
    if sandbox:
        from ..sandboxes.choice import VARIABLE

        os.environ[VARIABLE] = sandbox
    if allow_weak_limits:
        from ..sandboxes.admission import WEAK_VARIABLE  # imports Docker's client, which not every command needs

        os.environ[WEAK_VARIABLE] = "1"
