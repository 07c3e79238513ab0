"""``rtl-agent-gym eval``: play many episodes of each problem and sum up the results."""

from __future__ import annotations

import asyncio
import contextlib
import json

import typer
from rich.console import Console

from ..cluster import CANARY_SECONDS, runtime_at
from ..episodes.runtime import using
from ..evaluation import EvaluationConfig, evaluate
from ..metrics import serving
from ..options import WITHOUT_DAEMON, EvaluationOptions, ProblemOptions
from ..sandboxes.choice import kind
from ..sandboxes.provider import warning_of_others
from ..scoring import RewardWeights
from .ending import FAILED, MACHINE_FAILED
from .eval_show import EvaluationProgress, episode_observer, print_summary, print_unstated
from .options import (
    CanarySecondsOption,
    FairOnlyOption,
    JsonOption,
    MetricsPortOption,
    RayOption,
    RaySlotsOption,
    with_options,
)


@with_options(
    *((ProblemOptions, name) for name in ("ids", "categories", "difficulties")),
    *(
        (EvaluationOptions, name)
        for name in ("samples", "folder", "concurrency", "max_cost", "max_tokens_total", "cache")
    ),
)
def eval_command(
    config: EvaluationConfig,
    fair_only: FairOnlyOption = False,
    ray: RayOption = "",
    ray_slots: RaySlotsOption = 0,
    canary_seconds: CanarySecondsOption = CANARY_SECONDS,
    metrics_port: MetricsPortOption = 0,
    json_: JsonOption = False,
) -> None:
    """Play many episodes of every problem with a policy, several at once, and sum up the results.

    Each result is saved when its episode ends. After a crash, Ctrl-C or kill -9 the same command continues where it
    stopped; with a larger -n it adds episodes to the saved ones. Exits 0 when every episode has a verdict, whatever it
    is, 3 when machine faults left some without one, and 1 when --max-cost or --max-tokens-total stopped it.
    """
    if fair_only:
        config = config.with_options(rows="fair")
    interactive = config.policy == "human"
    if interactive:
        config = config.with_options(concurrency=1)
    console = Console(stderr=json_)
    progress = EvaluationProgress(console, shown=not interactive)
    observer = episode_observer(console, progress) if interactive else progress.observer
    containers = not ray and kind(config.sandbox) not in WITHOUT_DAEMON
    if containers and (others := warning_of_others("--sandbox-limits", config.sandbox_limits)):
        console.print(f"warning: {others}", style="yellow", markup=False, soft_wrap=True)
    try:
        with contextlib.ExitStack() as stack:
            if ray:
                stack.enter_context(
                    using(runtime_at(ray, config.sandbox_limits, canary_seconds, ray_slots or config.concurrency))
                )
            if port := stack.enter_context(serving(metrics_port)):
                console.print(f"metrics: http://127.0.0.1:{port}/metrics", style="dim")
            stack.enter_context(progress)
            evaluation = asyncio.run(evaluate(config, observer=observer))
    except KeyboardInterrupt:
        progress.print_how_to_continue()
        raise
    record, summary = evaluation.record, evaluation.summary
    if record.samples > config.samples:
        note = (
            f"{evaluation.folder} was begun with {record.samples} episodes per problem: {summary.finished} of "
            f"{summary.episodes} have a verdict, and all of them count"
        )
        console.print(note, style="dim")
    print_summary(console, summary, simulated=RewardWeights.preset(str(config.reward)).simulate)
    print_unstated(console, evaluation.unstated)
    report = "report.json" if record.samples == 1 else "composite_report.json"
    note = f"results: {evaluation.folder}; for the official reporter: {evaluation.folder}/{report}"
    console.print(note, style="dim", soft_wrap=True, markup=False)
    if evaluation.stopped:
        console.print(
            f"stopped: {evaluation.stopped}; {summary.finished} of {summary.episodes} episodes have a verdict; the "
            "same command with a higher limit plays the others",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )
    if json_:
        place = {"folder": str(evaluation.folder), "policy": record.policy, "problems": record.problems}
        place["stopped"] = evaluation.stopped
        print(json.dumps(place | evaluation.as_json()))
    raise typer.Exit(MACHINE_FAILED if summary.faults else FAILED if evaluation.stopped else 0)
