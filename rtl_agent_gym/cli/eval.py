"""``rtl-agent-gym eval``: many episodes a problem with a policy, and what came of them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..envs.episode import EpisodeConfig
from ..errors import UsageError
from ..evaluation.official import write_official
from ..evaluation.results import EpisodeResult, EvaluationConfig, ResultsFile, problem_digests, results_file
from ..evaluation.run import Evaluation, Limits, scorable
from ..evaluation.summary import summarise
from ..policies import POLICIES, Closable, ModelOptions, Policy, ScriptedPolicy, make_policy
from ..problems import Problem, load_problems
from ..prompts import build_prompt
from ..renderers import Renderer, get_renderer
from ..sandboxes import DockerSandboxes
from ..scoring import PRESETS, RewardWeights, ScoreCache, Scorer
from .eval_views import EvaluationProgress, episode_watching, print_summary
from .options import JsonOption, ProblemsOption, RendererOption


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
    policy: Annotated[str, typer.Option(help=f"Who acts: {', '.join(POLICIES)}.")] = "golden",
    samples: Annotated[int, typer.Option("-n", "--samples", min=1, help="Episodes a problem.")] = 1,
    seed: Annotated[int, typer.Option(help="What every episode's own seed is made of.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; by default one below runs/eval/ named by its configuration.")
    ] = None,
    renderer: RendererOption = "qwen3",
    max_turns: Annotated[int, typer.Option(min=1, help="Turns before an episode is cut off.")] = 50,
    command_timeout: Annotated[float, typer.Option(min=0.1, help="Seconds one command may run.")] = 30.0,
    harness_feedback: Annotated[
        int, typer.Option(min=0, help="How often the agent may submit and is told which checks fail; 0 for never.")
    ] = 0,
    weights: Annotated[str, typer.Option(metavar="PRESET", help=f"One of {', '.join(PRESETS)}.")] = "default",
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at once.")] = 8,
    temperature: Annotated[float, typer.Option(min=0.0, help="Of models.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Of models.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of one turn, of models.")] = 4096,
    max_context: Annotated[int, typer.Option(min=1, help="Tokens a model can read, for tinker and local.")] = 32_768,
    base_url: Annotated[str | None, typer.Option(help="Of the model's service.")] = None,
    api_key: Annotated[
        str | None, typer.Option(help="Of the model's service; better in the environment, as its provider says.")
    ] = None,
    tools: Annotated[bool, typer.Option(help="Chat: declare the shell as a tool, or leave calls to the text.")] = True,
    cache: Annotated[bool, typer.Option(help="Use and keep gradings of equal files on disk.")] = True,
    json_: JsonOption = False,
) -> None:
    """Run episodes of every problem with a policy, many at once, and sum them up.

    Each finished episode is kept at once. After a crash, Ctrl-C or kill -9 the same command goes on where it stopped.
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
        console.print(f"left out: {other.id}: {reason}", style="yellow", markup=False, soft_wrap=True)
    if not chosen:
        raise UsageError(f"no problem of {problems} that was asked for can be scored here")
    player = make_policy(policy, options)
    dialect = get_renderer(renderer, getattr(player, "tokenizer", None))
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
    )
    interactive = bool(getattr(player, "interactive", False))
    plan = _Plan(
        chosen,
        player,
        dialect,
        config,
        _rules(config, chosen[0], native=bool(getattr(player, "native_tools", False))),
        Limits(concurrency=1 if interactive else concurrency),
        cache,
    )
    folder = out or Path("runs/eval") / _folder_name(config)
    with results_file(folder, config) as file:
        results = asyncio.run(_run(plan, file, console, interactive))
    _conclude(folder, results, config, console, json_)


def _conclude(
    folder: Path, results: list[EpisodeResult], config: EvaluationConfig, console: Console, json_: bool
) -> None:
    summary = summarise(results, episodes=config.samples * len(config.digests))
    (folder / "summary.json").write_text(json.dumps(summary.as_json(), indent=2) + "\n", encoding="utf-8")
    report = write_official(folder, results, config)[-1]
    print_summary(console, summary, simulated=RewardWeights.preset(config.weights).simulate)
    console.print(f"results: {folder}; for the official reporter: {report}", style="dim", soft_wrap=True, markup=False)
    if json_:
        print(
            json.dumps(
                {"folder": str(folder), "policy": config.policy, "problems": config.problems} | summary.as_json()
            )
        )
    raise typer.Exit(3 if summary.faults else 0)


async def _run(plan: _Plan, file: ResultsFile, console: Console, interactive: bool) -> list[EpisodeResult]:
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
            missing = sum(1 for _ in evaluation.missing())
            if missing < total:
                console.print(f"{total - missing} of {total} episodes are there already", style="dim")
            if interactive:
                return await evaluation.run()
            with progress:
                progress.known([result for result in file.done.values() if result.score is not None])
                return await evaluation.run()
    finally:
        if isinstance(plan.policy, Closable):
            await plan.policy.close()


def _rules(config: EvaluationConfig, problem: Problem, *, native: bool) -> EpisodeConfig:
    rules = EpisodeConfig(
        max_turns=config.max_turns,
        command_timeout=config.command_timeout,
        harness_feedback=config.harness_feedback,
    )
    if not native:
        return rules
    # The service teaches its own form of calls, so the dialect's part is left out. The rest holds for every problem.
    system, _ = build_prompt(
        problem,
        command_timeout=rules.command_timeout,
        max_output=rules.max_output,
        max_turns=rules.max_turns,
        harness_feedback=rules.harness_feedback,
    )
    return replace(rules, system_prompt=system)


def _sampling(name: str, policy: Policy, options: ModelOptions) -> dict[str, Any]:
    """What else the results depend on."""
    if isinstance(policy, ScriptedPolicy):
        return {"script": hashlib.sha256(policy.path.read_bytes()).hexdigest()}
    if name in ("golden", "random", "human"):
        return {}
    names = ("temperature", "top_p", "max_tokens", "max_context", "base_url", "tools")
    return {name: getattr(options, name) for name in names}


def _folder_name(config: EvaluationConfig) -> str:
    words = re.sub(r"[^A-Za-z0-9.]+", "-", f"{config.policy}-{Path(config.problems).name}").strip("-")
    return f"{words[:60]}-n{config.samples}-{config.digest}"
