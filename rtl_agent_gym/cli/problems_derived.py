"""``rtl-agent-gym problems strength``, ``mutate``, ``optimize``, ``verify``: strength of tests, derived problems."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ..errors import UsageError, writing
from ..problems import Problem
from ..problems.paths import expand_home
from ..problems.registry import split_whole
from ..problems.rows import problem_row
from ..sources.derivation import Case, CaseT, KnownT, Options
from ..sources.mutants.derived import MutantOptions, derived_problem, enough_candidates, too_few, with_design
from ..sources.optimization.derived import Measured, OptimizeOptions, WastefulCase
from ..sources.verification.derived import Findings, VerifyOptions
from ..visible import plural
from .options import (
    CacheOption,
    JsonOption,
    ProblemsOption,
    option,
    options_as,
    parameters_of,
    with_problems,
    writable_folder,
)
from .show import (
    print_diff,
    print_left_out,
    print_line,
    progress_bar,
    refuse_source,
    stderr_console,
    table_of_figures,
)

if TYPE_CHECKING:
    from ..sources.making import Maker
    from ..sources.mutants.grading import Count, GradedMutant, MutantGrader, Strength

_MEANING = {
    "differs": "a sequence of inputs distinguishes it from the reference",
    "bounded": "no difference within {steps} steps",
    "unknown": "not known whether it is equivalent",
}

DesignsOption = Annotated[
    Path | None,
    typer.Option(
        "--designs",
        metavar="DIR",
        help="Correct designs of yours, for problems without a reference solution: DIR/ID/rtl/….",
    ),
]
WorkersOption = Annotated[int, typer.Option(min=1, help="Mutants or designs to examine at the same time.")]
SourceArgument = Annotated[str, typer.Argument(metavar="SOURCE", help="A source of problems, as for --problems.")]
OutOption = Annotated[Path, typer.Option(metavar="FILE", help="The JSON Lines file to write.")]


@with_problems
def strength_command(
    problems: list[Problem],
    source: ProblemsOption = "bundled",
    limit: Annotated[int, typer.Option(min=0, help="Mutants to grade per problem; 0: all of them.")] = 24,
    seed: Annotated[int, option(MutantOptions, "seed")] = 0,
    designs: DesignsOption = None,
    workers: WorkersOption = 2,
    cache: CacheOption = True,
    json_: JsonOption = False,
) -> None:
    """Measure how many small bugs the hidden tests of a problem detect.

    Each mutant is the reference solution with one small change. The strength is the share that the tests reject, of
    those that compile and that Yosys does not prove equivalent to the reference. Accepted ones are shown as diffs.
    """
    problems = _with_designs(problems, designs)
    if not any(problem.golden for problem in problems):
        raise UsageError(f"{source}: none of these problems has a reference solution; give designs with --designs DIR")
    console = Console(stderr=json_, highlight=False)

    async def measure(grader: MutantGrader) -> list[Strength]:
        from ..sources.mutants.grading import measure_strength

        found = []
        with progress_bar(console, "problems", len(problems)) as progress:
            for problem in problems:
                try:
                    found.append(await measure_strength(problem, grader, limit=limit or None, seed=seed))
                except UsageError as error:  # no reference solution, or its own tests reject it
                    if len(problems) == 1:
                        raise
                    print_line(console, f"left out: {error}", "yellow")
                else:
                    print_strength(console, found[-1])
                progress.advance(progress.task_ids[0])
        return found

    found = asyncio.run(_with_grader(measure, workers, cache))
    if json_:
        rows = [strength.model_dump(mode="json") | {"strength": strength.total.rate} for strength in found]
        typer.echo(json.dumps(rows))


@with_problems
@options_as("options", MutantOptions, parameters_of(MutantOptions))
def mutate_command(
    problems: list[Problem],
    options: MutantOptions,
    source: SourceArgument,
    out: OutOption,
    designs: DesignsOption = None,
    workers: WorkersOption = 2,
    cache: CacheOption = True,
) -> None:
    """Write debugging problems: correct designs of a source with one small bug each.

    Each problem has been verified: the hidden tests accept the reference solution and reject the mutant. The rows are
    in CVDP's agentic format, with the evidence in the field `proof`. 'SOURCE+mutants?count=N&seed=S&hint=H' then names
    the same problems for every command, unless problems were selected or --designs was given.
    """
    problems = _with_designs(problems, designs)
    check_out(out, source)
    count = options.count

    async def make(grader: MutantGrader) -> list[GradedMutant]:
        from ..sources.making import in_order

        killed: list[GradedMutant] = []

        def is_enough(graded: GradedMutant) -> bool:
            if graded.verdict.outcome == "killed":
                killed.append(graded)
            progress.update(progress.task_ids[0], completed=len(killed))
            return len(killed) == count

        try:
            with progress_bar(stderr_console(), "problems", count) as progress:
                await in_order(enough_candidates(source, problems, options), grader.grade, 2 * workers, is_enough)
        finally:
            print_left_out([*grader.rejected.values()])
        if len(killed) < count:
            raise UsageError(too_few(source, count, len(killed)))
        return killed

    made = asyncio.run(_with_grader(make, workers, cache))
    write_rows(out, [_mutant_row(graded, options) for graded in made])
    sources = len({graded.candidate.problem.id for graded in made})
    typer.echo(f"{plural(len(made), 'problem')} made of {plural(sources, 'design')} written to {out}", err=True)


async def _with_grader(work: Any, workers: int, cache: bool) -> Any:
    from ..sources.mutants.grading import mutant_grader

    with work_is_kept():
        async with mutant_grader(workers=workers, cache=cache) as grader:
            return await work(grader)


@contextmanager
def work_is_kept() -> Iterator[None]:
    """On Ctrl-C, print that no work is lost."""
    try:
        yield
    except asyncio.CancelledError:
        note = "the results so far are saved; the same command continues from there"
        print_line(stderr_console(), f"interrupted; {note}", "yellow")
        raise


def _with_designs(problems: list[Problem], designs: Path | None) -> list[Problem]:
    """The problems with the designs of a folder. Raises `UsageError` if none fits, and like `with_design`."""
    if designs is None:
        return problems
    found = [with_design(problem, designs) for problem in problems]
    if found and not any(new is not old for new, old in zip(found, problems, strict=True)):
        short = found[0].id.removeprefix("cvdp_agentic_")
        raise UsageError(f"--designs {designs}: contains no folder for any of these problems, such as {short}/rtl/")
    return found


def _mutant_row(graded: GradedMutant, options: MutantOptions) -> dict[str, Any]:
    (problem, _, mutant), verdict = graded.candidate, graded.verdict
    proof = {
        "source": problem.id,
        "operator": verdict.operator,
        "file": verdict.path,
        "line": verdict.line,
        "mutant": {"passed": False, "failed": list(verdict.failed), "reason": verdict.symptom},
        "reference": {"passed": True},
        "image": verdict.image,
    }
    return problem_row(derived_problem(problem, mutant, verdict, options.hint)) | {"proof": proof}


def print_strength(console: Console, strength: Strength) -> None:
    """Print a table of mutation operators for a problem, and the surviving mutants as diffs."""
    graded = plural(sum(strength.total.model_dump().values()), "mutant")
    columns = ("operator", "killed", "survived", "proved equivalent", "do not compile", "strength")
    table = table_of_figures(f"{strength.problem_id}: {graded} of {strength.mutants}", *columns)
    for name, count in strength.operators.items():
        table.add_row(name, *_cells(count))
    table.add_section()
    table.add_row("together", *_cells(strength.total))
    console.print(table)
    for survivor in strength.survivors:
        if survivor["equivalence"] != "proved":
            meaning = _MEANING[survivor["equivalence"] or "unknown"].format(steps=survivor["steps"])
            why = f" ({survivor['why']})" if survivor["why"] else ""
            head = f"survived: {survivor['operator']}, {survivor['path']}:{survivor['line']}; {meaning}{why}"
            print_line(console, head, "yellow")
            print_diff(console, survivor["diff"])


def _cells(count: Count) -> list[str]:
    rate = f"{count.rate:.0%}" if count.rate is not None else "–"
    return [str(count.killed), str(count.survived), str(count.proved), str(count.invalid), rate]


def check_out(out: Path, source: str) -> None:
    """Raise `UsageError`, before any work, if a file cannot be written, or would overwrite a file of the source."""
    path = expand_home(split_whole(source).inner)
    if path.exists():
        refuse_source(out, path.iterdir() if path.is_dir() else [path], "files that the problems are read from")
    if out.is_dir():
        raise UsageError(f"--out {out}: it is a folder; give the path of a file")
    if not out.exists():
        writable_folder(out.parent, "--out")
    elif not os.access(out, os.W_OK):
        raise UsageError(f"--out {out}: cannot be written to")


def write_rows(out: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a JSON Lines file. Raises `UsageError` if it cannot be written."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    with writing("--out", out):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text("".join(lines), encoding="utf-8")


@with_problems
@options_as("options", OptimizeOptions, parameters_of(OptimizeOptions))
def optimize_command(
    problems: list[Problem],
    options: OptimizeOptions,
    source: SourceArgument,
    out: OutOption,
    workers: WorkersOption = 2,
    cache: CacheOption = True,
) -> None:
    """Write optimisation problems: make a correct but wasteful design smaller or faster.

    Each problem has been verified: the waste costs at least 25 %, the design is proved to behave like the reference,
    the reference gets the full score, and the wasteful design passes the hidden tests without any gain. Afterwards
    'SOURCE+ppa?goal=G&count=N&seed=S' names the same problems for every command, unless problems were selected.
    """
    from ..sources.making import OptimizationMaker

    def proof(case: WastefulCase, known: Measured) -> dict[str, Any]:
        return {
            "waste": case.waste,
            "original": known.original,
            "reference": known.reference,
            "equivalence": "proved",
            "graded": {"reference": {"passed": True, "quality": 1.0}, "original": {"quality": 0.0}},
        }

    _write_made(OptimizationMaker, source, problems, options, out, proof, workers, cache)


def _verify_options(**given: Any) -> VerifyOptions:
    if given["coverage"] and given["kind"] != "stimulus":
        raise UsageError(f"--coverage is for testbenches: leave out --kind {given['kind']}")
    return VerifyOptions(**given)


@with_problems
@options_as("options", _verify_options, parameters_of(VerifyOptions))
def verify_command(
    problems: list[Problem],
    options: VerifyOptions,
    source: SourceArgument,
    out: OutOption,
    workers: WorkersOption = 2,
    cache: CacheOption = True,
) -> None:
    """Write verification problems: given a correct design, write a bench that finds bugs in other designs.

    Each problem has been verified: its reference bench accepts the correct designs and rejects at least 95 % of the
    mutants, which all differ from the correct design in simulation. Afterwards 'SOURCE+verify?kind=K&count=N&seed=S',
    with &mutants=M&coverage=C if given, names the same problems for every command, unless problems were selected.
    """
    from ..sources.making import VerificationMaker

    def proof(case: Case, known: Findings) -> dict[str, Any]:
        return {
            "mutants": len(known.mutants),
            "right_designs": 1 + known.renamed + bool(known.netlist),
            "reference": {"passed": True, "strength": known.verified[known.kind(options)]},
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
    """Write problems made from the first usable designs. Raises `UsageError` if there are too few."""
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
    typer.echo(f"{plural(len(rows), 'problem')} written to {out}", err=True)
