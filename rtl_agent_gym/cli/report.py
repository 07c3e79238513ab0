"""``rtl-agent-gym report``: write a page about one run, or comparing several."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from ..evaluation.report import write_report
from ..evaluation.report.plots import can_draw
from .options import JsonOption, OpenOption
from .show import print_left_out, stderr_console


def report_command(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Folders of runs; the others are compared with the first.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the page, or its path (….html); by default the first run's folder.")
    ] = None,
    browser: OpenOption = False,
    json_: JsonOption = False,
) -> None:
    """Write report.html and report.md: curves, rates before and after, flipped problems, failures, cost and time.

    In the folder of a training run they are full_report.html and full_report.md, since training writes report.html.
    """
    console, unreadable = stderr_console(), list[str]()
    with console.status("reading the runs"):
        page = write_report(runs, out, unreadable)
    print_left_out(unreadable)
    if not can_draw():
        console.print("without plots: they need matplotlib (pip install matplotlib)", markup=False)
    console.print(f"report: {page} (and {page.with_suffix('.md').name})", markup=False, soft_wrap=True)
    if json_:
        print(json.dumps({"html": str(page), "markdown": str(page.with_suffix(".md"))}))
    if browser:
        webbrowser.open(page.resolve().as_uri())
