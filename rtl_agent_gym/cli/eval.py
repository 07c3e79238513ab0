"""``rtl-agent-gym eval``: many episodes a problem with a policy, and what came of them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit, urlunsplit

import typer
from rich.console import Console

from .. import __version__
from ..episodes.episode import EpisodeConfig
from ..errors import SandboxError, UsageError
from ..evaluation.official import write_official
from ..evaluation.play import rules_for
from ..evaluation.results import EvaluationConfig, ResultsFile, problem_digests, results_file
from ..evaluation.run import Evaluation, Limits, scorable
from ..evaluation.summary import summarise
from ..policies import Closable, ModelOptions, Policy, ScriptedPolicy, make_policy
from ..problems import Problem, load_problems
from ..prompts import build_prompt
from ..renderers import Renderer, get_renderer
from ..sandboxes import DockerSandboxes
from ..sandboxes.image import image_tag
from ..scoring import RewardWeights, ScoreCache, Scorer
from ..visible import visible
from .eval_views import EvaluationProgress, episode_watching, print_summary
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
    ProblemsOption,
    RendererOption,
    TemperatureOption,
    ToolsOption,
    TopPOption,
    WeightsOption,
)


@dataclass(frozen=True)
class _Plan:
    """An evaluation, ready to be run."""

    problems: list[Problem]
    policy: Policy
    renderer: Renderer
    config: EvaluationConfig
    rules: EpisodeConfig
    limits: Limits
    cache: bool


def eval_command(
    problems: ProblemsOption = "bundled",
    problem: Annotated[list[str] | None, typer.Option("--problem", metavar="ID", help="Only this; repeatable.")] = None,
    category: Annotated[list[str] | None, typer.Option(help="Only this, as 3 or cid003; repeatable.")] = None,
    difficulty: Annotated[list[str] | None, typer.Option(help="Only this; repeatable.")] = None,
    policy: PolicyOption = "golden",
    samples: Annotated[int, typer.Option("-n", "--samples", min=1, help="Episodes a problem.")] = 1,
    seed: Annotated[int, typer.Option(help="What every episode's own seed is made of.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; by default one below runs/eval/ named by its configuration.")
    ] = None,
    renderer: RendererOption = "qwen3",
    max_turns: MaxTurnsOption = 50,
    command_timeout: CommandTimeoutOption = 30.0,
    harness_feedback: FeedbackOption = 0,
    weights: WeightsOption = "default",
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at once.")] = 8,
    temperature: TemperatureOption = 1.0,
    top_p: TopPOption = 1.0,
    max_tokens: MaxTokensOption = 4096,
    max_context: MaxContextOption = 32_768,
    base_url: BaseUrlOption = None,
    api_key: ApiKeyOption = None,
    tools: ToolsOption = True,
    cache: Annotated[bool, typer.Option(help="Use and keep gradings of equal files on disk.")] = True,
    json_: JsonOption = False,
) -> None:
    """Run episodes of every problem with a policy, many at once, and sum them up.

    Each finished episode is kept at once. After a crash, Ctrl-C or kill -9 the same command goes on where it stopped;
    with a larger -n it adds episodes to those that are there.
    Exits 0 when every episode has a verdict, whatever it is, and 3 when the machine left some without one.
    """
    console = Console(stderr=json_)
    options = ModelOptions(
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        max_context=max_context,
        base_url=base_url,
        api_key=api_key,
        tools=tools,
    )
    chosen, left = scorable(load_problems(problems, ids=problem, categories=category, difficulties=difficulty))
    for other, reason in left:
        line = visible(f"left out: {other.id}: {reason}")
        console.print(line, style="yellow", markup=False, soft_wrap=True)
    if not chosen:
        raise UsageError(f"no problem of {problems} that was asked for can be scored here")
    player = make_policy(policy, options)
    dialect = get_renderer(renderer, getattr(player, "tokenizer", None))
    rules = EpisodeConfig(max_turns=max_turns, command_timeout=command_timeout, harness_feedback=harness_feedback)
    config = EvaluationConfig(
        problems=problems,
        digests=problem_digests(chosen),
        policy=policy,
        samples=samples,
        seed=seed,
        renderer=renderer,
        max_turns=max_turns,
        command_timeout=command_timeout,
        harness_feedback=harness_feedback,
        weights=weights,
        sampling=_sampling(policy, player, options),
        image=image_tag(),
        prompts=prompts_digest(player, dialect, chosen[0], rules),
        version=__version__,
    )
    interactive = bool(getattr(player, "interactive", False))
    limits = Limits(concurrency=1 if interactive else concurrency)
    plan = _Plan(chosen, player, dialect, config, rules, limits, cache)
    folder = out or Path("runs/eval") / _folder_name(config)
    with results_file(folder, config) as file:
        try:
            asyncio.run(_run(plan, file, console, interactive))
        except KeyboardInterrupt:
            _say_how_to_go_on(file)
            raise
        _conclude(file, plan, console, json_)


def _say_how_to_go_on(file: ResultsFile) -> None:
    kept = sum(result.score is not None for result in file.done.values())
    total = file.config.samples * len(file.config.digests)
    Console(stderr=True).print(
        f"interrupted: {kept} of {total} episodes are kept in {file.folder}; the same command goes on with the others",
        style="yellow",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _conclude(file: ResultsFile, plan: _Plan, console: Console, json_: bool) -> None:
    folder, config = file.folder, file.config
    results = [result for result in file.done.values() if result.problem_id in config.digests]
    if config.samples > plan.config.samples:
        console.print(f"{folder} holds {config.samples} episodes a problem, and all of them count", style="dim")
    summary = summarise(results, episodes=config.samples * len(config.digests))
    try:
        (folder / "summary.json").write_text(json.dumps(summary.as_json(), indent=2) + "\n", encoding="utf-8")
        report = write_official(folder, results, config)[-1]
    except OSError as error:
        raise SandboxError(f"{error.filename or folder}: cannot be written: {error.strerror}") from error
    print_summary(console, summary, simulated=RewardWeights.preset(config.weights).simulate)
    console.print(f"results: {folder}; for the official reporter: {report}", style="dim", soft_wrap=True, markup=False)
    if json_:
        print(
            json.dumps(
                {"folder": str(folder), "policy": config.policy, "problems": config.problems} | summary.as_json()
            )
        )
    raise typer.Exit(3 if summary.faults else 0)


async def _run(plan: _Plan, file: ResultsFile, console: Console, interactive: bool) -> None:
    total = plan.config.samples * len(plan.problems)
    progress = EvaluationProgress(console, total)
    observer = episode_watching(console) if interactive else progress.observer
    weights = RewardWeights.preset(plan.config.weights)
    waiting = min(plan.limits.gradings, plan.limits.concurrency, total)
    try:
        async with (
            DockerSandboxes() as provider,
            Scorer(provider, weights=weights, cache=ScoreCache() if plan.cache else None, waiting=waiting) as scorer,
        ):
            evaluation = Evaluation(
                plan.problems,
                plan.policy,
                plan.renderer,
                provider=provider,
                grader=scorer,
                file=file,
                samples=plan.config.samples,
                seed=plan.config.seed,
                rules=plan.rules,
                limits=plan.limits,
                observer=observer,
            )
            known = evaluation.known()
            if known:
                console.print(f"{len(known)} of {total} episodes are there already", style="dim")
            if interactive:
                await evaluation.run()
                return
            with progress:
                progress.known(known)
                await evaluation.run()
    finally:
        if isinstance(plan.policy, Closable):
            await plan.policy.close()


def prompts_digest(policy: Policy, dialect: Renderer, problem: Problem, rules: EpisodeConfig) -> str:
    """Twelve hex digits that stand for the words around a problem: what one of the problems begins with."""
    config = rules_for(policy, problem, rules)
    system, user = build_prompt(
        problem,
        renderer=dialect.name,
        command_timeout=config.command_timeout,
        max_output=config.max_output,
        max_turns=config.max_turns,
        harness_feedback=config.harness_feedback,
    )
    words = [system if config.system_prompt is None else config.system_prompt, user]
    return hashlib.sha256("\0".join(words).encode("utf-8", "replace")).hexdigest()[:12]


def _sampling(name: str, policy: Policy, options: ModelOptions) -> dict[str, Any]:
    """What else the results depend on."""
    if isinstance(policy, ScriptedPolicy):
        return {"script": hashlib.sha256(policy.path.read_bytes()).hexdigest()}
    if name in ("golden", "random", "human"):
        return {}
    names = ("temperature", "top_p", "max_tokens", "max_context", "tools")
    return {name: getattr(options, name) for name in names} | {"base_url": _without_port(options.base_url)}


def _without_port(address: str | None) -> str | None:
    """A service's address as far as it says what is asked. A server that is started again has another port."""
    if address is None:
        return None
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.hostname or "", query="", fragment="")).rstrip("/")


def _folder_name(config: EvaluationConfig) -> str:
    words = re.sub(r"[^A-Za-z0-9.]+", "-", f"{config.policy}-{Path(config.problems).name}").strip("-")
    return f"{words[:60]}-{config.digest}"
