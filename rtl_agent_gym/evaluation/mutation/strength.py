"""How much a problem's hidden tests see: the share of mutants that they reject, by operator."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pydantic import BaseModel, ConfigDict

from ...problems import Problem
from ...problems.mutants import OPERATORS, Candidate, design_key, draw_mutants, problem_mutants
from .equivalence import STEPS, Finding
from .grading import GradedMutant, MutantGrader

LIMIT = 24
"""Mutants of a problem that are graded if nothing else is asked for."""


class Count(BaseModel):
    """Mutants of one operator, or of all."""

    model_config = ConfigDict(frozen=True)

    killed: int = 0
    """Rejected by the hidden tests."""
    survived: int = 0
    """Accepted, and not proved equivalent."""
    proved: int = 0
    """Accepted, and proved to be the same hardware as the reference, so that this is no fault of the tests."""
    invalid: int = 0
    """Did not compile."""

    @property
    def rate(self) -> float | None:
        """Killed mutants over those that compile and are not proved equivalent; None if there are none."""
        counted = self.killed + self.survived
        return self.killed / counted if counted else None


class Strength(BaseModel):
    """The strength of a problem's hidden tests."""

    model_config = ConfigDict(frozen=True)

    problem_id: str
    mutants: int
    """How many the reference solution has in all."""
    total: Count
    operators: dict[str, Count]
    survivors: list[dict[str, Any]]
    """Of each: operator, path, line, diff, equivalence, steps, why."""


async def measure_strength(
    problem: Problem, grader: MutantGrader, *, limit: int | None = LIMIT, seed: int = 0
) -> Strength:
    """Grade mutants of a problem's reference solution, and compare the survivors with it.

    Args:
        problem: With a reference solution.
        grader: Grades them.
        limit: How many are graded; None for all. They are drawn so that every operator comes equally often.
        seed: Of the draw.

    Raises:
        UsageError: There is no reference solution, or its tests reject it.
        SandboxError: The machine failed.
    """
    await grader.require_reference(problem)
    every, key = problem_mutants(problem), design_key(problem)
    drawn = draw_mutants(every, seed)[:limit]
    graded = await grader.grade_all([Candidate(problem, key, mutant) for mutant in drawn], prove=True)
    by_operator = {name: [one for one in graded if one.mutant.operator == name] for name in OPERATORS}
    return Strength(
        problem_id=problem.id,
        mutants=len(every),
        total=_count(graded),
        operators={name: _count(group) for name, group in by_operator.items() if group},
        survivors=[_survivor(one) for one in graded if one.verdict.outcome == "survived"],
    )


def _count(graded: list[GradedMutant]) -> Count:
    kinds = Counter("proved" if one.verdict.equivalence == "proved" else one.verdict.outcome for one in graded)
    return Count(**kinds)


def _survivor(graded: GradedMutant) -> dict[str, Any]:
    mutant, verdict = graded.mutant, graded.verdict
    found = graded.finding or Finding(verdict.equivalence, verdict.steps)
    if found.equivalence == "bounded":  # in an old verdict, whose steps were not kept
        found = found._replace(steps=max(found.steps, STEPS[0]))
    return {
        "operator": mutant.operator,
        "path": mutant.path,
        "line": mutant.line,
        "diff": mutant.diff,
        **found._asdict(),
    }
