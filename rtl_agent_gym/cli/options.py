"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import UsageError
from ..problems import Problem, load_problems

ProblemsOption = Annotated[
    str, typer.Option("--problems", metavar="SOURCE", help="'bundled', a JSONL file, or a Hugging Face data set id.")
]
ProblemOption = Annotated[str | None, typer.Option("--problem", metavar="ID", help="The problem's id.")]
JsonOption = Annotated[bool, typer.Option("--json", help="End with one line of JSON on stdout.")]
RendererOption = Annotated[str, typer.Option("--renderer", metavar="NAME", help="The model dialect.")]


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
