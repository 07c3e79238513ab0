"""The command-line application: its commands, each imported only when needed, and its exit codes.

Each error of this package becomes a single line on stderr and an exit code.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import inspect
import io
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand

from .. import __version__
from ..engines.threads import discard_broken_output
from ..errors import exit_code, leaves, most_telling
from ..options import SandboxKind
from ..starting import INTERRUPTED
from ..visible import visible

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
"""The function or `typer.Typer` of each command, as ``module:name``; by default the module has the command's name."""


class _Command(TyperCommand):
    """A command whose numbers must be finite, and whose paths must not be empty and may begin with ``~``.

    NaN would pass the bounds of an option, and no option allows infinity. An empty path, such as that of an unset
    variable, would be the current folder. A shell does not expand ``~`` in ``--option=~/x``.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        empty = {flag for flag, value in pairwise(args) if not value} | {word[:-1] for word in args if word[-1:] == "="}
        rest = super().parse_args(ctx, args)
        for option in list[Any](self.params):
            value = ctx.params.get(option.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise typer.BadParameter(f"{value} is not a finite number.", ctx=ctx, param=option)
            if isinstance(value, Path):
                from ..problems.paths import expand_home  # imports all of `problems`, which not every command needs

                if not empty.isdisjoint(option.opts):
                    raise typer.BadParameter("the path is empty.", ctx=ctx, param=option)
                ctx.params[option.name] = expand_home(value)
        return rest


def make_app(arguments: Sequence[str] = ()) -> typer.Typer:
    """Create the application with only the command that the arguments name, or with all commands if they name none.

    Importing all commands would take a second.
    """
    made = typer.Typer(
        name="rtl-agent-gym",
        help="Let agents work on RTL problems in sandboxed shells, scored by hidden tests.",
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
            for each in command.registered_commands:
                each.cls, each.help = _Command, _help(each.callback)
            made.add_typer(command, name=name)
        else:
            made.command(name, cls=getattr(module, "COMMAND_CLASS", _Command), help=_help(command))(command)
    return made


def _help(command: object) -> str:
    """The docstring with one line a paragraph: the terminal's width alone breaks lines."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(command) or "")


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
            help="Grade even on a Docker host that cannot enforce the limits of sandboxes (see `doctor`). Verdicts may "
            "then depend on the machine's load.",
        ),
    ] = False,
    sandbox: Annotated[
        SandboxKind | None,
        typer.Option(help="Kind of sandbox for this command; overrides the variable RTL_GYM_SANDBOX."),
    ] = None,
) -> None:
    if sandbox:
        from ..sandboxes.choice import VARIABLE

        os.environ[VARIABLE] = sandbox
    if allow_weak_limits:
        from ..sandboxes.admission import WEAK_VARIABLE  # imports Docker's client, which not every command needs

        os.environ[WEAK_VARIABLE] = "1"


FAILED, WRONG_USAGE, MACHINE_FAILED = 1, 2, 3

NARROWEST = 40
"""A narrower terminal is treated as if it had this many columns."""

_MACHINE_ERRORS = {
    errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC,
}  # fmt: skip
"""Errors of the machine when anything is written; a traceback would not help."""

_PATH_ERRORS = {errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG, errno.EPERM, errno.EROFS}
"""Errors caused by paths that the user has given."""


def run_to_exit_code(app: Callable[..., Any], arguments: Sequence[str]) -> int:
    """Call the application and return its exit code. Prints errors of this package, also in groups, as one line.

    Raises:
        BaseException: Any other error: its traceback is needed for a bug report.
    """
    _prepare_streams()
    try:
        code = _call(app, arguments)
        sys.stdout.flush()  # here, since an error at the interpreter's exit could not be reported
    except Exception as error:
        code = _report(error)
    discard_broken_output()
    return code


def _call(app: Callable[..., Any], arguments: Sequence[str]) -> int:
    try:
        app(list(arguments))  # prints usage errors itself and raises SystemExit, also on Ctrl-C
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        raise
    except BaseExceptionGroup as group:
        if any(isinstance(part, KeyboardInterrupt) for part in leaves(group)):
            return INTERRUPTED
        raise
    return 0


def _report(error: Exception) -> int:
    """Print an error as one line and return the exit code. Raises `error` itself if it is unexpected."""
    known = most_telling(error)
    if known is not None:
        _print_error(str(known))
        return exit_code(known)
    refused = next((part for part in leaves(error) if isinstance(part, OSError)), None)
    if isinstance(refused, BrokenPipeError) and refused.filename is None:
        return FAILED  # the reader of the pipe, such as head, has ended
    if refused is not None and refused.errno in _PATH_ERRORS and refused.filename is not None:
        _print_error(f"{os.fsdecode(refused.filename)}: {refused.strerror}")
        return WRONG_USAGE
    if refused is None or refused.errno not in _MACHINE_ERRORS:
        raise error
    at = f"{refused.filename}: " if refused.filename is not None else "the output cannot be written: "
    _print_error(f"{at}{refused.strerror}")
    return MACHINE_FAILED


def _print_error(message: str) -> None:
    line = Text.assemble(("error:", "bold red"), " ", visible(message))
    with contextlib.suppress(OSError):
        Console(stderr=True).print(line, soft_wrap=True, highlight=False)


def _prepare_streams() -> None:
    """Open closed standard streams, and make sure that each can write any text.

    A closed stream is opened on /dev/null; otherwise the next file or socket would get its number. Characters that a
    stream's encoding lacks are written as escape codes.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - until the process ends
    if shutil.get_terminal_size().columns < NARROWEST:
        os.environ["COLUMNS"] = str(NARROWEST)  # wrapped text can be read, truncated text cannot
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
