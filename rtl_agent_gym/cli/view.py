"""``rtl-agent-gym view`` and ``report``: show recorded episodes, and write reports on runs."""

from __future__ import annotations

import contextlib
import json
import os
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from ..errors import UsageError
from ..evaluation.recorded import each_readable, require_readable, transcript_files
from ..evaluation.report import write_report
from ..evaluation.report.page import can_draw
from ..evaluation.viewer import print_episode, print_list, serving, write_page
from ..visible import plural
from .options import JsonOption, OpenOption
from .show import print_left_out, print_line, refuse_source, stderr_console

LINES = 60

SourceArgument = Annotated[
    Path, typer.Argument(metavar="FILE|RUN", help="A transcript, a folder of transcripts, or a run's folder.")
]


def view_command(
    source: SourceArgument,
    out: Annotated[Path | None, typer.Option(help="Write the page to this file instead of serving it.")] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Serve the page on this machine (the default).")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to serve on; 0: any free port.")] = 0,
    browser: OpenOption = False,
    text: Annotated[bool, typer.Option("--text", help="Print to the terminal instead.")] = False,
    lines: Annotated[int, typer.Option(min=1, help="With --text: lines to show of each command and output.")] = LINES,
    thinking: Annotated[bool, typer.Option("--thinking", help="With --text: print the model's thinking.")] = False,
    heat: Annotated[bool, typer.Option("--heat", help="With --text: colour the tokens by teacher KL.")] = False,
) -> None:
    """Show episodes in a browser or in the terminal: conversation, files after each turn, score and teacher KL."""
    if text and (out is not None or serve or port or browser):
        raise UsageError("--text prints to the terminal; leave out --out, --serve, --port and --open")
    if (thinking or heat or lines != LINES) and (not text or source.is_dir()):
        raise UsageError("--lines, --thinking and --heat need --text and a single transcript")
    if out is not None and port and not serve:
        raise UsageError("--out writes the page to a file; add --serve to serve it at --port")
    files, unreadable = transcript_files(source), list[str]()
    require_readable(files)
    if text:
        transcripts = each_readable(files, unreadable)
        if source.is_file():
            for transcript in transcripts:
                print_episode(Console(), transcript, lines=lines, thinking=thinking, heat=heat)
        else:
            print_list(Console(), transcripts)
        print_left_out(unreadable)
        return
    console = stderr_console()
    if out is not None:
        refuse_source(out, files)
        shown = track(files, "reading episodes", console=console, transient=True, disable=not console.is_terminal)
        write_page(shown, out, title=Path(os.path.abspath(source)).name, unreadable=unreadable)
        print_left_out(unreadable)
        print_line(console, f"{plural(len(files) - len(unreadable), 'episode')} in {out}")
    if serve or out is None:
        with serving(source, port) as server:
            print_line(console, f"episodes of {source} at {server.url} (Ctrl-C to stop)")
            if browser:
                webbrowser.open(server.url)
            with contextlib.suppress(KeyboardInterrupt):
                server.serve_forever()
    elif browser:
        webbrowser.open(out.resolve().as_uri())


def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN…", help="Folders of runs; several evaluations are compared with the first."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the page, or its path (….html); by default the first run's folder."),
    ] = None,
    browser: OpenOption = False,
    json_: JsonOption = False,
) -> None:
    """Write report.html and report.md: curves, rates before and after, flipped problems, failures, cost and time.

    In a training run's folder they are full_report.html and full_report.md, since training itself writes report.html.
    """
    console, unreadable = stderr_console(), list[str]()
    with console.status("reading the runs"):
        page = write_report(runs, out, unreadable)
    print_left_out(unreadable)
    if not can_draw():
        print_line(console, "the report has no plots: they need matplotlib (pip install matplotlib)")
    print_line(console, f"report: {page} (and {page.with_suffix('.md').name})")
    if json_:
        print(json.dumps({"html": str(page), "markdown": str(page.with_suffix(".md"))}))
    if browser:
        webbrowser.open(page.resolve().as_uri())
