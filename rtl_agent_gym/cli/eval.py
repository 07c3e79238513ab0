"""``rtl-agent-gym run`` and ``eval``: play one episode with live output, or many, and sum up the results."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from ..cluster import runtime_at
from ..episodes.runtime import using
from ..errors import SandboxError
from ..evaluation import EpisodeResult, EvaluationConfig, Observer, Summary, evaluate
from ..evaluation.fairness import Unstated
from ..metrics import serving
from ..options import WITHOUT_DAEMON, ClusterOptions, EvaluationOptions, ProblemOptions
from ..problems import Problem
from ..sandboxes.choice import host_of, kind
from ..sandboxes.container import warning_of_others
from ..scoring import RewardWeights
from ..scoring.scorer import require_scorable
from ..visible import clock, plural
from .commands import FAILED, MACHINE_FAILED
from .options import (
    CHOICE,
    FairOnlyOption,
    JsonOption,
    ProblemOption,
    one_problem,
    options_as,
    parameters_of,
    refuse_options_of_nodes,
    with_options,
    writable_folder,
)
from .show import console_beside, episode_printer, print_line, print_score, stderr_console, table_of_figures


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
    console = console_beside(json_)
    faults: list[SandboxError] = []
    observer = episode_printer(console)
    observer.faulted = lambda problem, sample, error: faults.append(error)
    (result,) = asyncio.run(evaluate(config, observer=observer)).results
    if result.score is None:
        raise faults[-1]
    print_score(console, result.score, weights, of_text=chosen.asks_text)
    print_line(console, f"ended: {result.stop_reason} after {plural(result.turns, 'turn')}", "dim")
    print_line(console, f"transcript: {result.transcript}", "dim")
    if json_:
        shown = result.model_dump(mode="json", include={"problem_id", "score", "stop_reason", "turns", "transcript"})
        print(json.dumps(shown | {"policy": config.policy}))
    raise typer.Exit(0 if result.passed else 1)


_SHARES = ("format", "syntax", "interface", "tests", "passed")


class EvaluationProgress:
    """A progress line: episodes done and passed, machine faults, episodes per minute, time left.

    If it is not shown, every turn and verdict is printed instead, for a human player.
    """

    def __init__(self, console: Console, *, shown: bool = True) -> None:
        # What a human player has just typed is not printed again.
        printer = Observer() if shown else replace(episode_printer(console), completion=Observer.completion)
        self.observer = replace(
            printer, left_out=self._left_out, started=self._started, faulted=self._faulted, finished=self._finished
        )
        self._folder: Path | None = None
        self._total = self._kept = self._done = self._passed = self._faults = self._new = 0
        self._begun = time.monotonic()
        self._console, self._shown = console, shown
        columns = (SpinnerColumn(), BarColumn(bar_width=16), MofNCompleteColumn(), TextColumn("{task.fields[state]}"))
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task("episodes", total=None, state="")
        self.stop = self._progress.stop

    def state(self) -> str:
        """The text beside the progress bar."""
        minutes = max(time.monotonic() - self._begun, 1e-3) / 60
        rate = self._new / minutes
        left = clock(60 * (self._total - self._done) / rate) if rate else "?:??"
        return f"{self._passed} passed · {plural(self._faults, 'machine fault')} · {rate:.1f}/min · {left} left"

    def print_how_to_continue(self) -> None:
        """After Ctrl-C, print what is saved and how to continue."""
        if self._folder is None:
            return
        saved = f"{self._kept} of {self._total} episodes are saved in {self._folder}"
        print_line(stderr_console(), f"interrupted: {saved}; the same command plays the others", "yellow")

    def _left_out(self, problem: Problem, reason: str) -> None:
        print_line(self._console, f"left out: {problem.id}: {reason}", "yellow")

    def _started(self, folder: Path | None, total: int, known: list[EpisodeResult]) -> None:
        self._folder, self._total, self._begun = folder, total, time.monotonic()
        self._done = self._kept = len(known)
        self._passed = sum(result.passed for result in known)
        if known:
            print_line(self._console, f"{len(known)} of {total} episodes are saved already", "dim")
        if self._shown:
            self._progress.start()
        self._show()

    def _faulted(self, problem: Problem, sample: int, error: SandboxError) -> None:
        self._faults += 1
        print_line(self._console, f"machine fault in {problem.id}, sample {sample}: {error}", "yellow")
        self._show()

    def _finished(self, result: EpisodeResult) -> None:
        self._done += 1
        self._new += 1
        self._kept += result.score is not None
        self._passed += result.passed
        self._show()
        if not self._shown:
            print_line(self._console, f"{result.problem_id}: {_verdict(result)}")

    def _show(self) -> None:
        self._progress.update(self._task, total=self._total, completed=self._done, state=self.state())


def _verdict(result: EpisodeResult) -> str:
    if result.score is None:
        return f"no verdict: {result.fault}"
    return "passed" if result.passed else f"failed ({result.cause}): {result.score.reason}"


def print_summary(console: Console, summary: Summary, *, simulated: bool = True) -> None:
    """Print the results as tables; `simulated`: whether the hidden tests were run."""
    if not simulated:
        print_line(console, "with these weights the hidden tests are not run, so no episode can pass", "yellow")
    print_rates(console, summary, "all rows: " if summary.noted else "")
    if summary.fair is not None and summary.fair.finished < summary.finished:
        print_rates(console, summary.fair, "fair rows: ")
    elif summary.noted:
        known = "none of these rows is" if summary.fair is None else "all of these rows are"
        print_line(console, f"{known} known to be fair")
    if summary.causes and simulated:
        causes = ", ".join(f"{cause} {count}" for cause, count in summary.causes.items())
        print_line(console, f"not passed, by cause: {causes}")
    if (cost := summary.cost) is not None:
        tokens = "" if cost.output_tokens is None else f", {cost.output_tokens:,.0f} tokens written"
        read = "" if cost.prompt_tokens is None else f", {cost.prompt_tokens:,.0f} read"
        print_line(
            console,
            f"per episode: {cost.turns:.1f} turns ({cost.malformed:.2f} malformed){tokens}{read}, {cost.seconds:.1f} s "
            f"(of these {cost.acting_seconds:.1f} s waiting for the policy)",
        )
    if summary.oom_kills:
        print_line(console, f"processes of agents that ran out of memory: {summary.oom_kills:,}", "yellow")
    if (spent := summary.spent) is not None:
        price = "price unknown" if spent.cost is None else f"${spent.cost:,.4f}"
        read = f"{spent.prompt_tokens:,} tokens read ({spent.cached_tokens:,} from a cache)"
        print_line(console, f"in all: {read}, {spent.output_tokens:,} written; {price}")
    if summary.retries or summary.faults:
        faults = f"{summary.retries} retried, {plural(summary.faults, 'episode')} left without a verdict"
        print_line(console, f"machine faults: {faults}", "yellow")


def print_unstated(console: Console, found: Sequence[Unstated]) -> None:
    """Print the failed episodes that an unstated demand of the tests explains."""
    if not found:
        return
    episodes = plural(len(found), "episode")
    print_line(console, f"{episodes} failed only because of a demand that the task does not state:", "yellow")
    for episode in found:
        print_line(console, f"  {episode.problem_id}, sample {episode.sample}: {episode.demand}: {episode.text}")


def print_rates(console: Console, summary: Summary, of: str = "") -> None:
    """Print the rates by category, by difficulty and overall, and pass@k; `of`: prefix of the titles."""
    table = table_of_figures(f"{of}episodes", "", "problems", "episodes", *_SHARES, "reward")
    for group in (summary.by_category, summary.by_difficulty, {"[bold]all[/]": summary.overall}):
        for name, rates in group.items():
            if rates is not None:
                shares = [f"{getattr(rates, share):.1%}" for share in _SHARES]
                table.add_row(name, str(rates.problems), str(rates.episodes), *shares, f"{rates.reward:.3f}")
        table.add_section()
    console.print(table)
    if summary.pass_at:
        passes = table_of_figures(f"{of}pass@k, unbiased, with 95 % intervals", "k", "pass@k", "interval", "problems")
        for k, found in summary.pass_at.items():
            passes.add_row(str(k), f"{found.value:.1%}", f"{found.low:.1%} – {found.high:.1%}", str(found.problems))
        console.print(passes)


@with_options(
    *parameters_of(ProblemOptions, *CHOICE),
    *parameters_of(EvaluationOptions, "samples", "folder", "concurrency", "max_cost", "max_tokens_total", "cache"),
)
@options_as("cluster", ClusterOptions, parameters_of(ClusterOptions))
def eval_command(
    context: typer.Context,
    config: EvaluationConfig,
    cluster: ClusterOptions,
    fair_only: FairOnlyOption = False,
    json_: JsonOption = False,
) -> None:
    """Play many episodes of every problem with a policy, several at once, and sum up the results.

    Each result is saved when its episode ends. After a crash, Ctrl-C or kill -9 the same command continues where it
    stopped; with a larger -n it adds episodes to the saved ones. Exits 0 if every episode up to -n has a verdict,
    passed or not; 1 if --max-cost or --max-tokens-total stopped the evaluation; 3 if machine faults left some episodes
    without a verdict.
    """
    ray = cluster.ray_address
    if ray:
        refuse_options_of_nodes(context, config.sandbox)
    if fair_only:
        config = config.with_options(rows="fair")
    interactive = config.policy == "human"
    if interactive:
        config = config.with_options(concurrency=1)
    console = console_beside(json_)
    progress = EvaluationProgress(console, shown=not interactive)
    containers = not ray and kind(config.sandbox) not in WITHOUT_DAEMON
    host = partial(host_of, config.sandbox)
    if containers and (others := warning_of_others("--sandbox-limits", config.sandbox_limits, host)):
        print_line(console, f"warning: {others}", "yellow")
    try:
        with contextlib.ExitStack() as stack:
            if ray:
                slots = cluster.ray_slots or config.concurrency
                stack.enter_context(using(runtime_at(ray, config.sandbox_limits, cluster.canary_seconds, slots)))
            if port := stack.enter_context(serving(cluster.metrics_port)):
                print_line(console, f"metrics: http://127.0.0.1:{port}/metrics", "dim")
            stack.callback(progress.stop)
            evaluation = asyncio.run(evaluate(config, observer=progress.observer))
    except KeyboardInterrupt:
        progress.print_how_to_continue()
        raise
    record, summary = evaluation.record, evaluation.summary
    finished = f"{summary.finished} of {summary.episodes}"
    if record.samples > config.samples:
        begun = f"{evaluation.folder} was started with {record.samples} episodes per problem"
        print_line(console, f"{begun}: {finished} have a verdict, and all are counted", "dim")
    print_summary(console, summary, simulated=RewardWeights.preset(str(config.reward)).simulate)
    print_unstated(console, evaluation.unstated)
    report = "report.json" if record.samples == 1 else "composite_report.json"
    print_line(console, f"results: {evaluation.folder}; for the official reporter: {evaluation.folder}/{report}", "dim")
    if evaluation.stopped:
        others = "the same command with a higher limit plays the others"
        print_line(console, f"stopped: {evaluation.stopped}; {finished} episodes have a verdict; {others}", "yellow")
    if json_:
        place = {"folder": str(evaluation.folder), "policy": record.policy, "problems": record.problems}
        place["stopped"] = evaluation.stopped
        print(json.dumps(place | evaluation.as_json()))
    faulted = any(result.score is None and result.sample < config.samples for result in evaluation.results)
    raise typer.Exit(FAILED if evaluation.stopped else MACHINE_FAILED if faulted else 0)
