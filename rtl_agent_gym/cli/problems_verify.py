"""``rtl-agent-gym problems verify``: problems of writing testbenches, checkers and assertions."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError, most_telling
from ..problems import Problem
from ..problems.rows import problem_row
from ..sources.verification.derived import Kind, VerifyOptions, cases, too_few
from ..sources.verification.findings import Findings, FindingsStore
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

if TYPE_CHECKING:
    from ..sources.verification.making import VerificationMaker


def verify_command(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A source of problems, as for --problems.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The JSON Lines file to write.")],
    kind: Annotated[
        Kind,
        typer.Option(
            help="What is to be written: stimulus: a whole testbench; checker: a checker beside given stimuli; "
            "assertions: immediate assertions for hidden stimuli."
        ),
    ] = "stimulus",
    count: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="How many problems; default: all that can be made.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw of mutants.")] = 0,
    mutants: Annotated[int, typer.Option(min=8, max=24, help="The most mutants of a problem.")] = 12,
    ids: ProblemIdsOption = None,
    categories: CategoriesOption = None,
    difficulties: DifficultiesOption = None,
    fair_only: FairOnlyOption = False,
    workers: Annotated[int, typer.Option(min=1, help="Designs to examine at the same time.")] = 2,
    cache: CacheOption = True,
) -> None:
    """Write verification problems: a design is right, and a bench is to be written that finds bugs in others.

    Each problem has been verified: its reference bench accepts the right designs and rejects at least 95 % of the
    mutants, which a simulation told from the right design before. Afterwards 'SOURCE+verify?kind=K&count=N&seed=S'
    names the same problems for every command, if no option but these and mutants was given.
    """
    problems = chosen_problems(source, ids, categories, difficulties, fair_only=fair_only)
    check_out(out, source)
    options = VerifyOptions(kind=kind, count=count, seed=seed, mutants=mutants)
    made = asyncio.run(_make_all(source, problems, options, workers, cache))
    write_rows(out, [problem_row(problem) | {"proof": _proof(found, options)} for problem, found in made])
    typer.echo(f"{plural(len(made), 'problem')} written to {out}")


async def _make_all(
    source: str, problems: list[Problem], options: VerifyOptions, workers: int, cache: bool
) -> list[tuple[Problem, Findings]]:
    from ..sources.verification.making import verification_maker

    left_out: list[str] = []
    made: list[tuple[Problem, Findings]] = []
    queue = cases(problems, options, left_out)
    wanted = options.count or len(problems)
    try:
        async with verification_maker(workers=workers, store=FindingsStore(), cache=cache) as maker:
            with progress_bar(stderr_console(), "problems", wanted) as progress:
                while len(made) < wanted:
                    group = list(itertools.islice(queue, min(wanted - len(made), 8 * workers)))
                    if not group:
                        break
                    for problem, found in await _make_group(maker, group, options):
                        if problem is not None:
                            made.append((problem, found))
                        else:
                            left_out.append(f"{found.problem_id}: {_why(found, options)}")
                    progress.update(progress.task_ids[0], completed=len(made))
    except asyncio.CancelledError:  # by Ctrl-C
        note = "what was found out so far is kept: the same command continues from there"
        stderr_console().print(f"interrupted; {note}", style="yellow", soft_wrap=True)
        raise
    print_left_out(left_out)
    if len(made) < (options.count or 1):
        raise UsageError(too_few(source, options.count or 1, len(made)))
    return made


async def _make_group(
    maker: VerificationMaker, group: list[Any], options: VerifyOptions
) -> list[tuple[Problem | None, Findings]]:
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(maker.make(case, options)) for case in group]
    except BaseExceptionGroup as error:
        if (known := most_telling(error)) is None:
            raise
        raise known from error
    return [task.result() for task in running]


def _why(found: Findings, options: VerifyOptions) -> str:
    return found.fault or f"its reference rejects {found.strength[options.kind]:.0%} of the mutants, 95 % are needed"


def _proof(found: Findings, options: VerifyOptions) -> dict[str, Any]:
    return {
        "source": found.problem_id,
        "mutants": len(found.mutants),
        "right_designs": 1 + found.renamed + bool(found.netlist),
        "reference": {"passed": True, "strength": found.strength[options.kind]},
        "image": found.image,
    }
