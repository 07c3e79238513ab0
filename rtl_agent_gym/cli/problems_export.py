"""``rtl-agent-gym problems export``: problems in the formats of other frameworks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ..errors import UsageError
from ..problems import Problem
from ..visible import plural, visible
from .options import (
    CategoriesOption,
    DifficultiesOption,
    FairOnlyOption,
    ProblemIdsOption,
    chosen_problems,
    writable_folder,
)


def export_command(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A source of problems, as for --problems; 'bundled' for ours.")
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the tasks, each in one of its own.")],
    format: Annotated[Literal["harbor"], typer.Option(help="harbor: task folders of Harbor.")] = "harbor",
    image: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The simulation image, where it is run; by default its name on this machine."
        ),
    ] = None,
    ids: ProblemIdsOption = None,
    categories: CategoriesOption = None,
    difficulties: DifficultiesOption = None,
    fair_only: FairOnlyOption = False,
) -> None:
    """Write problems as tasks of another framework. Exits 1 when none of them can be written."""
    from ..integrations.harbor.tasks import write_task
    from ..sandboxes.image import image_tag
    from ..scoring.scorable import why_unscorable

    problems = chosen_problems(source, ids, categories, difficulties, fair_only=fair_only)
    writable_folder(out, "--out")
    written = 0
    for problem in problems:
        if (out / problem.id).exists():
            raise UsageError(f"--out {out}: {problem.id} is there already; remove it, or choose another folder")
    for problem in problems:
        try:
            if reason := why_unscorable(problem, texts=False) or heavy_reason(problem):
                raise UsageError(f"{problem.id}: {reason}")
            write_task(problem, out, image or image_tag())
            written += 1
        except UsageError as error:
            typer.echo(f"left out: {visible(str(error))}", err=True)
    typer.echo(f"{plural(written, 'task')} of {format} written to {out}")
    raise typer.Exit(0 if written else 1)


def heavy_reason(problem: Problem) -> str | None:
    """Why a heavy row is not exported; None for others."""
    return "a heavy row starts from a repository, which a task does not hold" if problem.checkout else None
