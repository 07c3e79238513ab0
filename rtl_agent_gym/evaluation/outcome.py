"""The outcome of one episode, and the summary of many."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel
from pydantic_core import to_jsonable_python

from ..problems import DIFFICULTIES, Problem
from ..problems.notes import note_of
from ..scoring.score import Score
from ..transcripts import Transcript
from .spending import Spent
from .statistics import Estimate, pass_curve

STAGES = ("format", "syntax", "interface", "compile")
"""The stages of a score that are shares between 0 and 1. The tests, which follow, are a count."""

Cause = Literal[
    "machine",
    "refused",
    "malformed",
    "out of turns or tokens",
    "broken sandbox",
    "violation",
    "missing",
    "syntax",
    "interface",
    "compile",
    "tests",
    "untested",
]
"""Why an episode did not pass; the first of these that applies:

``machine``: no verdict, since the machine or the model's service failed. ``refused``: the model refused, or a content
filter of its service did. ``malformed``: too many malformed turns.
``out of turns or tokens``: the limit on turns or tokens, or the model's context, was reached. ``broken sandbox``: the
agent's own commands ended its sandbox. ``violation``: an attempt against the grader. ``missing``: a target file is
missing. ``syntax``, ``interface``, ``compile``, ``tests``: the first stage that did not fully succeed.
``untested``: no stage failed, but with these weights (``proxy``) nothing is compiled or run.
"""


Seconds = Annotated[float, AfterValidator(lambda value: value if -1e100 < value < 1e100 else 0.0)]
"""A time. A value that is not finite, as only a damaged record has, is read as 0."""


class EpisodeResult(BaseModel, frozen=True):
    """A finished episode: a line of ``results.jsonl``."""

    problem_id: str
    sample: int = 0
    """Number among the episodes of its problem, from 0."""
    category: int
    difficulty: str
    seed: int
    score: Score | None = None
    """None if the machine failed; the episode is then excluded from all rates."""
    fault: str | None = None
    """The machine fault, if there is no score."""
    retries: int = 0
    """How often the episode was restarted because the machine failed."""
    stop_reason: str = ""
    turns: int = 0
    malformed: int = 0
    prompt_tokens: int | None = None
    """Tokens that the model read, summed over the turns; None if unknown."""
    output_tokens: int | None = None
    """Tokens that the model wrote; None if unknown."""
    refused: bool = False
    """Whether the model refused to go on, or a content filter of its service withheld its last turn."""
    oom_kills: int | None = None
    """Processes of the agent that the kernel ended for lack of memory, which is not a machine fault; None if
    unknown."""
    spent: Spent | None = None
    """What all attempts at the episode used, including those that a fault ended; None if unknown."""
    seconds: Seconds = 0.0
    """Wall time from the start of the sandbox to the score."""
    acting_seconds: Seconds = 0.0
    """The part of `seconds` spent waiting for the policy."""
    transcript: str | None = None
    """Path of the transcript; relative to the run's folder if there is one."""
    fair: bool | None = None
    """Whether the row was known to be fair when it was played (`Note.fair`); None if it had no note."""

    @classmethod
    def of(cls, problem: Problem, seed: int, **fields: Any) -> EpisodeResult:
        """The result of an episode of `problem`."""
        note = note_of(problem)
        return cls(
            problem_id=problem.id,
            category=problem.category,
            difficulty=problem.difficulty,
            seed=seed,
            fair=note.fair if note is not None else None,
            **fields,
        )

    @classmethod
    def of_transcript(cls, transcript: Transcript, /, **fields: Any) -> EpisodeResult:
        """The result of a recorded episode, as far as the transcript shows; `fields` adds the other fields."""
        header, end = transcript.header, transcript.end
        ids = [turn.token_ids for turn in transcript.turns if turn.token_ids is not None]
        return cls(
            problem_id=header.problem_id,
            category=header.category or 0,
            difficulty=header.difficulty or "unknown",
            seed=header.seed or 0,
            score=Score.model_validate(transcript.score.score) if transcript.score is not None else None,
            fault=end.error if end is not None else None,
            stop_reason=end.stop_reason if end is not None else "",
            turns=len(transcript.turns),
            malformed=sum(turn.action == "malformed" for turn in transcript.turns),
            output_tokens=sum(map(len, ids)) if ids else None,
            refused=bool(transcript.turns) and transcript.turns[-1].refused,
            seconds=end.seconds if end is not None else 0.0,
            oom_kills=end.oom_kills if end is not None else None,
            **fields,
        )

    @property
    def key(self) -> tuple[str, int]:
        """Identifies an episode within a run."""
        return self.problem_id, self.sample

    @property
    def passed(self) -> bool:
        """The official verdict; False if there is none."""
        return self.score is not None and self.score.passed

    @property
    def cause(self) -> Cause | None:
        """Why it did not pass; None when it did."""
        score = self.score
        if score is None:
            return "machine"
        if score.passed:
            return None
        if self.refused:
            return "refused"
        if self.stop_reason == "parse_error":
            return "malformed"
        if self.stop_reason in ("max_turns", "max_tokens"):
            return "out of turns or tokens"
        if self.stop_reason == "sandbox_broken":
            return "broken sandbox"
        if score.violations:
            return "violation"
        if score.format < 1:
            return "missing"
        if score.syntax < 1 or score.interface < 1:
            return "syntax" if score.syntax < 1 else "interface"
        if not score.tests_total:
            return "untested"  # whatever was run counts as at least one test
        return "compile" if score.compile < 1 else "tests"


def episode_seed(seed: int, problem_id: str, sample: int) -> int:
    """The seed of one episode, 0 to 2**31 - 1, independent of the other episodes and their order."""
    digest = hashlib.sha256(f"{seed}\n{sample}\n{problem_id}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


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
    oom_kills: int = 0
    """Processes of agents that the kernel ended for lack of memory, as far as that is known."""
    spent: Spent | None = None
    """Total tokens and money, including those of lost attempts; None if unknown."""
    noted: int = 0
    """Problems with a verdict that have a note (`problems.notes`)."""
    fair: Summary | None = None
    """The summary of the rows that are known to be fair; None if none of them has a verdict."""

    def as_json(self) -> dict[str, Any]:
        """The summary as data for JSON."""
        plain: dict[str, Any] = to_jsonable_python(self)
        return plain


def summarise(
    results: Sequence[EpisodeResult],
    *,
    episodes: int | None = None,
    spent: Spent | None = None,
    same_policy: bool = True,
) -> Summary:
    """Summarise results.

    Args:
        episodes: The number of requested episodes; None for the number of results.
        spent: What was spent in total; None for the sum over `results`.
        same_policy: Whether one policy played them all; otherwise pass@k has no meaning, and is left out.
    """
    of_fair = [result.model_copy(update={"fair": None}) for result in results if result.fair]
    scored = sorted((result for result in results if result.score is not None), key=lambda result: result.key)
    if spent is None:
        spent = sum((result.spent for result in results if result.spent is not None), Spent())
    causes = Counter(result.cause for result in results if result.cause is not None)
    return Summary(
        episodes=len(results) if episodes is None else episodes,
        finished=len(scored),
        passed=sum(result.passed for result in scored),
        faults=len(results) - len(scored),
        retries=sum(result.retries + (result.score.retries if result.score else 0) for result in results),
        pass_at=pass_curve(verdicts(scored)) if same_policy else {},
        overall=_rates(scored) if scored else None,
        by_category=_by(scored, lambda result: f"cid{result.category:03d}"),
        by_difficulty=_by(scored, lambda result: result.difficulty, DIFFICULTIES),
        causes={str(cause): count for cause, count in causes.most_common()},
        cost=_cost(scored) if scored else None,
        oom_kills=sum(result.oom_kills or 0 for result in scored),
        spent=spent if spent.known else None,
        noted=len({result.problem_id for result in scored if result.fair is not None}),
        fair=summarise(of_fair, same_policy=same_policy) if any(result.score for result in of_fair) else None,
    )


def verdicts(results: Iterable[EpisodeResult]) -> dict[str, list[bool]]:
    """For each problem, whether each of its episodes with a verdict passed."""
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
    def mean(field: str) -> float | None:
        known = [value for result in results if (value := getattr(result, field)) is not None]
        return fmean(known) if known else None

    written = [result for result in results if result.output_tokens is not None]
    written_turns = sum(result.turns for result in written)
    return Cost(
        turns=fmean(result.turns for result in results),
        malformed=fmean(result.malformed for result in results),
        prompt_tokens=mean("prompt_tokens"),
        output_tokens=mean("output_tokens"),
        tokens_per_turn=sum(result.output_tokens or 0 for result in written) / written_turns if written_turns else None,
        seconds=fmean(result.seconds for result in results),
        acting_seconds=fmean(result.acting_seconds for result in results),
        total_seconds=sum(result.seconds for result in results),
    )
