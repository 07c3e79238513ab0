"""The options that several commands share, each declared once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from ..problems import Problem, load_problems

ProblemsOption = Annotated[
    str,
    typer.Option(
        "--problems",
        metavar="SOURCE",
        help="Source of the problems: bundled, a .jsonl file or a folder of them, or owner/name[:file] on the Hugging "
        "Face Hub.",
    ),
]
ProblemOption = Annotated[
    str | None, typer.Option("--problem", metavar="ID", help="Id of the problem; not needed where there is only one.")
]
ProblemIdsOption = Annotated[
    list[str] | None, typer.Option("--problem", metavar="ID", help="Only the problem with this id; repeatable.")
]
CategoriesOption = Annotated[
    list[str] | None,
    typer.Option("--category", metavar="CID", help="Only problems of this category, such as 3 or cid003; repeatable."),
]
DifficultiesOption = Annotated[
    list[str] | None, typer.Option("--difficulty", help="Only easy, medium or hard problems; repeatable.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="End with one line of JSON on stdout; everything else goes to stderr.")
]
OpenOption = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]


def one_problem(source: str, problem_id: str | None) -> Problem:
    """The problem of a source that is named, or the only one that it has.

    Raises:
        UsageError: None was named and there are several, or there is none with this id.
    """
    problems = load_problems(source, ids=[problem_id] if problem_id is not None else None)
    if len(problems) == 1:
        return problems[0]
    raise UsageError(
        f"{source} holds {len(problems)} problems: name one with --problem ID "
        f"(list them with: rtl-agent-gym problems list --problems {source})"
    )


def writable_folder(folder: Path, option: str) -> None:
    """Make a folder that will be written to.

    Raises:
        UsageError: It cannot be made, or nothing can be written into it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{option} {folder}: cannot be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{option} {folder}: cannot be written to")
