"""``rtl-agent-gym shell``: open an interactive shell in a problem's container."""

from __future__ import annotations

import asyncio

import typer
from rich.console import Console

from ..episodes.episode import Episode
from ..problems import Problem
from ..renderers import get_renderer
from ..sandboxes import DockerSandboxes
from ..scoring import RewardWeights, Scorer
from .options import ProblemOption, ProblemsOption, one_problem
from .show import print_score
from .terminal import attach_terminal, require_terminal


def shell_command(problems: ProblemsOption = "bundled", problem: ProblemOption = None) -> None:
    """Open an interactive shell in a problem's container, and score the files when you leave it.

    The container, user, limits and files are those that an agent gets. Needs the docker client.
    """
    require_terminal("shell", '; for commands from a program use `run --policy "scripted FILE"`')
    chosen = one_problem(problems, problem)
    asyncio.run(_open_shell(chosen, Console()))


async def _open_shell(problem: Problem, console: Console) -> None:
    async with (
        DockerSandboxes() as provider,
        Scorer(provider) as scorer,
        Episode(problem, provider=provider, grader=scorer, renderer=get_renderer("qwen3")) as episode,
    ):
        await episode.start()
        console.print(problem.prompt, markup=False)
        console.rule(f"{problem.id}: leave with exit or Ctrl-D")
        await asyncio.to_thread(attach_terminal, episode.sandbox.id)
        with console.status("scoring"):
            score = await episode.finish("completed")
        print_score(console, score, RewardWeights())
        raise typer.Exit(0 if score.passed else 1)
