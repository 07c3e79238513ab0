"""The command line: parse, call, print.

Exit codes: 0 fine; 1 the work failed; 2 wrong usage or wrong data; 3 the machine failed; 130 Ctrl-C.
"""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from ..errors import RTLGymError, SandboxError, UsageError
from .doctor import doctor_command
from .eval import eval_command
from .export import export_command
from .image import image_app
from .problems import problems_app
from .replay import replay_command
from .report import report_command
from .run import run_command
from .score import score_command
from .shell import shell_command
from .train import train_command
from .view import view_command

app = typer.Typer(
    name="rtl-agent-gym",
    help="Work on RTL problems with agents in Docker shells, scored by hidden tests.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("doctor")(doctor_command)
app.command("run")(run_command)
app.command("shell")(shell_command)
app.command("score")(score_command)
app.command("eval")(eval_command)
app.command("replay")(replay_command)
app.command("view")(view_command)
app.command("report")(report_command)
app.command("export")(export_command)
app.command("train")(train_command)
app.add_typer(image_app, name="image")
app.add_typer(problems_app, name="problems")


def exit_code(error: RTLGymError) -> int:
    """What the process exits with for an error of ours."""
    if isinstance(error, SandboxError):
        return 3
    return 2 if isinstance(error, UsageError) else 1


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit. Errors of ours are one line on stderr, without a traceback."""
    try:
        app(arguments)  # prints usage errors and exits by itself, also on Ctrl-C
    except RTLGymError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {_plain(error)}", soft_wrap=True, highlight=False)
        sys.exit(exit_code(error))


def _plain(error: Exception) -> str:
    return str(error).replace("[", r"\[")
