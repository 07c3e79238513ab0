"""``rtl-agent-gym replay``: run a recorded episode again and compare."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ..episodes.rules import EpisodeConfig
from ..episodes.runtime import acquire
from ..errors import UsageError
from ..evaluation.replay import RecordedJudge, Replay, recorded_judge, recorded_weights, replay, replayed_to
from ..options import EpisodeRules
from ..problems import Problem, load_problems
from ..renderers import Renderer, renderer_named
from ..sandboxes.choice import make_provider
from ..scoring import Scorer
from ..scoring.options import GradingOptions
from ..scoring.scorer import require_scorable
from ..transcripts import Transcript, read_transcript
from ..visible import plural
from .options import GRADING, JsonOption, ProblemsOption, options_as, parameters_of
from .shell import attach_terminal, require_terminal
from .show import console_beside, print_diff, print_line

_STATE = "/tmp/.replayed-shell"
_SAVE_STATE = rf"""
for _name in $(compgen -v); do
    [[ ${{!_name@a}} == *r* || $_name == @(_|_name|BASH*|FUNCNAME|DIRSTACK|GROUPS|PS[0-9]) ]] || declare -p "$_name"
done > {_STATE} 2>/dev/null
unset _name
{{ declare -f; alias -p; printf 'cd %q\n' "$PWD"; echo 'PS1="\w \$ "'; }} >> {_STATE}
"""
"""Bash code that saves the shell's state for a new shell: variables, functions, aliases, working folder."""


@options_as("rules", EpisodeConfig, parameters_of(EpisodeRules, *GRADING))
def replay_command(
    rules: EpisodeConfig,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A transcript of run, eval or train.")],
    problems: ProblemsOption = "bundled",
    renderer: Annotated[
        str | None, typer.Option(metavar="module:Class", help="The renderer of the recording, if it is your own.")
    ] = None,
    to_turn: Annotated[
        int | None, typer.Option("--to-turn", min=1, metavar="K", help="Stop before turn K; needs --shell.")
    ] = None,
    shell: Annotated[bool, typer.Option("--shell", help="Open the episode's shell before turn K.")] = False,
    json_: JsonOption = False,
) -> None:
    """Run a recorded episode's commands again in a fresh container and compare the output turn by turn.

    Times, process ids, addresses and the like are not compared (docs/evaluation.md lists them). Ends with "identical"
    and exit code 0, or with the first difference as a diff and exit code 1.
    """
    if (to_turn is not None) != shell:
        raise UsageError("--to-turn K and --shell need each other: they replay up to turn K and open the shell there")
    grading = rules.grading
    if shell and (grading.judge is not None or json_):
        raise UsageError("--shell neither grades nor compares the whole episode; leave out --judge and --json")
    if not os.path.lexists(file):
        raise UsageError(f"{file}: no such file; give a transcript")
    transcript = read_transcript(file)
    dialect = None if renderer is None else renderer_named(renderer)
    name, known = transcript.header.problem_id, {problem.id: problem for problem in load_problems(problems)}
    if name not in known:
        raise UsageError(
            f"{file} is an episode of {name}, which is not among the {len(known)} problems of {problems}; "
            "choose another source with --problems"
        )
    if not shell and transcript.score is not None and not known[name].asks_text:  # texts get their recorded rating
        require_scorable(known[name], grading)
    console = console_beside(json_)
    if to_turn is not None:
        require_terminal("--shell")
        asyncio.run(_open_shell(transcript, known[name], grading, dialect, to_turn, console))
        return
    with console.status(f"replaying {plural(len(transcript.turns), 'turn')}"):
        report = asyncio.run(_replay(transcript, known[name], grading, dialect))
    _print_differences(report, console)
    if report.identical:
        score = " and the score" if report.score_compared else ", no score compared"
        console.print(f"[bold green]identical[/] ({plural(report.compared_turns, 'turn')}{score})")
    if json_:
        print(json.dumps(asdict(report) | {"path": str(report.path), "identical": report.identical}))
    raise typer.Exit(0 if report.identical else 1)


async def _replay(
    transcript: Transcript, problem: Problem, grading: GradingOptions, dialect: Renderer | None
) -> Replay:
    rater = recorded_judge(transcript) if grading.judge is None else grading.judge
    async with acquire() as lease:
        options = GradingOptions(rater, grading.harness)
        scorer = lease.runtime.scorer(recorded_weights(transcript), waiting=0, options=options)
        report = await replay(transcript, problem, provider=lease.runtime.agents, grader=scorer, renderer=dialect)
    if isinstance(rater, RecordedJudge):
        report.notes.append(f"{rater.name} was not asked again: its recorded rating is used (--judge JUDGE asks again)")
    return report


async def _open_shell(
    transcript: Transcript,
    problem: Problem,
    grading: GradingOptions,
    dialect: Renderer | None,
    turn: int,
    console: Console,
) -> None:
    async with (
        make_provider() as provider,
        Scorer(provider, weights=recorded_weights(transcript), harness=grading.harness) as scorer,
        replayed_to(transcript, problem, turn, provider=provider, grader=scorer, renderer=dialect) as (report, sandbox),
    ):
        _print_differences(report, console)
        # A shell that was started without a terminal cannot get one, so a second shell loads the state of the
        # first, whose background jobs continue.
        await sandbox.run(_SAVE_STATE)
        console.rule(Text(f"before turn {turn}"))
        print_line(console, "leave with exit or Ctrl-D", "dim")
        second_shell = "bash", "-c", f"exec bash --rcfile {shlex.quote(_STATE)} -i"
        await attach_terminal(sandbox, *second_shell)


def _print_differences(report: Replay, console: Console) -> None:
    for note in report.notes:
        print_line(console, f"note: {note}", "yellow")
    if (found := report.divergence) is None:
        return
    place = "the score" if found.turn is None else f"turn {found.turn} ({found.what})"
    console.print(f"[bold red]diverged[/] at {place}:", highlight=False)
    print_diff(console, found.diff)
