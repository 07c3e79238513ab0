"""``rtl-agent-gym problems export``: problems in the formats of other frameworks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ..errors import UsageError
from ..problems import load_problems
from ..visible import plural, visible
from .options import CategoriesOption, DifficultiesOption, ProblemIdsOption, writable_folder


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
) -> None:
    """Write problems as tasks of another framework. Exits 1 when none of them can be written."""
    from ..integrations.harbor.tasks import write_task
    from ..sandboxes.image import image_tag
    from ..scoring.scorable import why_unscorable

    problems = load_problems(source, ids=ids or None, categories=categories or None, difficulties=difficulties or None)
    writable_folder(out, "--out")
    written = 0
    for problem in problems:
        if (out / problem.id).exists():
            raise UsageError(f"--out {out}: {problem.id} is there already; remove it, or choose another folder")
    for problem in problems:
        try:
            if reason := why_unscorable(problem):
                raise UsageError(f"{problem.id}: {reason}")
            write_task(problem, out, image or image_tag())
            written += 1
        except UsageError as error:
            typer.echo(f"left out: {visible(str(error))}", err=True)
    typer.echo(f"{plural(written, 'task')} of {format} written to {out}")
    raise typer.Exit(0 if written else 1)
