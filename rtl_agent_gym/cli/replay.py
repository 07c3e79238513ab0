"""``rtl-agent-gym replay``: a recorded episode, run again and compared."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import pexpect
import typer
from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from ..errors import DaemonError, UsageError
from ..evaluation.replay import Replay, recorded_weights, replay, replayed_to
from ..problems import Problem, load_problems
from ..renderers import Renderer, get_renderer
from ..sandboxes import DockerSandboxes, Sandbox
from ..scoring import Scorer
from ..transcripts import Transcript, read_transcript
from .options import JsonOption, ProblemsOption

_STATE = "/tmp/.replayed-shell"
_SAVE_STATE = rf"""
for _name in $(compgen -v); do
    [[ ${{!_name@a}} == *r* || $_name == @(_|_name|BASH*|FUNCNAME|DIRSTACK|GROUPS|PS[0-9]) ]] || declare -p "$_name"
done > {_STATE} 2>/dev/null
unset _name
{{ declare -f; alias -p; printf 'cd %q\n' "$PWD"; echo 'PS1="\w \$ "'; }} >> {_STATE}
"""
"""Bash that writes down what a new shell needs to be as this one is: variables, functions, aliases, folder."""


def replay_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A transcript, as run, eval and training write them.")],
    problems: ProblemsOption = "bundled",
    to_turn: Annotated[
        int | None, typer.Option("--to-turn", min=1, metavar="K", help="Stop before turn K; with --shell.")
    ] = None,
    shell: Annotated[bool, typer.Option("--shell", help="Hand over the shell there, in this terminal.")] = False,
    json_: JsonOption = False,
) -> None:
    """Run a recorded episode's actions again in a fresh container and compare, turn by turn, what comes back.

    Times, process ids, addresses and the like are not compared (the list is in docs/evaluation.md). Ends with
    "identical" and exit code 0, or with the first divergence as a diff and exit code 1.
    """
    if (to_turn is not None) != shell:
        raise UsageError("--to-turn K and --shell go together: replay up to turn K, then the shell is yours")
    if not os.path.lexists(file):
        raise UsageError(f"{file}: no such file; give a transcript")
    transcript = read_transcript(file)
    problem = _recorded_problem(transcript, problems)
    renderer = get_renderer(transcript.header.renderer)
    console = Console(stderr=json_)
    if to_turn is not None:
        if not os.isatty(0):
            raise UsageError("--shell needs a terminal")
        if shutil.which("docker") is None:
            raise DaemonError("--shell needs the docker client on PATH; install docker.io or Docker's own package")
        asyncio.run(_hand_over(transcript, problem, renderer, to_turn, console))
        return
    with console.status(f"replaying {len(transcript.turns)} turns"):
        report = asyncio.run(_replay(transcript, problem, renderer))
    _print(report, console)
    if json_:
        print(json.dumps(_as_json(report)))
    raise typer.Exit(0 if report.identical else 1)


def _recorded_problem(transcript: Transcript, source: str) -> Problem:
    name = transcript.header.problem_id
    found = {problem.id: problem for problem in load_problems(source)}
    if name not in found:
        raise UsageError(
            f"{transcript.path} is an episode of {name}, which is not among the {len(found)} problems of {source}; "
            "name their source with --problems"
        )
    return found[name]


async def _replay(transcript: Transcript, problem: Problem, renderer: Renderer) -> Replay:
    async with DockerSandboxes() as provider, Scorer(provider, weights=recorded_weights(transcript)) as scorer:
        return await replay(transcript, problem, provider=provider, grader=scorer, renderer=renderer)


async def _hand_over(transcript: Transcript, problem: Problem, renderer: Renderer, turn: int, console: Console) -> None:
    async with (
        DockerSandboxes() as provider,
        Scorer(provider) as scorer,
        replayed_to(transcript, problem, turn, provider=provider, grader=scorer, renderer=renderer) as (
            report,
            sandbox,
        ),
    ):
        _print_notes(report, console)
        if report.divergence is not None:
            console.print("on the way here the replay diverged:", style="yellow")
            _print_divergence(report, console)
        state = await _state_of(sandbox)
        console.rule(Text(f"before turn {turn}"))
        console.print("leave with exit or Ctrl-D", style="dim")
        await asyncio.to_thread(_terminal, sandbox.id, state)


async def _state_of(sandbox: Sandbox) -> str:
    """Save the persistent shell's state in the sandbox; gives the file's path.

    A terminal cannot be put onto a shell that has none, so a second shell takes over what the first one knew. Its
    background jobs go on running.
    """
    await sandbox.run(_SAVE_STATE)
    return _STATE


def _terminal(container: str, state: str) -> None:
    size = shutil.get_terminal_size()
    command = ["bash", "-c", f"exec bash --rcfile {shlex.quote(state)} -i"]
    arguments = ["exec", "-it", "-w", "/code", "-e", "TERM=xterm-256color", container, *command]
    with _spawned(arguments, (size.lines, size.columns)) as child:
        child.interact(escape_character=None)


@contextmanager
def _spawned(arguments: list[str], dimensions: tuple[int, int]) -> Iterator[pexpect.spawn[bytes]]:
    child: pexpect.spawn[bytes] = pexpect.spawn("docker", arguments, dimensions=dimensions)
    try:
        yield child
    finally:
        child.close()


def _print(report: Replay, console: Console) -> None:
    _print_notes(report, console)
    if report.divergence is not None:
        _print_divergence(report, console)
        return
    scope = f"{report.compared_turns} turns" + (" and the score" if report.score_compared else ", no score recorded")
    console.print(f"[bold green]identical[/] ({scope})")


def _print_notes(report: Replay, console: Console) -> None:
    for note in report.notes:
        console.print(f"note: {note}", style="yellow", markup=False, soft_wrap=True)


def _print_divergence(report: Replay, console: Console) -> None:
    found = report.divergence
    assert found is not None
    place = "the score" if found.turn is None else f"turn {found.turn} ({found.what})"
    console.print(f"[bold red]diverged[/] at {place}:", highlight=False)
    if console.is_terminal:
        console.print(Syntax(found.diff, "diff", background_color="default", word_wrap=True))
    else:
        console.print(found.diff, markup=False, highlight=False, soft_wrap=True)


def _as_json(report: Replay) -> dict[str, object]:
    return asdict(report) | {"path": str(report.path), "identical": report.identical}
