"""``rtl-agent-gym run``: one episode with live output and its score."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..episodes.episode import Episode, EpisodeConfig
from ..evaluation import Played, Watcher, play, rules_for
from ..evaluation.results import episode_seed
from ..policies import Closable, ModelOptions, Policy, make_policy
from ..problems import Problem
from ..renderers import Renderer, get_renderer
from ..sandboxes import DockerSandboxes
from ..scoring import RewardWeights, Scorer
from ..scoring.scorable import require_scorable
from .options import (
    ApiKeyOption,
    BaseUrlOption,
    CommandTimeoutOption,
    FeedbackOption,
    JsonOption,
    MaxContextOption,
    MaxTokensOption,
    MaxTurnsOption,
    PolicyOption,
    ProblemOption,
    ProblemsOption,
    RendererOption,
    TemperatureOption,
    ToolsOption,
    TopPOption,
    WeightsOption,
    one_problem,
    writable_folder,
)
from .show import EpisodePrinter, print_score


def run_command(
    problems: ProblemsOption = "bundled",
    problem: ProblemOption = None,
    policy: PolicyOption = "golden",
    seed: Annotated[int, typer.Option(help="The episode is that of `eval` with this seed and -n 1.")] = 0,
    renderer: RendererOption = "qwen3",
    max_turns: MaxTurnsOption = 50,
    command_timeout: CommandTimeoutOption = 30.0,
    harness_feedback: FeedbackOption = 0,
    weights: WeightsOption = "default",
    transcript_dir: Annotated[Path, typer.Option(help="Folder for the transcript.")] = Path("runs/transcripts"),
    temperature: TemperatureOption = 1.0,
    top_p: TopPOption = 1.0,
    max_tokens: MaxTokensOption = 4096,
    max_context: MaxContextOption = 32_768,
    base_url: BaseUrlOption = None,
    api_key: ApiKeyOption = None,
    tools: ToolsOption = True,
    json_: JsonOption = False,
) -> None:
    """Play one episode, show it live, and end with its score.

    Exits 0 when the design passed, 1 when it did not.
    """
    chosen = require_scorable(one_problem(problems, problem))
    options = ModelOptions(
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        max_context=max_context,
        base_url=base_url,
        api_key=api_key,
        tools=tools,
    )
    paid = RewardWeights.preset(weights)
    player = make_policy(policy, options)
    dialect = get_renderer(renderer, getattr(player, "tokenizer", None))
    rules = EpisodeConfig(
        max_turns=max_turns,
        command_timeout=command_timeout,
        harness_feedback=harness_feedback,
        transcript_dir=transcript_dir,
    )
    writable_folder(transcript_dir, "--transcript-dir")
    console = Console(stderr=json_)
    played = asyncio.run(_play(chosen, player, dialect, rules, paid, episode_seed(seed, chosen.id, 0), console))
    print_score(console, played.score, paid)
    console.print(f"ended: {played.stop_reason} after {played.turns} turns", style="dim")
    console.print(f"transcript: {played.transcript}", style="dim", soft_wrap=True, markup=False)
    if json_:
        print(json.dumps(_summary(played)))
    raise typer.Exit(0 if played.score.passed else 1)


async def _play(
    problem: Problem,
    policy: Policy,
    dialect: Renderer,
    rules: EpisodeConfig,
    weights: RewardWeights,
    seed: int,
    console: Console,
) -> Played:
    printer = EpisodePrinter(console)
    watcher = Watcher(opening=printer.opening, said=printer.said, turn=printer.turn)
    try:
        async with DockerSandboxes() as provider, Scorer(provider, weights=weights) as scorer:
            episode = Episode(
                problem,
                provider=provider,
                grader=scorer,
                renderer=dialect,
                config=rules_for(policy, problem, rules),
                seed=seed,
                on_output=printer.output,
            )
            return await play(episode, policy, watcher, seed=seed)
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
