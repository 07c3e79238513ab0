"""What an evaluation needs before its first episode: its problems, and who grades them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path

from ..episodes.episode import Grader
from ..episodes.rewards import FunctionGrader, read_reward
from ..episodes.runtime import WAITING, Runtime
from ..errors import UsageError, near_matches
from ..policies.judge import NamedJudges, make_judge
from ..problems import Problem, load_problems
from ..problems.compose import TEMPLATES
from ..problems.model import JUDGED
from ..sandboxes import SandboxProvider
from ..scoring import Scorer
from ..scoring.cache import default_cache_dir
from ..scoring.compose import read_services
from ..scoring.images import HarnessImages
from ..scoring.judging import rate
from ..scoring.scorable import nothing_left, scorable
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
        raise UsageError(nothing_left(source, left_out))
    for name, _ in config.episode.grading.harness.images:
        if not any(name in text for problem in problems for text in problem.harness.values()):
            raise UsageError(
                f"--harness-image {name}: the harness of no selected problem names this image "
                f"({near_matches(name, TEMPLATES)})"
            )
    return problems


_PLAIN = ("How many bits has an 8-bit register?", "It has 8 bits.")
"""A question and its answer, which every judge can rate."""


async def require_judge(config: EvaluationConfig, problems: Iterable[Problem]) -> None:
    """Get one rating from the judge that the options name, if one of the problems needs it.

    Raises:
        UsageError: Its service will never answer, such as for a wrong key or model.
        ModelError: It does not answer.
        HarnessError: It gives no rating.
    """
    name, (weights, _) = config.episode.grading.judge, read_reward(config.reward)
    rated = weights is None or weights.simulate
    if not isinstance(name, str) or not rated or not any(one.asks_text and one.category in JUDGED for one in problems):
        return
    judge = make_judge(name)
    try:
        question, answer = _PLAIN
        await rate(judge, question, answer, answer)
    finally:
        await judge.close()


async def require_images(config: EvaluationConfig, problems: Iterable[Problem], provider: SandboxProvider) -> None:
    """Build the images of harnesses that build on one of the caller's. Raises `ImageError` if one cannot be built."""
    options = config.episode.grading.harness
    images = HarnessImages(options=options)
    for problem in problems if options.images else ():
        for service in [] if problem.asks_text else read_services(problem, options):
            if service.image is not None:
                await images.image(problem, service, provider)


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
        judges = NamedJudges()
        owned.push_async_callback(judges.close)
        judge = judges.judge_of(options)
        made = Scorer(provider, weights=weights, cache=cache, waiting=waiting, judge=judge, harness=options.harness)
        scorer = await owned.enter_async_context(made)
    return scorer if function is None else FunctionGrader(scorer, function)
