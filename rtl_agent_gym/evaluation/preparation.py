"""What an evaluation needs before its first episode: its problems, and who grades them."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from ..episodes.episode import Grader
from ..episodes.rewards import FunctionGrader, read_reward
from ..episodes.runtime import WAITING, Runtime
from ..errors import UsageError
from ..policies import Closable
from ..policies.judge import judge_of
from ..problems import Problem, load_problems
from ..sandboxes import SandboxProvider
from ..scoring import Scorer
from ..scoring.cache import default_cache_dir
from ..scoring.scorable import scorable
from .config import EvaluationConfig
from .play import Observer


def scorable_problems(config: EvaluationConfig, observer: Observer) -> list[Problem]:
    """The problems of an evaluation. Raises `UsageError` if none can be scored here, and as `load_problems`."""
    found, source = config.problems, "the given list"
    if isinstance(found, (str, Path)):
        source = str(found)
        filters = {"ids": config.ids, "categories": config.categories, "difficulties": config.difficulties}
        found = load_problems(found, rows=config.rows, **filters)
    problems, left_out = scorable(found, config.episode.grading)
    for problem, reason in left_out:
        observer.left_out(problem, reason)
    if not problems:
        reasons = "; ".join(sorted({reason for _, reason in left_out})[:3])
        raise UsageError(f"no selected problem of {source} can be scored here{f': {reasons}' if reasons else ''}")
    return problems


async def make_grader(
    config: EvaluationConfig, provider: SandboxProvider, runtime: Runtime | None, problems: int, owned: AsyncExitStack
) -> Grader:
    """The runtime's grader; one of its own for a provider that was given."""
    weights, function = read_reward(config.reward)
    gradings = config.samples * problems * (1 + config.episode.harness_feedback)
    waiting = min(WAITING, config.concurrency, gradings - 1)  # the first one finds none waiting
    cache = default_cache_dir() if config.cache else None
    scorer: Grader
    if runtime is not None:
        scorer = runtime.scorer(weights, cache, waiting=waiting, options=config.episode.grading)
    else:
        options = config.episode.grading
        judge = judge_of(options)
        if isinstance(options.judge, str) and isinstance(judge, Closable):
            owned.push_async_callback(judge.close)
        made = Scorer(provider, weights=weights, cache=cache, waiting=waiting, judge=judge, harness=options.harness)
        scorer = await owned.enter_async_context(made)
    return scorer if function is None else FunctionGrader(scorer, function)
