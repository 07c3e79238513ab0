"""Grading of mutants: their verdicts, and the strength of a problem's hidden tests."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from pydantic import BaseModel

from ...errors import UsageError
from ...problems import Problem
from ...sandboxes import SandboxProvider
from ...scoring import TIME_LIMIT, Scorer
from ...scoring.score import Score
from ..making import Examiner, in_order
from .derived import Candidate
from .equivalence import Finding, compare
from .mutant import (
    Equivalence,
    Mutant,
    Outcome,
    Verdict,
    VerdictStore,
    design_key,
    draw_mutants,
    problem_mutants,
    verdict_key,
)
from .operators import OPERATORS

SLOWEST, QUICKEST = 5.0, 30.0
"""A mutant's tests fail after `SLOWEST` times the reference's time, but not before `QUICKEST` seconds."""

NO_REFERENCE = "the reference solution does not pass, so nothing is known of its mutants"
"""The symptom in verdicts given without a passing reference; such a verdict is replaced by the next grading."""

_CERTAINTY: tuple[Equivalence, ...] = ("", "unknown", "bounded", "proved", "differs")
"""Results of Yosys, from the weakest to the strongest."""

_FIRST = re.compile(r", first [^;]*")
"""The name of the first failing check in a reason; verdicts store such names separately."""


class GradedMutant(NamedTuple):
    """A mutant with its verdict, and for a survivor the new result of Yosys, if any."""

    candidate: Candidate
    verdict: Verdict
    finding: Finding | None = None


class MutantGrader(Examiner[VerdictStore]):
    """Grades mutants and stores their verdicts. Created by `mutant_grader`."""

    def __init__(
        self, provider: SandboxProvider, scorer: Scorer, store: VerdictStore | None, workers: int, image: str
    ) -> None:
        super().__init__(provider, scorer, store, workers, image)
        self.rejected: dict[str, str] = {}
        """By problem id, why its mutants cannot be graded: its own tests reject the reference solution."""
        self._references: dict[str, asyncio.Task[Score]] = {}
        self._seconds: dict[str, asyncio.Task[float]] = {}

    def _own_store(self) -> VerdictStore:
        return VerdictStore()

    async def require_reference(self, problem: Problem) -> Score:
        """The score of the reference solution, which is graded only once.

        Raises:
            UsageError: There is no reference solution, or the tests reject it, so that mutants would show nothing.
            SandboxError: The machine failed.
        """
        if not problem.golden:
            raise UsageError(f"{problem.id}: no reference solution, so there is nothing to mutate; give --designs DIR")
        key = design_key(problem)
        if key not in self._references:
            self._references[key] = asyncio.create_task(self._score(self.scorer, problem, problem.golden))
        score = await self._references[key]
        if not score.passed:
            raise UsageError(f"{problem.id}: its own tests reject the reference solution: {score.reason}")
        return score

    async def reference_seconds(self, problem: Problem) -> float:
        """The duration of grading the reference, in seconds, measured once without the cache.

        Raises:
            UsageError: As `require_reference`.
            SandboxError: The machine failed.
        """
        key = design_key(problem)
        if key not in self._seconds:
            self._seconds[key] = asyncio.create_task(self._time_reference(problem))
        return await self._seconds[key]

    async def grade(self, candidate: Candidate, *, prove: bool = False) -> GradedMutant:
        """The verdict on a mutant, stored or newly graded; with `prove`, Yosys compares a survivor and the reference.

        Raises:
            SandboxError: The machine failed.
        """
        problem, key, mutant = candidate
        verdict = self.store.get(verdict_key(key, mutant))
        # The tools of another image may give another verdict, and the reference may pass by now.
        if verdict is None or verdict.image not in ("", self._image) or verdict.symptom == NO_REFERENCE:
            try:
                await self.require_reference(problem)
            except UsageError as error:
                self.rejected[problem.id] = str(error)
                found = Verdict.on(key, mutant, "invalid", symptom=NO_REFERENCE, image=self._image)
            else:
                found = await self._grade(candidate)
            if found != verdict:
                self.store.put(found)
            verdict = found
        finding = None
        if prove and verdict.outcome == "survived" and verdict.equivalence not in ("proved", "differs"):
            async with self._turn:
                right = {**problem.context, **(problem.golden or {})}
                finding = await compare(problem, right, mutant.files(right), self._provider)
            if finding.equivalence == "proved" and _is_delayed(mutant):
                finding = Finding("unknown", why="Yosys does not tell when a non-blocking assignment takes effect")
            if _certainty(finding) < _certainty(verdict):
                finding = None  # the proof ran out of time, as on a busy machine, so the earlier result stays
            elif _certainty(finding) > _certainty(verdict):
                verdict = verdict.model_copy(update={"equivalence": finding.equivalence, "steps": finding.steps})
                self.store.put(verdict)
        return GradedMutant(candidate, verdict, finding)

    async def grade_all(self, candidates: Sequence[Candidate], *, prove: bool = False) -> list[GradedMutant]:
        """The verdicts on several mutants, in their order. Raises like `grade`."""
        graded = list[GradedMutant]()
        await in_order(candidates, partial(self.grade, prove=prove), len(candidates), graded.append)
        return graded

    async def _grade(self, candidate: Candidate) -> Verdict:
        problem, key, mutant = candidate
        limit = max(QUICKEST, SLOWEST * await self.reference_seconds(problem))
        score = await self._score(self.scorer, problem, mutant.files(problem.golden or {}), limit)
        outcome: Outcome = "survived" if score.passed else "killed" if score.compile == 1.0 else "invalid"
        names = [test.name for test in score.tests if test.outcome in ("failed", "error")]
        failed = dict.fromkeys(name.rpartition("/")[2].rpartition("::")[2] for name in names)
        symptom = "" if score.passed else _FIRST.sub("", score.reason)
        return Verdict.on(key, mutant, outcome, failed=tuple(failed), symptom=symptom, image=self._image)

    async def _time_reference(self, problem: Problem) -> float:
        score = await self.require_reference(problem)
        if score.cached:
            async with Scorer(self._provider, cache=None) as timer:
                score = await self._score(timer, problem, problem.golden or {})
        return score.seconds

    async def _score(
        self, scorer: Scorer, problem: Problem, golden: dict[str, str], limit: float = TIME_LIMIT
    ) -> Score:
        async with self._turn:
            return await scorer.score(problem, {**problem.context, **golden}, limit)


def _certainty(found: Finding | Verdict) -> tuple[int, int]:
    return _CERTAINTY.index(found.equivalence), found.steps


def _is_delayed(mutant: Mutant) -> bool:
    """Whether an assignment became non-blocking, so that later statements of its process read the old value."""
    changed = [
        line for line in mutant.diff.split("\n") if line.startswith(("+", "-")) and line[:3] not in ("+++", "---")
    ]
    counts = {sign: sum(line.count("<=") for line in changed if line[0] == sign) for sign in "+-"}
    return mutant.operator == "assignment" and counts["+"] > counts["-"]


mutant_grader = MutantGrader.open
"""Opens a grader with its own sandboxes and scorer, which are closed at the end."""


LIMIT = 24
"""Default number of mutants graded per problem."""


class Count(BaseModel, frozen=True):
    """Numbers of mutants, of one operator or of all."""

    killed: int = 0
    """Rejected by the hidden tests."""
    survived: int = 0
    """Accepted, but not proved equivalent."""
    proved: int = 0
    """Accepted, and proved to be the same hardware as the reference, so the tests are right to accept them."""
    invalid: int = 0
    """Did not compile."""

    @property
    def rate(self) -> float | None:
        """The share of killed mutants among those that compile and are not proved equivalent; None without any."""
        counted = self.killed + self.survived
        return self.killed / counted if counted else None


class Strength(BaseModel, frozen=True):
    """The strength of a problem's hidden tests."""

    problem_id: str
    mutants: int
    """The number of all mutants of the reference solution, graded or not."""
    total: Count
    operators: dict[str, Count]
    survivors: list[dict[str, Any]]
    """For each survivor: operator, path, line, diff, equivalence, steps, why."""


async def measure_strength(
    problem: Problem, grader: MutantGrader, *, limit: int | None = LIMIT, seed: int = 0
) -> Strength:
    """Grade mutants of a problem's reference solution, and compare the survivors with that solution.

    At most `limit` are graded; all if it is None. They are drawn so that operators occur equally often.

    Raises:
        UsageError: There is no reference solution, or its tests reject it.
        SandboxError: The machine failed.
    """
    await grader.require_reference(problem)
    every, key = problem_mutants(problem), design_key(problem)
    drawn = draw_mutants(every, seed)[:limit]
    graded = await grader.grade_all([Candidate(problem, key, mutant) for mutant in drawn], prove=True)
    by_operator = {name: [found for found in graded if found.verdict.operator == name] for name in OPERATORS}
    return Strength(
        problem_id=problem.id,
        mutants=len(every),
        total=_count(graded),
        operators={name: _count(group) for name, group in by_operator.items() if group},
        survivors=[_survivor(found) for found in graded if found.verdict.outcome == "survived"],
    )


def _count(graded: list[GradedMutant]) -> Count:
    verdicts = [found.verdict for found in graded]
    return Count(**Counter("proved" if verdict.equivalence == "proved" else verdict.outcome for verdict in verdicts))


def _survivor(graded: GradedMutant) -> dict[str, Any]:
    mutant, verdict = graded.candidate.mutant, graded.verdict
    found = graded.finding or Finding(verdict.equivalence, verdict.steps)
    return {
        "operator": mutant.operator,
        "path": mutant.path,
        "line": mutant.line,
        "diff": mutant.diff,
        **found._asdict(),
    }
