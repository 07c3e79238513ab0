"""Finds out before any episode which problems can be scored here."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UsageError
from ..problems.model import Problem
from .compose import read_services


def why_unscorable(problem: Problem) -> str | None:
    """Why a problem cannot be scored here; None if it can."""
    if problem.unscorable:
        return problem.unscorable
    try:
        read_services(problem)
    except UsageError as error:
        return str(error)
    return None


def scorable(problems: Sequence[Problem]) -> tuple[list[Problem], list[tuple[Problem, str]]]:
    """The problems that can be scored here, and the others with the reason."""
    reasons = [(problem, why_unscorable(problem)) for problem in problems]
    kept = [problem for problem, reason in reasons if reason is None]
    return kept, [(problem, reason) for problem, reason in reasons if reason is not None]


def require_scorable(problem: Problem) -> Problem:
    """Return the problem, or raise `UsageError` if it cannot be scored here."""
    reason = why_unscorable(problem)
    if reason is not None:
        raise UsageError(f"{'this' if problem.id in reason else problem.id} cannot be scored here: {reason}")
    return problem
