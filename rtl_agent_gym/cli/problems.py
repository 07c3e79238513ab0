"""``rtl-agent-gym problems``: list, show, check, generate, mutate and export problems."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from ..errors import ProblemError, UsageError
from ..evaluation.viewer.text import plain
from ..problems import (
    CATEGORIES,
    Problem,
    category_name,
    find_problem,
    load_problems,
    scan_problems,
    validate_problem,
)
from ..problems.notes import RATINGS, note_of
from ..problems.paths import ANSWER_FILE
from ..problems.rows import problem_row
from ..problems.validation import missing_here
from ..visible import plural, visible
from .options import JsonOption, ProblemIdsOption, ProblemsOption, with_problems, writable_folder
from .problems_derived import (
    OutOption,
    check_out,
    mutate_command,
    optimize_command,
    strength_command,
    verify_command,
    write_rows,
)
from .show import print_line

problems_app = typer.Typer(no_args_is_help=True, help="List, show, check, generate, mutate and export problems.")
problems_app.command("strength")(strength_command)
problems_app.command("mutate")(mutate_command)
problems_app.command("verify")(verify_command)
problems_app.command("optimize")(optimize_command)

_PIPE_WIDTH = 240


@problems_app.command("list")
@with_problems
def list_command(problems: list[Problem], source: ProblemsOption = "bundled", as_json: JsonOption = False) -> None:
    """List the problems of a source."""
    if as_json:
        typer.echo(json.dumps([_summary(problem) for problem in problems]))
        return
    console = _console()
    table = Table("id", "category", "difficulty", "targets", "golden", "scorable", title=None)
    table.columns[0].no_wrap = True
    notes = [_known(problem) for problem in problems]
    known = [name for name in ("rating", "strength") if any(note[name] for note in notes)]
    for name in known:
        table.add_column(name)
    lines = []
    for problem, note in zip(problems, notes, strict=True):
        golden, unscorable = bool(problem.golden or problem.reference_response), missing_here(problem)
        cells = problem.id, _category(problem), problem.difficulty, "\n".join(problem.targets)
        scorable = "yes" if unscorable is None else f"no: {unscorable}"
        table.add_row(*map(plain, (*cells, "yes" if golden else "no", scorable, *(note[name] for name in known))))
        facts = [_category(problem), problem.difficulty, "golden" if golden else "no golden"]
        facts += [] if unscorable is None else [f"not scorable: {unscorable}"]
        facts += filter(None, note.values())
        lines.append((problem.id, f"{', '.join(facts)}: {', '.join(problem.targets)}"))
    unfolded = console.options.update(max_width=sys.maxsize)
    if not console.is_terminal or console.measure(table, options=unfolded).maximum <= console.width:
        console.print(table)
    else:
        for name, text in lines:
            print_line(console, name, "bold")
            console.print(Padding(plain(text), (0, 0, 0, 2)))
    console.print(plural(len(problems), "problem"))


@problems_app.command("show")
def show_command(
    problem_id: Annotated[str, typer.Argument(metavar="ID", help="The problem's id.")],
    source: ProblemsOption = "bundled",
    harness: Annotated[bool, typer.Option("--harness", help="Show the hidden tests too.")] = False,
    golden: Annotated[bool, typer.Option("--golden", help="Show the reference solution too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show one problem as the agent gets it; the hidden tests and the solution only on request."""
    problem = find_problem(load_problems(source), problem_id)
    parts = {"context": problem.context}
    if golden:
        parts["golden"] = problem.golden or ({ANSWER_FILE: text} if (text := problem.reference_response) else {})
    if harness:
        parts["harness"] = problem.harness
    if as_json:
        head = {"prompt": problem.prompt, "system_message": problem.system_message}
        typer.echo(json.dumps(_summary(problem) | head | parts))
        return
    console = _console()
    print_line(console, f"{problem.id}  {_category(problem)}, {problem.difficulty}", "bold")
    if (missing := missing_here(problem)) is not None:
        print_line(console, f"cannot be scored: {missing}", "yellow")
    print_line(console, "targets: " + (", ".join(problem.targets) or "none"))
    for line in note_lines(problem):
        print_line(console, line)
    console.rule("prompt")
    print_line(console, problem.prompt)
    for name, files in parts.items():
        for path, text in sorted(files.items()):
            console.rule(plain(f"{name}: {path}"))
            print_line(console, text)


@problems_app.command("validate")
def validate_command(
    source: ProblemsOption = "bundled", ids: ProblemIdsOption = None, as_json: JsonOption = False
) -> None:
    """Check every row of a source, and whether each problem is consistent. Exits 1 when something is wrong."""
    rows = list(scan_problems(source))
    problems = [row for row in rows if isinstance(row, Problem)]
    wrong = [row for row in rows if isinstance(row, ProblemError)]
    if not problems and not any(error.problem_id or error.field for error in wrong):
        raise wrong[0]  # no row was recognised
    findings: list[dict[str, Any]] = [vars(error) | {"text": str(error)} for error in wrong]
    if ids:
        bad = {finding["problem_id"] for finding in findings}
        wanted = {name if name in bad else find_problem(problems, name).id for name in ids}
        problems = [problem for problem in problems if problem.id in wanted]
        findings = [finding for finding in findings if finding["problem_id"] in wanted]
    findings += [
        {"problem_id": problem.id, "message": message, "text": f"{problem.id}: {message}"}
        for problem in problems
        for message in validate_problem(problem)
    ]
    missing = {problem.id: missing_here(problem) for problem in problems}
    unscorable = {problem_id: reason for problem_id, reason in missing.items() if reason is not None}
    if as_json:
        typer.echo(json.dumps({"problems": len(problems), "findings": findings, "unscorable": unscorable}))
    else:
        console = _console()
        for finding in findings:
            print_line(console, finding["text"], "red")
        for problem_id, reason in unscorable.items():
            print_line(console, f"{problem_id}: cannot be scored here: {reason}", "yellow")
        console.print(f"{plural(len(problems), 'problem')}, {plural(len(findings), 'finding')}")
    if findings:
        raise typer.Exit(1)


@problems_app.command("generate")
def generate_command(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="Such as 'family:registers?count=200&seed=7&split=train'.")
    ],
    out: OutOption,
) -> None:
    """Write the problems of a source as a file in CVDP's agentic format, which the official runner can read."""
    problems = load_problems(source)
    check_out(out, source)
    write_rows(out, map(problem_row, problems))
    typer.echo(f"{plural(len(problems), 'problem')} written to {out}", err=True)


@problems_app.command("export")
@with_problems
def export_command(
    problems: list[Problem],
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A source of problems, as for --problems, such as 'bundled'.")
    ],
    out: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Folder for the tasks, one folder per task."),
    ],
    format: Annotated[Literal["harbor"], typer.Option(help="harbor: task folders of Harbor.")] = "harbor",
    image: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name of the simulation image where the tasks run; by default as on this machine."
        ),
    ] = None,
) -> None:
    """Write problems as tasks of another framework. Exits 1 when none of them can be written."""
    from ..integrations.harbor.tasks import write_task
    from ..sandboxes.image import image_tag
    from ..scoring.scorer import why_unscorable

    writable_folder(out, "--out")
    written = 0
    for problem in problems:
        if (out / problem.id).exists():
            raise UsageError(f"--out {out}: {problem.id} already exists; remove it, or choose another folder")
    for problem in problems:
        try:
            reason = why_unscorable(problem, texts=False)
            if reason is None and problem.checkout:
                reason = "a heavy row starts from a repository, which a task cannot contain"
            if reason:
                raise UsageError(f"{problem.id}: {reason}")
            write_task(problem, out, image or image_tag())
            written += 1
        except UsageError as error:
            typer.echo(f"left out: {visible(str(error))}", err=True)
    typer.echo(f"{plural(written, 'task')} of {format} written to {out}")
    raise typer.Exit(0 if written else 1)


def _summary(problem: Problem) -> dict[str, Any]:
    note = note_of(problem)
    return {
        "id": problem.id,
        "category": problem.category,
        "difficulty": problem.difficulty,
        "agentic": problem.agentic,
        "targets": list(problem.targets),
        "context_files": sorted(problem.context),
        "prompt_characters": len(problem.prompt),
        "context_characters": sum(map(len, problem.context.values())),
        "has_golden": bool(problem.golden or problem.reference_response),
        "unscorable": missing_here(problem),
        "digest": problem.digest,
        "note": None if note is None else note.model_dump(mode="json", exclude={"id"}) | {"rating": note.rating},
    }


def _known(problem: Problem) -> dict[str, str]:
    """The note of a problem as columns of `list`, by heading. A column without any text is left out."""
    note = note_of(problem)
    if note is None:
        return {"rating": "", "strength": ""}
    return {"rating": note.rating, "strength": f"rejects {note.strength.text}" if note.strength is not None else ""}


def note_lines(problem: Problem) -> list[str]:
    """The note of a problem as lines; empty if it has none."""
    note = note_of(problem)
    if note is None:
        return []
    lines = [f"rating: {note.rating}: {RATINGS[note.rating]} ({note.release}: {note.how})"]
    lines += [f"its tests need from the image: {', '.join(note.needs)}"] if note.needs else []
    if note.strength is not None:
        lines.append(f"strength of its tests: {note.strength.rate:.0%} ({note.strength.text} rejected)")
    for statement in note.statements:
        what = "demanded, but not stated" if statement.kind == "wants" else "not seen by the tests"
        shown = "shown by a run" if statement.shown == "run" else "read, not shown"
        lines.append(f"  {what}{' (core)' if statement.core else ''}: {statement.text} [{shown}]")
    return lines


def _category(problem: Problem) -> str:
    return f"{category_name(problem.category)} {CATEGORIES.get(problem.category, '')}".rstrip()


def _console() -> Console:
    console = Console(highlight=False)
    # Without a terminal the table need not fit a width, and grep needs lines that are not truncated.
    return console if console.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)
