"""``rtl-agent-gym problems``: list, show, check and generate problems."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..errors import ProblemError, cannot_write
from ..problems import (
    CATEGORIES,
    Problem,
    category_name,
    find_problem,
    load_problems,
    scan_problems,
    validate_problem,
)
from ..problems.writing import problem_row
from .options import CategoriesOption, DifficultiesOption, JsonOption, ProblemIdsOption, ProblemsOption

problems_app = typer.Typer(no_args_is_help=True, help="List, show, check and generate problems.")

# Terminal escape sequences in a problem's text must not be obeyed.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_PIPE_WIDTH = 240
_NARROW = 72


@problems_app.command("list")
def list_command(
    source: ProblemsOption = "bundled",
    ids: ProblemIdsOption = None,
    categories: CategoriesOption = None,
    difficulties: DifficultiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the problems of a source."""
    problems = load_problems(source, ids=ids or None, categories=categories or None, difficulties=difficulties or None)
    if as_json:
        _print_json([_summary(problem) for problem in problems])
        return
    console = _console()
    if console.width < _NARROW:
        for problem in problems:
            _print_lines(console, problem)
        console.print(_plain(_count(len(problems), "problem")))
        return
    table = Table("id", "category", "difficulty", "targets", "golden", "scorable", title=None)
    table.columns[0].no_wrap = True
    for problem in problems:
        table.add_row(
            problem.id,
            _category(problem),
            problem.difficulty,
            _plain("\n".join(problem.targets)),
            "yes" if problem.golden is not None else "no",
            "yes" if problem.unscorable is None else _plain(f"no: {problem.unscorable}"),
        )
    console.print(table)
    console.print(_plain(_count(len(problems), "problem")))


def _print_lines(console: Console, problem: Problem) -> None:
    """Print a row of the table as lines, for a narrow terminal."""
    console.print(_plain(problem.id), style="bold", soft_wrap=True)
    golden = "golden" if problem.golden is not None else "no golden"
    scorable = "" if problem.unscorable is None else f", not scorable: {problem.unscorable}"
    text = f"{_category(problem)}, {problem.difficulty}, {golden}{scorable}: {', '.join(problem.targets)}"
    console.print(Padding(_plain(text), (0, 0, 0, 2)))


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
    parts: list[tuple[str, dict[str, str]]] = [("context", problem.context)]
    if golden:
        parts.append(("golden", problem.golden or {}))
    if harness:
        parts.append(("harness", problem.harness))
    if as_json:
        head = {"prompt": problem.prompt, "system_message": problem.system_message}
        _print_json(_summary(problem) | head | dict(parts))
        return
    console = _console()
    console.print(_plain(f"{problem.id}  {_category(problem)}, {problem.difficulty}"), style="bold")
    if problem.unscorable is not None:
        console.print(_plain(f"cannot be scored: {problem.unscorable}"), style="yellow")
    console.print(_plain("targets: " + (", ".join(problem.targets) or "none")))
    console.rule("prompt")
    console.print(_plain(problem.prompt), soft_wrap=True)
    for name, files in parts:
        for path, text in sorted(files.items()):
            console.rule(_plain(f"{name}: {path}"))
            console.print(_plain(text), soft_wrap=True)


@problems_app.command("validate")
def validate_command(
    source: ProblemsOption = "bundled", ids: ProblemIdsOption = None, as_json: JsonOption = False
) -> None:
    """Check every row of a source, and whether each problem is consistent. Exits 1 when something is wrong."""
    problems: list[Problem] = []
    findings: list[dict[str, Any]] = []
    for item in scan_problems(source):
        if isinstance(item, ProblemError):
            findings.append(_finding_of_error(item))
        else:
            problems.append(item)
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
    unscorable = {problem.id: problem.unscorable for problem in problems if problem.unscorable is not None}
    if as_json:
        _print_json({"problems": len(problems), "findings": findings, "unscorable": unscorable})
    else:
        console = _console()
        for finding in findings:
            console.print(_plain(finding["text"]), style="red", soft_wrap=True)
        for problem_id, reason in unscorable.items():
            console.print(_plain(f"{problem_id}: cannot be scored here: {reason}"), style="yellow", soft_wrap=True)
        console.print(_plain(f"{_count(len(problems), 'problem')}, {_count(len(findings), 'finding')}"))
    if findings:
        raise typer.Exit(1)


@problems_app.command("generate")
def generate_command(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="Such as 'family:registers?count=200&seed=7&split=train'.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The JSON Lines file to write.")],
) -> None:
    """Write the problems of a source as a file of CVDP's agentic rows, which the official runner reads too."""
    lines = [json.dumps(problem_row(problem), ensure_ascii=False) + "\n" for problem in load_problems(source)]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text("".join(lines), encoding="utf-8")
    except OSError as error:
        raise cannot_write("--out", out, error) from error
    typer.echo(f"{_count(len(lines), 'problem')} written to {out}")


def _finding_of_error(error: ProblemError) -> dict[str, Any]:
    return {
        "problem_id": error.problem_id,
        "source": error.source,
        "line": error.line,
        "field": error.field,
        "message": error.message,
        "text": str(error),
    }


def _summary(problem: Problem) -> dict[str, Any]:
    """Facts for choosing among problems, without the hidden tests."""
    return {
        "id": problem.id,
        "category": problem.category,
        "difficulty": problem.difficulty,
        "agentic": problem.agentic,
        "targets": list(problem.targets),
        "context_files": sorted(problem.context),
        "prompt_characters": len(problem.prompt),
        "context_characters": sum(map(len, problem.context.values())),
        "has_golden": problem.golden is not None,
        "unscorable": problem.unscorable,
        "digest": problem.digest,
    }


def _category(problem: Problem) -> str:
    return f"{category_name(problem.category)} {CATEGORIES.get(problem.category, '')}".rstrip()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _plain(text: str) -> Text:
    """Text without markup and terminal codes."""
    return Text(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n")))


def _console() -> Console:
    console = Console(highlight=False)
    # Without a terminal the table need not fit a width, and grep needs lines that are not cut.
    return console if console.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value))
