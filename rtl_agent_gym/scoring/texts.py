"""Grades answers that are text (code comprehension), without a container: by comparison, or by a judge's rating.

The comparison uses the official benchmark's parameters. BLEU is NLTK's sentence BLEU of words and bigrams, with equal
weights and without smoothing. ROUGE is the number of distinct common bigrams, in lower case and without punctuation,
divided by the number of bigrams of the reference.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

from ..errors import ProblemError, SandboxError
from ..metrics import FAULTS
from ..problems.model import COMPARED, Problem
from ..problems.paths import ANSWER_FILE
from ..problems.validation import missing_here
from ..visible import printable
from . import judging
from .cache import ScoreCache
from .grading import Grading
from .judging import Judge, rate
from .score import RewardWeights, Score, TestOutcome

MAX_ANSWER = 100_000
"""Maximum characters of an answer that is graded."""

_FENCE = "```"
_LANGUAGE = re.compile(r"\A\w+\n")
_LONGEST_REASON = 400

LONGEST = 2
"""Words in the longest n-grams that are compared."""
LEAST_SIMILARITY = 0.4
"""The official threshold: BLEU and ROUGE must both be above it."""

_PUNCTUATION = re.compile(r"[^\w\s]")


def bleu(answer: str, reference: str) -> float:
    """The BLEU of an answer, 0..1.

    The geometric mean of the clipped precisions of words and of bigrams (an n-gram counts at most as often as it occurs
    in the reference), times the brevity penalty for answers shorter than the reference. As in NLTK, an answer without
    any word of the reference scores 0, and one without any of its bigrams almost 0.
    """
    words, expected = answer.split(), reference.split()
    logarithms = []
    for length in range(1, LONGEST + 1):
        ours, theirs = Counter(_sequences(words, length)), Counter(_sequences(expected, length))
        common = (ours & theirs).total()
        if length == 1 and not common:
            return 0.0
        share = common / max(1, ours.total()) if common else sys.float_info.min
        logarithms.append(math.log(share) / LONGEST)
    penalty = 1.0 if len(words) > len(expected) else math.exp(1 - len(expected) / len(words))
    return penalty * math.exp(math.fsum(logarithms))


def rouge(answer: str, reference: str) -> float:
    """The ROUGE-2 recall of an answer, as the official runner computes it.

    The number of distinct bigrams that both have, divided by the number of all bigrams of the reference, repeated ones
    included. Raises `ZeroDivisionError` if the reference has no bigram.
    """
    ours, theirs = (_sequences(_PUNCTUATION.sub("", text.lower()).split(), LONGEST) for text in (answer, reference))
    return len(set(ours) & set(theirs)) / len(theirs)


def _sequences(words: Sequence[str], length: int) -> list[tuple[str, ...]]:
    return [tuple(words[start : start + length]) for start in range(len(words) - length + 1)]


def quoted(answer: str) -> str:
    """The quotation in an answer: its first fenced block, or else the whole text.

    As in the official runner, fences may be anywhere in a line, and a first line of one word is taken as the language.
    """
    parts = answer.split(_FENCE, 2)
    return _LANGUAGE.sub("", parts[1]) if len(parts) == 3 else answer


async def grade_text(
    problem: Problem,
    files: Mapping[str, str | bytes],
    *,
    weights: RewardWeights,
    judge: Judge | None = None,
    cache: ScoreCache | None = None,
) -> tuple[Grading, bool]:
    """Grade the submitted `ANSWER_FILE`. Returns the grading, and whether a judge's rating came from the cache, whose
    keys contain judge, question, reference and answer. Without `RewardWeights.simulate`, nothing is compared or rated.

    Raises:
        ProblemError: The problem cannot be scored, or the answer needs a judge and there is none.
        SandboxError: The judge failed. Never a score.
    """
    if problem.unscorable is not None:
        raise ProblemError(f"it cannot be scored: {problem.unscorable}", problem_id=problem.id)
    found = files.get(ANSWER_FILE, "")
    answer = found.decode(errors="replace") if isinstance(found, bytes) else found
    if not answer.strip():
        return Grading(reason="there is no answer"), False
    if len(answer) > MAX_ANSWER:
        return Grading(
            format=1.0, reason=f"the answer has {len(answer)} characters; at most {MAX_ANSWER} are graded"
        ), False
    if not weights.simulate:
        return Grading(format=1.0, reason="the answer was not rated"), False
    if problem.category in COMPARED:
        return _compare(problem, quoted(answer)), False
    if judge is None:
        raise ProblemError(f"it cannot be scored: {missing_here(problem)}", problem_id=problem.id)
    return await _judged(problem, answer.strip(), judge, cache)


NOT_OF_TEXTS = ("syntax", "interface", "compile")


def text_score(grading: Grading, weights: RewardWeights, *, seconds: float, cached: bool) -> Score:
    """The score of a graded text. Syntax, interface and compilation do not apply: they are 1, but earn nothing."""
    earned = weights.format * grading.format + (weights.tests * grading.credit if weights.simulate else 0.0)
    passed = sum(test.outcome == "passed" for test in grading.tests)
    return Score(
        **grading.model_dump(exclude={"notes", "repeatable"}) | dict.fromkeys(NOT_OF_TEXTS, 1.0),
        tests_passed=passed,
        tests_total=len(grading.tests),
        reward=round(earned, 9),
        seconds=seconds,
        cached=cached,
    )


def _compare(problem: Problem, answer: str) -> Grading:
    measures = {"rouge": rouge, "bleu": bleu}  # in the official order
    found = {name: measure(answer, problem.reference_response) for name, measure in measures.items()}
    passed = {name: value > LEAST_SIMILARITY for name, value in found.items()}
    shown = ", ".join(f"{name.upper()} {value:.3f}" for name, value in found.items())
    return Grading(
        passed=all(passed.values()),
        format=1.0,
        credit=found["bleu"],
        tests=[TestOutcome(name=name, outcome="passed" if good else "failed") for name, good in passed.items()],
        reason=f"{shown}; both must be above {LEAST_SIMILARITY:g}",
        bleu=found["bleu"],
        rouge=found["rouge"],
    )


async def _judged(problem: Problem, answer: str, judge: Judge, cache: ScoreCache | None) -> tuple[Grading, bool]:
    parts = (judge.name, judging.prompt_digest(), problem.prompt, problem.reference_response, answer)
    key = hashlib.sha256(json.dumps(["rating", *parts]).encode()).hexdigest()
    if cache is not None and (known := cache.get(key)) is not None:
        return known, True
    try:
        found = await rate(judge, problem.prompt, problem.reference_response, answer)
    except SandboxError as error:
        FAULTS.labels("rating", type(error).__name__).inc()
        raise
    reasoning = printable(" ".join(found.reasoning.split()))[:_LONGEST_REASON].rstrip()
    passed = found.score >= judging.LEAST
    grading = Grading(
        passed=passed,
        format=1.0,
        credit=found.score,
        rating=found.score,
        judge=judge.name,
        tests=[TestOutcome(name="judge", outcome="passed" if passed else "failed")],
        reason=f"rated {found.score:g} by {judge.name}" + (f": {reasoning}" if reasoning else ""),
    )
    if cache is not None and found.given:
        cache.put(key, grading)
    return grading, False
