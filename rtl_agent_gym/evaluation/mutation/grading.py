"""Grades mutants: what the commands and benchmarks about mutants share."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from ...errors import UsageError
from ...problems import Problem
from ...problems.mutants import Candidate, Mutant, Verdict, VerdictStore, design_key
from ...sandboxes import DockerSandboxes
from ...scoring import ScoreCache, Scorer
from ...scoring.score import Score
from .equivalence import Finding, compare

SLOWEST, QUICKEST = 5.0, 30.0
"""A mutant may run `SLOWEST` times as long as the reference, and at least `QUICKEST` seconds; then its tests fail."""

_FIRST = re.compile(r", first [^;]*")
"""The name of the first failing check in a reason, which a verdict has apart."""


class GradedMutant(NamedTuple):
    """A mutant with its verdict, and for a survivor what Yosys found."""

    mutant: Mutant
    verdict: Verdict
    finding: Finding | None = None


class MutantGrader:
    """Grades mutants and remembers their verdicts. Made by `mutant_grader`.

    Args:
        provider: Creates sandboxes.
        scorer: Grades with this provider.
        store: Verdicts that are known, and where new ones go.
        workers: How many mutants are graded at the same time.
    """

    def __init__(self, provider: DockerSandboxes, scorer: Scorer, store: VerdictStore, workers: int) -> None:
        self.store = store
        self._provider, self._scorer = provider, scorer
        self._turn = asyncio.Semaphore(workers)
        self._references: dict[str, asyncio.Task[Score]] = {}
        self._known: dict[str, dict[str, Verdict]] = {}

    async def require_reference(self, problem: Problem) -> Score:
        """The score of the reference solution, graded once.

        Raises:
            UsageError: There is none, or its own tests reject it: nothing can be said of mutants then.
            SandboxError: The machine failed.
        """
        if not problem.golden:
            raise UsageError(f"{problem.id}: no reference solution, so there is nothing to mutate; give --designs DIR")
        key = design_key(problem)
        if key not in self._references:
            self._references[key] = asyncio.create_task(self._score(problem, problem.golden, None))
        score = await self._references[key]
        if not score.passed:
            raise UsageError(f"{problem.id}: its own tests reject the reference solution: {score.reason}")
        return score

    async def grade(self, candidate: Candidate, *, prove: bool = False) -> GradedMutant:
        """The verdict on a mutant: the known one, or from a grading.

        Args:
            candidate: The mutant and its problem.
            prove: Whether a survivor is compared with the reference by Yosys.

        Raises:
            SandboxError: The machine failed.
        """
        problem, key, mutant = candidate
        if key not in self._known:
            self._known[key] = self.store.of(key)
        verdict = self._known[key].get(mutant.digest)
        if verdict is None:
            verdict = await self._grade(candidate)
            self._remember(verdict)
        finding = None
        if prove and verdict.outcome == "survived":
            async with self._turn:
                right = {**problem.context, **(problem.golden or {})}
                finding = await compare(problem, right, mutant.files(right), self._provider)
            if finding.equivalence != verdict.equivalence:
                verdict = verdict.model_copy(update={"equivalence": finding.equivalence})
                self._remember(verdict)
        return GradedMutant(mutant, verdict, finding)

    async def grade_all(self, candidates: Sequence[Candidate], *, prove: bool = False) -> list[GradedMutant]:
        """The verdicts on several mutants, in their order."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.grade(candidate, prove=prove)) for candidate in candidates]
        return [task.result() for task in tasks]

    def _remember(self, verdict: Verdict) -> None:
        self.store.add(verdict)
        self._known[verdict.design][verdict.mutant] = verdict

    async def _grade(self, candidate: Candidate) -> Verdict:
        problem, key, mutant = candidate
        failed: list[str] = []
        try:
            reference = await self.require_reference(problem)
        except UsageError as error:
            outcome, symptom = "invalid", str(error)
        else:
            seconds = max(QUICKEST, SLOWEST * reference.seconds)
            score = await self._score(problem, mutant.files(problem.golden or {}), seconds)
            outcome = "survived" if score.passed else "killed" if score.compile == 1.0 else "invalid"
            symptom = "" if score.passed else _FIRST.sub("", score.reason)
            failed = [_short(test.name) for test in score.tests if test.outcome in ("failed", "error")]
        fields = {"operator": mutant.operator, "path": mutant.path, "line": mutant.line, "outcome": outcome}
        fields |= {"failed": list(dict.fromkeys(failed)), "symptom": symptom}
        image = await self._provider.image_digest()
        return Verdict.model_validate({"design": key, "mutant": mutant.digest, **fields, "image": image})

    async def _score(self, problem: Problem, golden: dict[str, str], seconds: float | None) -> Score:
        files = {**problem.context, **golden}
        async with self._turn:
            return await (
                self._scorer.score(problem, files, seconds) if seconds else self._scorer.score(problem, files)
            )


def _short(name: str) -> str:
    """The name of a check without the test that runs it and its parameters."""
    return name.rsplit("/", 1)[-1].rsplit("::", 1)[-1]


@asynccontextmanager
async def mutant_grader(
    *, workers: int = 2, store: VerdictStore | None = None, cache: bool = True, waiting: bool = True
) -> AsyncIterator[MutantGrader]:
    """A grader with sandboxes and a scorer, which are closed at the end.

    Args:
        workers: How many mutants are graded at the same time.
        store: Verdicts; None for those of the package and the user's cache.
        cache: Whether gradings are taken from the cache on disk.
        waiting: Whether sandboxes are started ahead.
    """
    async with (
        DockerSandboxes() as provider,
        Scorer(provider, cache=ScoreCache() if cache else None, waiting=workers if waiting else 0) as scorer,
    ):
        yield MutantGrader(provider, scorer, store or VerdictStore(), workers)
