"""``rtl-agent-gym run``: play one episode with live output, and print its score."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..errors import SandboxError
from ..evaluation import EvaluationConfig, evaluate
from ..scoring import RewardWeights
from ..scoring.scorer import require_scorable
from ..visible import plural
from .options import JsonOption, ProblemOption, one_problem, with_options, writable_folder
from .show import EpisodePrinter, print_score


@with_options()
def run_command(
    config: EvaluationConfig,
    problem: ProblemOption = None,
    transcript_dir: Annotated[Path, typer.Option(help="Folder for the transcript.")] = Path("runs/transcripts"),
    json_: JsonOption = False,
) -> None:
    """Play one episode, show it live, and print its score.

    Exits 0 when the design passed, 1 when it did not.
    """
    chosen = require_scorable(one_problem(str(config.problems), problem), config.episode.grading)
    weights = RewardWeights.preset(str(config.reward))
    writable_folder(transcript_dir, "--transcript-dir")
    rules = config.episode.with_options(transcript_dir=transcript_dir)
    config = config.with_options(problems=[chosen], episode=rules, keep=False, attempts=1, concurrency=1, cache=False)
    console = Console(stderr=json_)
    faults: list[SandboxError] = []
    observer = EpisodePrinter(console).observer
    observer.faulted = lambda problem, sample, error: faults.append(error)
    (result,) = asyncio.run(evaluate(config, observer=observer)).results
    if result.score is None:
        raise faults[-1]
    print_score(console, result.score, weights, of_text=chosen.asks_text)
    console.print(f"ended: {result.stop_reason} after {plural(result.turns, 'turn')}", style="dim")
    console.print(f"transcript: {result.transcript}", style="dim", soft_wrap=True, markup=False)
    if json_:
        shown = result.model_dump(mode="json", include={"problem_id", "score", "stop_reason", "turns", "transcript"})
        print(json.dumps(shown | {"policy": config.policy}))
    raise typer.Exit(0 if result.passed else 1)
