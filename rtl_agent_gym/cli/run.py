"""``rtl-agent-gym run``: play one episode with live output, and print its score."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..errors import SandboxError
from ..evaluation import EpisodeResult, evaluate
from ..scoring import RewardWeights, Score
from ..scoring.scorable import require_scorable
from .episode_options import EpisodeOptions, with_options
from .options import JsonOption, ProblemOption, one_problem, writable_folder
from .show import EpisodePrinter, print_score


@with_options
def run_command(
    options: EpisodeOptions,
    problem: ProblemOption = None,
    transcript_dir: Annotated[Path, typer.Option(help="Folder for the transcript.")] = Path("runs/transcripts"),
    json_: JsonOption = False,
) -> None:
    """Play one episode, show it live, and print its score.

    Exits 0 when the design passed, 1 when it did not.
    """
    chosen = require_scorable(one_problem(options.problems, problem))
    weights = RewardWeights.preset(options.weights)
    config = options.evaluation(
        problems=[chosen], keep=False, transcript_dir=transcript_dir, attempts=1, concurrency=1, cache=False
    )
    writable_folder(transcript_dir, "--transcript-dir")
    console = Console(stderr=json_)
    faults: list[SandboxError] = []
    observer = EpisodePrinter(console).observer
    observer.faulted = lambda problem, sample, error: faults.append(error)
    (result,) = asyncio.run(evaluate(config, observer=observer)).results
    if result.score is None:
        raise faults[-1]
    print_score(console, result.score, weights)
    console.print(f"ended: {result.stop_reason} after {result.turns} turns", style="dim")
    console.print(f"transcript: {result.transcript}", style="dim", soft_wrap=True, markup=False)
    if json_:
        print(json.dumps(_summary(result, result.score, options.policy)))
    raise typer.Exit(0 if result.passed else 1)


def _summary(result: EpisodeResult, score: Score, policy: str) -> dict[str, object]:
    return {
        "problem_id": result.problem_id,
        "policy": policy,
        "score": score.model_dump(mode="json"),
        "stop_reason": result.stop_reason,
        "turns": result.turns,
        "transcript": result.transcript,
    }
