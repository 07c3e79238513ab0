"""Sum up the results of an evaluation."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from ..problems import DIFFICULTIES
from .outcome import EpisodeResult
from .statistics import Estimate, pass_curve

STAGES = ("format", "syntax", "interface", "compile")


@dataclass(frozen=True)
class Rates:
    """Rates over a set of episodes with a verdict."""

    problems: int
    episodes: int
    format: float
    """Share of the episodes in which this stage fully succeeds; `syntax`, `interface` and `compile` likewise."""
    syntax: float
    interface: float
    compile: float
    passed: float
    tests: float
    """Mean share of the hidden tests that pass."""
    reward: float
    """Mean reward."""


@dataclass(frozen=True)
class Cost:
    """Turns, tokens and time, as means per episode unless stated otherwise. Faulted episodes are left out."""

    turns: float
    malformed: float
    prompt_tokens: float | None
    output_tokens: float | None
    tokens_per_turn: float | None
    """Tokens written per turn."""
    seconds: float
    acting_seconds: float
    total_seconds: float
    """Sum over all episodes."""


@dataclass(frozen=True)
class Summary:
    """The results of an evaluation."""

    episodes: int
    """Requested episodes."""
    finished: int
    """Episodes with a verdict."""
    passed: int
    faults: int
    """Episodes without a verdict, since the machine failed. They are not included in the rates."""
    retries: int
    """How often an episode or a grading was restarted because the machine failed."""
    pass_at: dict[int, Estimate]
    overall: Rates | None
    by_category: dict[str, Rates]
    by_difficulty: dict[str, Rates]
    causes: dict[str, int]
    """Why episodes did not pass; see `outcome.Cause`."""
    cost: Cost | None

    def as_json(self) -> dict[str, Any]:
        """The summary as data for JSON."""
        plain = asdict(self)
        plain["pass_at"] = {str(k): value for k, value in plain["pass_at"].items()}
        return plain


def summarise(results: Sequence[EpisodeResult], *, episodes: int | None = None) -> Summary:
    """Sum up results.

    Args:
        results: One for each episode.
        episodes: The number of requested episodes; None for the number of results.
    """
    scored = sorted((result for result in results if result.score is not None), key=lambda result: result.key)
    causes = Counter(result.cause for result in results if result.cause is not None)
    return Summary(
        episodes=len(results) if episodes is None else episodes,
        finished=len(scored),
        passed=sum(result.passed for result in scored),
        faults=len(results) - len(scored),
        retries=sum(result.retries + (result.score.retries if result.score else 0) for result in results),
        pass_at=pass_curve(verdicts(scored)),
        overall=_rates(scored) if scored else None,
        by_category=_by(scored, lambda result: f"cid{result.category:03d}"),
        by_difficulty=_by(scored, lambda result: result.difficulty, DIFFICULTIES),
        causes={str(cause): count for cause, count in causes.most_common()},
        cost=_cost(scored) if scored else None,
    )


def verdicts(results: Iterable[EpisodeResult]) -> dict[str, list[bool]]:
    """For each problem: whether its episodes passed, of those with a verdict."""
    found: dict[str, list[bool]] = defaultdict(list)
    for result in results:
        if result.score is not None:
            found[result.problem_id].append(result.passed)
    return found


def _by(
    results: Sequence[EpisodeResult], group: Callable[[EpisodeResult], str], order: Sequence[str] = ()
) -> dict[str, Rates]:
    groups: dict[str, list[EpisodeResult]] = defaultdict(list)
    for result in results:
        groups[group(result)].append(result)
    names = [name for name in order if name in groups] + sorted(set(groups) - set(order))
    return {name: _rates(groups[name]) for name in names}


def _rates(results: Sequence[EpisodeResult]) -> Rates:
    scores = [result.score for result in results if result.score is not None]
    stages = {stage: fmean(getattr(score, stage) >= 1 for score in scores) for stage in STAGES}
    return Rates(
        problems=len({result.problem_id for result in results}),
        episodes=len(results),
        passed=fmean(score.passed for score in scores),
        tests=fmean(score.tests_passed / score.tests_total if score.tests_total else 0.0 for score in scores),
        reward=fmean(score.reward for score in scores),
        **stages,
    )


def _cost(results: Sequence[EpisodeResult]) -> Cost:
    turns = sum(result.turns for result in results)
    written = [result for result in results if result.output_tokens is not None]
    written_turns = sum(result.turns for result in written)
    return Cost(
        turns=turns / len(results),
        malformed=fmean(result.malformed for result in results),
        prompt_tokens=_mean(result.prompt_tokens for result in results),
        output_tokens=_mean(result.output_tokens for result in results),
        tokens_per_turn=sum(result.output_tokens or 0 for result in written) / written_turns if written_turns else None,
        seconds=fmean(result.seconds for result in results),
        acting_seconds=fmean(result.acting_seconds for result in results),
        total_seconds=sum(result.seconds for result in results),
    )


def _mean(values: Iterable[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
