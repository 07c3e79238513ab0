"""Options that several commands share."""

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
        help="Source of the problems: bundled, a .jsonl file or a folder of them, owner/name[:file] on the Hugging "
        "Face Hub, family:NAME (generated problems), verilog-eval:FOLDER, rtllm:FOLDER or notsotiny:FILE. "
        "SOURCE+mutants: debugging problems made of SOURCE's designs.",
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
FairOnlyOption = Annotated[
    bool,
    typer.Option(
        "--fair-only",
        help="Only rows of CVDP that a right design is known to pass and whose tests demand nothing unstated.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="End with one line of JSON on stdout; everything else goes to stderr.")
]
OpenOption = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]


def chosen_problems(
    source: str,
    ids: list[str] | None,
    categories: list[str] | None,
    difficulties: list[str] | None,
    *,
    fair_only: bool,
) -> list[Problem]:
    """The problems of a source that match the options; an empty list of values is no filter. Raises `UsageError`."""
    filters = {"ids": ids or None, "categories": categories or None, "difficulties": difficulties or None}
    return load_problems(source, rows="fair" if fair_only else "all", **filters)


def one_problem(source: str, problem_id: str | None) -> Problem:
    """The problem with this id, or without an id the only problem of the source.

    Raises:
        UsageError: There is no such problem, or no id was given and there are several.
    """
    problems = load_problems(source, ids=[problem_id] if problem_id is not None else None)
    if len(problems) == 1:
        return problems[0]
    raise UsageError(
        f"{source} holds {len(problems)} problems: choose one with --problem ID "
        f"(list them with: rtl-agent-gym problems list --problems {source})"
    )


def writable_folder(folder: Path, option: str) -> None:
    """Create a folder if it does not exist.

    Raises:
        UsageError: It cannot be created or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{option} {folder}: cannot be created: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{option} {folder}: cannot be written to")
