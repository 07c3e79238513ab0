"""``rtl-agent-gym problems optimize``: problems of making a design smaller or faster."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..errors import UsageError, most_telling
from ..problems import Problem
from ..problems.rows import problem_row
from ..sources.optimization.derived import Measured, OptimizeOptions, cases, too_few
from ..visible import plural
from .options import (
    CacheOption,
    CategoriesOption,
    DifficultiesOption,
    FairOnlyOption,
    ProblemIdsOption,
    chosen_problems,
)
from .problems_mutants import check_out, progress_bar, write_rows
from .show import print_left_out, stderr_console


def optimize_command(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A source of problems, as for --problems.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The JSON Lines file to write.")],
    goal: Annotated[
        Literal["any", "area", "flops", "delay"],
        typer.Option(help="What is to become less; any: of each design what its waste costs most of."),
    ] = "any",
    count: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="How many problems; default: all that can be made.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw of wastes.")] = 0,
    ids: ProblemIdsOption = None,
    categories: CategoriesOption = None,
    difficulties: DifficultiesOption = None,
    fair_only: FairOnlyOption = False,
    workers: Annotated[int, typer.Option(min=1, help="Designs to examine at the same time.")] = 2,
    cache: CacheOption = True,
) -> None:
    """Write optimisation problems: a design is right and wasteful, and is to be made smaller or faster.

    Each problem has been verified: the waste costs at least 25 %, the design is proved to behave like the reference,
    the reference earns everything, and the wasteful design passes the hidden tests and gains nothing. Afterwards
    'SOURCE+ppa?goal=G&count=N&seed=S' names the same problems for every command, if no option but these was given.
    """
    problems = chosen_problems(source, ids, categories, difficulties, fair_only=fair_only)
    check_out(out, source)
    options = OptimizeOptions(goal=goal, count=count, seed=seed)
    made = asyncio.run(_make_all(source, problems, options, workers, cache))
    write_rows(out, [problem_row(problem) | {"proof": _proof(problem, known)} for problem, known in made])
    typer.echo(f"{plural(len(made), 'problem')} written to {out}")


async def _make_all(
    source: str, problems: list[Problem], options: OptimizeOptions, workers: int, cache: bool
) -> list[tuple[Problem, Measured]]:
    from ..sources.optimization.making import optimization_maker

    left_out: list[str] = []
    made: list[tuple[Problem, Measured]] = []
    queue = cases(problems, options, left_out)
    wanted = options.count or len(problems)
    try:
        async with optimization_maker(workers=workers, cache=cache) as maker:
            with progress_bar(stderr_console(), "problems", wanted) as progress:
                while options.count is None or len(made) < options.count:
                    group = list(itertools.islice(queue, 2 * workers))
                    if not group:
                        break
                    try:
                        async with asyncio.TaskGroup() as tasks:
                            running = [tasks.create_task(maker.make(case, options)) for case in group]
                    except BaseExceptionGroup as error:
                        if (known := most_telling(error)) is None:
                            raise
                        raise known from error
                    for problem, found in (task.result() for task in running):
                        if problem is not None:
                            made.append((problem, found))
                    progress.update(progress.task_ids[0], completed=len(made), total=max(wanted, len(made)))
    except asyncio.CancelledError:  # by Ctrl-C
        note = "what was found out so far is kept: the same command continues from there"
        stderr_console().print(f"interrupted; {note}", style="yellow", soft_wrap=True)
        raise
    print_left_out(left_out)
    made = made[: options.count]
    if len(made) < (options.count or 1):
        raise UsageError(too_few(source, options.count or 1, len(made)))
    return made


def _proof(problem: Problem, known: Measured) -> dict[str, Any]:
    return {
        "source": known.problem_id,
        "waste": known.waste,
        "original": known.original,
        "reference": known.reference,
        "equivalence": "proved",
        "graded": {"reference": {"passed": True, "quality": 1.0}, "original": {"quality": 0.0}},
        "image": known.image,
    }
