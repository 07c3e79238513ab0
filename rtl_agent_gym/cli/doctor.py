"""``rtl-agent-gym doctor``: check this machine, and tell how to install what is missing."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from .checks import Check, run_checks
from .options import JsonOption

NARROW = 64
"""In a terminal with fewer columns the table is printed as lines."""

_COLOURS = {"ok": "green", "missing": "red", "optional": "yellow"}


def doctor_command(
    as_json: JsonOption = False,
) -> None:
    """Check this machine: Docker, the image, extras, keys. Exits 3 when something required is missing."""
    console = Console()
    if as_json:
        checks = run_checks()
        typer.echo(json.dumps({"ok": not _lacking(checks), "checks": [asdict(check) for check in checks]}))
    else:
        with console.status("checking this machine"):
            checks = run_checks()
        if console.width < NARROW:
            _print_lines(console, checks)
        else:
            console.print(_table(checks))
        console.print(_verdict(checks))
    if _lacking(checks):
        raise typer.Exit(3)


def _lacking(checks: list[Check]) -> list[str]:
    return [check.part for check in checks if check.state == "missing"]


def _verdict(checks: list[Check]) -> str:
    lacking = _lacking(checks)
    if lacking:
        return f"[red]required and missing:[/] {escape(', '.join(lacking))}"
    return "[green]everything required is here[/]"


def _print_lines(console: Console, checks: list[Check]) -> None:
    """Print the table's content as lines, for a narrow terminal."""
    for check in checks:
        console.print(f"[{_COLOURS[check.state]}]{_state(check)}[/] {escape(check.part)}", highlight=False)
        for line in (check.found, check.todo and f"→ {check.todo}"):
            if line:
                console.print(Padding(escape(line), (0, 0, 0, 2)), highlight=False)


def _state(check: Check) -> str:
    return "not there" if check.state == "optional" else check.state


def _table(checks: list[Check]) -> Table:
    table = Table(title="rtl-agent-gym doctor", title_justify="left")
    table.add_column("part", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("what is there → what to do", overflow="fold")
    for number, check in enumerate(checks):
        if number and check.group != checks[number - 1].group:
            table.add_section()
        found = f"{check.found}\n→ {check.todo}" if check.todo else check.found
        table.add_row(escape(check.part), f"[{_COLOURS[check.state]}]{_state(check)}[/]", escape(found))
    return table
