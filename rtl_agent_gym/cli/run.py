"""``rtl-agent-gym run``: one episode with live output and its score."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..envs.episode import Episode, EpisodeConfig
from ..evaluation import Played, Watcher, play
from ..policies import POLICIES, Closable, ModelOptions, Policy, make_policy
from ..problems import Problem
from ..renderers import Renderer, get_renderer
from ..sandboxes import DockerSandboxes
from ..scoring import RewardWeights, Scorer
from ..scoring.scorable import require_scorable
from .options import JsonOption, ProblemOption, ProblemsOption, RendererOption, one_problem
from .show import EpisodePrinter, print_score


def run_command(
    problems: ProblemsOption = "bundled",
    problem: ProblemOption = None,
    policy: Annotated[str, typer.Option(help=f"Who acts: {', '.join(POLICIES)}.")] = "golden",
    renderer: RendererOption = "qwen3",
    max_turns: Annotated[int, typer.Option(min=1, help="Turns before the episode is cut off.")] = 50,
    command_timeout: Annotated[float, typer.Option(min=0.1, help="Seconds one command may run.")] = 30.0,
    harness_feedback: Annotated[
        int, typer.Option(min=0, help="How often the agent may submit and is told which checks fail; 0 for never.")
    ] = 0,
    transcript_dir: Annotated[Path, typer.Option(help="Folder for the transcript.")] = Path("runs/transcripts"),
    temperature: Annotated[float, typer.Option(min=0.0, help="Of models.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of one turn, of models.")] = 4096,
    base_url: Annotated[str | None, typer.Option(help="Of the model's service.")] = None,
    json_: JsonOption = False,
) -> None:
    """Play one episode, show it live, and end with its score.

    Exits 0 when the design passed, 1 when it did not.
    """
    chosen = require_scorable(one_problem(problems, problem))
    options = ModelOptions(temperature=temperature, max_tokens=max_tokens, base_url=base_url)
    player = make_policy(policy, options)
    dialect = get_renderer(renderer, getattr(player, "tokenizer", None))
    config = EpisodeConfig(
        max_turns=max_turns,
        command_timeout=command_timeout,
        harness_feedback=harness_feedback,
        transcript_dir=transcript_dir,
    )
    console = Console(stderr=json_)
    played = asyncio.run(_play(chosen, player, dialect, config, console))
    print_score(console, played.score, RewardWeights())
    console.print(f"ended: {played.stop_reason} after {played.turns} turns", style="dim")
    console.print(f"transcript: {played.transcript}", style="dim", soft_wrap=True)
    if json_:
        print(json.dumps(_summary(played)))
    raise typer.Exit(0 if played.score.passed else 1)


async def _play(problem: Problem, policy: Policy, dialect: Renderer, config: EpisodeConfig, console: Console) -> Played:
    printer = EpisodePrinter(console)
    watcher = Watcher(opening=printer.opening, said=printer.said, turn=printer.turn)
    async with DockerSandboxes() as provider, Scorer(provider) as scorer:
        episode = Episode(
            problem,
            provider=provider,
            grader=scorer,
            renderer=dialect,
            config=config,
            on_output=printer.output,
        )
        try:
            return await play(episode, policy, watcher)
        finally:
            if isinstance(policy, Closable):
                await policy.close()


def _summary(played: Played) -> dict[str, object]:
    return {
        "problem_id": played.problem_id,
        "policy": played.policy,
        "score": played.score.model_dump(mode="json"),
        "stop_reason": played.stop_reason,
        "turns": played.turns,
        "transcript": str(played.transcript) if played.transcript is not None else None,
    }
