"""Options that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ..episodes.rules import LONGEST_TIMEOUT
from ..errors import UsageError
from ..policies import POLICIES
from ..problems import Problem, load_problems
from ..scoring import PRESETS

ProblemsOption = Annotated[
    str, typer.Option("--problems", metavar="SOURCE", help="'bundled', a JSONL file, or a Hugging Face data set id.")
]
ProblemOption = Annotated[str | None, typer.Option("--problem", metavar="ID", help="The problem's id.")]
JsonOption = Annotated[bool, typer.Option("--json", help="End with one line of JSON on stdout.")]
RendererOption = Annotated[str, typer.Option("--renderer", metavar="NAME", help="The model dialect.")]
PolicyOption = Annotated[str, typer.Option(help=f"Who acts: {', '.join(POLICIES)}.")]
WeightsOption = Annotated[str, typer.Option(metavar="PRESET", help=f"What is paid for: {', '.join(PRESETS)}.")]

# The rules of an episode.
MaxTurnsOption = Annotated[int, typer.Option(min=1, help="Turns before an episode is cut off.")]
CommandTimeoutOption = Annotated[float, typer.Option(min=0.1, max=LONGEST_TIMEOUT, help="Seconds one command may run.")]
FeedbackOption = Annotated[
    int, typer.Option(min=0, help="How often the agent may submit and is told which checks fail; 0 for never.")
]

# How a model is asked; see `policies.ModelOptions`.
TemperatureOption = Annotated[float, typer.Option(min=0.0, help="Sampling temperature; model policies only.")]
TopPOption = Annotated[float, typer.Option(help="Share of probability to sample from; model policies only.")]
MaxTokensOption = Annotated[int, typer.Option(min=1, help="Most tokens of one turn; model policies only.")]
MaxContextOption = Annotated[int, typer.Option(min=1, help="Tokens that the model can read; tinker and local only.")]
BaseUrlOption = Annotated[str | None, typer.Option(help="The model service's address, http://HOST:PORT/v1.")]
ApiKeyOption = Annotated[
    str | None, typer.Option(help="The model service's key; better in the environment variable of its provider.")
]
ToolsOption = Annotated[
    bool, typer.Option(help="Declare the shell as a tool, or leave calls to the model's text; chat only.")
]


def one_problem(source: str, problem_id: str | None) -> Problem:
    """The one problem meant: the one named, or the only one there is.

    Raises:
        UsageError: None was named and there are several, or there is none of this id.
    """
    problems = load_problems(source, ids=[problem_id] if problem_id is not None else None)
    if len(problems) == 1:
        return problems[0]
    raise UsageError(
        f"{source} holds {len(problems)} problems: name one with --problem ID "
        f"(list them with: rtl-agent-gym problems list --problems {source})"
    )


def writable_folder(folder: Path, option: str) -> None:
    """Make a folder that is going to be written to.

    Raises:
        UsageError: It cannot be made, or nothing can be written into it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{option} {folder}: cannot be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{option} {folder}: cannot be written to")
