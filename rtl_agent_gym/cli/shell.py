"""``rtl-agent-gym shell``: open an interactive shell in a problem's container."""

from __future__ import annotations

import asyncio
import os
import shutil

import pexpect
import typer
from rich.console import Console

from ..episodes.episode import Episode
from ..errors import DaemonError, UsageError
from ..renderers import get_renderer
from ..sandboxes import DockerSandboxes
from ..scoring import RewardWeights, Scorer
from ..scoring.score import Score
from ..visible import visible
from .options import ProblemOption, ProblemsOption, one_problem
from .show import print_score


def shell_command(problems: ProblemsOption = "bundled", problem: ProblemOption = None) -> None:
    """Open an interactive shell in a problem's container, and score the files when you leave it.

    The container, user, limits and files are those that an agent gets. Needs the docker client.
    """
    require_terminal("shell", '; for commands from a program use `run --policy "scripted FILE"`')
    chosen, console = one_problem(problems, problem), Console()

    async def open_shell() -> Score:
        async with (
            DockerSandboxes() as provider,
            Scorer(provider) as scorer,
            Episode(chosen, provider=provider, grader=scorer, renderer=get_renderer("qwen3")) as episode,
        ):
            await episode.start()
            console.print(visible(chosen.prompt), markup=False)
            console.rule(f"{chosen.id}: leave with exit or Ctrl-D")
            await asyncio.to_thread(attach_terminal, episode.sandbox.id, "bash")
            with console.status("scoring"):
                return await episode.finish("completed")

    score = asyncio.run(open_shell())
    print_score(console, score, RewardWeights())
    raise typer.Exit(0 if score.passed else 1)


def require_terminal(what: str, instead: str = "") -> None:
    """Check that `what` can use a terminal.

    Raises:
        UsageError: There is none; the message ends with `instead`.
        DaemonError: The docker client, which is needed for it, is not installed.
    """
    if not os.isatty(0):
        raise UsageError(f"{what} needs a terminal{instead}")
    if shutil.which("docker") is None:
        raise DaemonError(f"{what} needs the docker client on PATH; install docker.io (Debian) or Docker's own package")


def attach_terminal(container: str, *command: str) -> None:
    """Run `command` in the work folder of a container on this terminal, until it ends."""
    size = shutil.get_terminal_size()
    arguments = ["exec", "-it", "-w", "/code", "-e", "TERM=xterm-256color", container, *command]
    child: pexpect.spawn[bytes] = pexpect.spawn("docker", arguments, dimensions=(size.lines, size.columns))
    try:
        child.interact(escape_character=None)
    finally:
        child.close()
