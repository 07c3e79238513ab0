"""``rtl-agent-gym problems optimize`` and ``problems verify``: problems of making a design smaller or faster, and of
writing testbenches, checkers and assertions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..problems import Problem
from ..problems.rows import problem_row
from ..sources.derivation import Case, CaseT, KnownT, Options
from ..sources.optimization.derived import Measured, OptimizeOptions, WastefulCase
from ..sources.verification.derived import Findings, Kind, VerifyOptions
from ..visible import plural
from .options import (
    CacheOption,
    CategoriesOption,
    DifficultiesOption,
    FairOnlyOption,
    ProblemIdsOption,
    chosen_problems,
)
from .problems_mutants import check_out, progress_bar, work_is_kept, write_rows
from .show import print_left_out, stderr_console

if TYPE_CHECKING:
    from ..sources.making import Maker

CountOption = Annotated[
    int | None, typer.Option(min=1, max=1_000_000, help="How many problems; default: all that can be made.")
]
WorkersOption = Annotated[int, typer.Option(min=1, help="Designs to examine at the same time.")]


def optimize_command(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A source of problems, as for --problems.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The JSON Lines file to write.")],
    goal: Annotated[
        Literal["any", "area", "flops", "delay"],
        typer.Option(help="What is to become less; any: of each design what its waste costs most of."),
    ] = "any",
    count: CountOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw of wastes.")] = 0,
    ids: ProblemIdsOption = None,
    categories: CategoriesOption = None,
    difficulties: DifficultiesOption = None,
    fair_only: FairOnlyOption = False,
    workers: WorkersOption = 2,
    cache: CacheOption = True,
) -> None:
    """Write optimisation problems: a design is right and wasteful, and is to be made smaller or faster.

    Each problem has been verified: the waste costs at least 25 %, the design is proved to behave like the reference,
    the reference earns everything, and the wasteful design passes the hidden tests and gains nothing. Afterwards
    'SOURCE+ppa?goal=G&count=N&seed=S' names the same problems for every command, if no option but these was given.
    """
    from ..sources.optimization.making import OptimizationMaker

    problems = chosen_problems(source, ids, categories, difficulties, fair_only=fair_only)
    options = OptimizeOptions(goal=goal, count=count, seed=seed)

    def proof(case: WastefulCase, known: Measured) -> dict[str, Any]:
        return {
            "waste": case.waste,
            "original": known.original,
            "reference": known.reference,
            "equivalence": "proved",
            "graded": {"reference": {"passed": True, "quality": 1.0}, "original": {"quality": 0.0}},
        }

    _write_made(OptimizationMaker, source, problems, options, out, proof, workers, cache)


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
    count: CountOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw of mutants.")] = 0,
    mutants: Annotated[int, typer.Option(min=8, max=24, help="The most mutants of a problem.")] = 12,
    ids: ProblemIdsOption = None,
    categories: CategoriesOption = None,
    difficulties: DifficultiesOption = None,
    fair_only: FairOnlyOption = False,
    workers: WorkersOption = 2,
    cache: CacheOption = True,
) -> None:
    """Write verification problems: a design is right, and a bench is to be written that finds bugs in others.

    Each problem has been verified: its reference bench accepts the right designs and rejects at least 95 % of the
    mutants, which a simulation told from the right design before. Afterwards 'SOURCE+verify?kind=K&count=N&seed=S'
    names the same problems for every command, if no option but these and mutants was given.
    """
    from ..sources.verification.making import VerificationMaker

    problems = chosen_problems(source, ids, categories, difficulties, fair_only=fair_only)
    options = VerifyOptions(kind=kind, count=count, seed=seed, mutants=mutants)

    def proof(case: Case, known: Findings) -> dict[str, Any]:
        return {
            "mutants": len(known.mutants),
            "right_designs": 1 + known.renamed + bool(known.netlist),
            "reference": {"passed": True, "strength": known.verified[kind]},
        }

    _write_made(VerificationMaker, source, problems, options, out, proof, workers, cache)


def _write_made(
    maker_type: type[Maker[CaseT, Options, KnownT]],
    source: str,
    problems: list[Problem],
    options: Options,
    out: Path,
    proof: Callable[[CaseT, KnownT], dict[str, Any]],
    workers: int,
    cache: bool,
) -> None:
    """Write the problems made of the first designs that they can be made of.

    Raises:
        UsageError: There are fewer than are wanted, or none.
        SandboxError: The machine failed.
    """
    from ..sources.making import in_order

    rows: list[dict[str, Any]] = []
    left_out: list[str] = []
    wanted = options.count or len(problems)

    async def make_all() -> None:
        with work_is_kept(), progress_bar(stderr_console(), "problems", wanted) as progress:
            async with maker_type.open(workers=workers, cache=cache) as maker:

                async def make(case: CaseT) -> tuple[CaseT, Problem | None, KnownT]:
                    return case, *await maker.make(case, options)

                def is_enough(result: tuple[CaseT, Problem | None, KnownT]) -> bool:
                    case, problem, known = result
                    if problem is None:
                        left_out.append(f"{case.label}: {known.reason(options)}")
                    else:
                        found = {"source": case.problem.id, **proof(case, known), "image": known.image}
                        rows.append(problem_row(problem) | {"proof": found})
                    progress.update(progress.task_ids[0], completed=len(rows), total=max(wanted, len(rows)))
                    return len(rows) == options.count

                await in_order(maker.source.cases(problems, options, left_out), make, 2 * workers, is_enough)

    check_out(out, source)
    asyncio.run(make_all())
    print_left_out(left_out)
    maker_type.source.check_count(source, options, len(rows))
    write_rows(out, rows)
    typer.echo(f"{plural(len(rows), 'problem')} written to {out}")
