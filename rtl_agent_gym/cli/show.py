"""Show episodes and scores in the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.syntax import Syntax
from rich.table import Table

from ..episodes.episode import Opening, Turn
from ..episodes.recording import command_record
from ..errors import UsageError
from ..evaluation import Observer
from ..evaluation.viewer.text import command_status, first_lines, plain, score_parts
from ..policies import Completion
from ..scoring import RewardWeights
from ..scoring.score import Score
from ..scoring.texts import NOT_OF_TEXTS
from ..visible import VisibleStream, visible

SHOWN_COMMAND_LINES = 30


def episode_printer(console: Console) -> Observer:
    """An observer that prints an episode as it happens: completions, commands, and their output while they run."""
    stream = VisibleStream()

    def task(opening: Opening) -> None:
        console.print(Panel(plain(opening.user), title="task", border_style="cyan"))

    def model_turn(number: int, completion: Completion) -> None:
        console.rule(f"turn {number}", style="dim")
        text = completion.text if completion.native is None else str(completion.native)
        console.print(first_lines(text.replace("\\n", "\n"), SHOWN_COMMAND_LINES), style="blue")

    def output(data: bytes) -> None:
        console.file.write(stream.feed(data))
        console.file.flush()

    def results(turn: Turn) -> None:
        for ran in zip(turn.action.commands, turn.results, turn.outputs, strict=True):
            console.print(command_status(command_record(*ran)))
        if turn.action.kind == "malformed":
            console.print(plain(turn.observation), style="yellow")

    return Observer(opening=task, completion=model_turn, output=output, turn=results)


def print_score(console: Console, score: Score, weights: RewardWeights, *, of_text: bool = False) -> None:
    """Print a score: its parts and their weights, the reason, violations, and the files that were not counted."""
    most = weights.format + weights.tests if of_text else weights.most
    table = table_of_figures("score", "part", "measured", "weight")
    for name, measured in score_parts(score).items():
        if not of_text or name not in NOT_OF_TEXTS:
            weight = getattr(weights, name, 0.0)
            table.add_row(name, measured, f"{weight:g}" if weight else "–")
    table.add_section()
    table.add_row("reward", f"[bold]{score.reward:.3f}[/]", f"{most:g}")
    table.add_row("verdict", "[green]passed[/]" if score.passed else "[red]failed[/]", "")
    console.print(table)
    if score.reason:
        console.print(plain(score.reason))
    for violation in score.violations:
        print_line(console, f"violation: {violation}", "red")
    for line in score.left_out:
        print_line(console, f"not counted: {line}", "dim")


def table_of_figures(title: str, *columns: str) -> Table:
    """A table with names in its first column and figures in the others."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    return table


def print_line(console: Console, text: str, style: str = "") -> None:
    """Print a text as `plain` shows it, without wrapping lines."""
    console.print(plain(text), style=style, soft_wrap=True)


def print_diff(console: Console, diff: str) -> None:
    """Print a diff: coloured and wrapped on a terminal, otherwise without wrapping."""
    if console.is_terminal:
        console.print(Syntax(visible(diff), "diff", background_color="default", word_wrap=True))
    else:
        print_line(console, diff)


class _Messages(Console):
    def on_broken_pipe(self) -> None:
        self.quiet = True  # rich's own method would end the process


def stderr_console() -> Console:
    """A console on stderr, for messages that are not part of the result.

    Once the reader of its pipe, such as tee, has ended, nothing more is shown, and the command continues.
    """
    return _Messages(stderr=True, file=sys.stderr)


def console_beside(json_: bool) -> Console:
    """The console of a command: stdout, or stderr if its result is JSON on stdout."""
    return stderr_console() if json_ else Console()


def progress_bar(console: Console, what: str, total: int, *, hidden: bool = False) -> Progress:
    """A progress bar on a terminal, with one task. What is printed to stdout meanwhile goes there."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    disable = hidden or not console.is_terminal
    progress = Progress(*columns, console=console, transient=True, redirect_stdout=False, disable=disable)
    progress.add_task(what, total=total)
    return progress


def print_left_out(sentences: Sequence[str]) -> None:
    """Print on stderr why files were left out, one line each."""
    for sentence in sentences:
        print_line(stderr_console(), f"left out: {sentence}", "yellow")


def refuse_source(out: Path, sources: Iterable[Path], what: str = "transcripts that are read") -> None:
    """Raise `UsageError` if the output file is one of its sources."""
    if any(os.path.realpath(out) == os.path.realpath(source) for source in sources):
        raise UsageError(f"--out {out} is one of the {what}; choose another file")
