"""``rtl-agent-gym shell``: a person at the terminal of a problem's work folder."""

from __future__ import annotations

import asyncio
import os
import shutil

import pexpect
import typer
from rich.console import Console

from ..errors import DaemonError, UsageError
from ..problems import Problem
from ..sandboxes import DockerSandboxes
from ..scoring import RewardWeights, Scorer
from .options import ProblemOption, ProblemsOption, one_problem
from .show import print_score


def shell_command(problems: ProblemsOption = "bundled", problem: ProblemOption = None) -> None:
    """Open a terminal in a problem's sandbox; when it is left, the files are scored.

    The same container, user, limits and files as an agent gets. Needs the docker client for its terminal.
    """
    if not os.isatty(0):
        raise UsageError('shell needs a terminal; for commands from a program use `run --policy "scripted FILE"`')
    if shutil.which("docker") is None:
        raise DaemonError("shell needs the docker client on PATH; install docker.io (Debian) or Docker's own package")
    chosen = one_problem(problems, problem)
    asyncio.run(_visit(chosen, Console()))


async def _visit(problem: Problem, console: Console) -> None:
    async with DockerSandboxes() as provider, Scorer(provider) as scorer:
        sandbox = await provider.create()
        await sandbox.write_files(problem.context)
        await sandbox.run("mkdir -p rtl verif docs rundir")
        console.print(problem.prompt, markup=False)
        console.rule(f"{problem.id}: leave with exit or Ctrl-D")
        await asyncio.to_thread(_terminal, sandbox.id)
        files = await sandbox.read_files(("rtl", "verif", "docs"))
        with console.status("scoring"):
            score = await scorer.score(problem, dict(files))
        print_score(console, score, RewardWeights())
        raise typer.Exit(0 if score.passed else 1)


def _terminal(container: str) -> None:
    size = shutil.get_terminal_size()
    arguments = ["exec", "-it", "-w", "/code", "-e", "TERM=xterm-256color", container, "bash"]
    child = pexpect.spawn("docker", arguments, dimensions=(size.lines, size.columns))
    child.interact(escape_character=None)
    child.close()
