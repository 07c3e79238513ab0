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
    kept: list[Problem] = []
    left: list[tuple[Problem, str]] = []
    for problem in problems:
        reason = why_unscorable(problem)
        if reason is None:
            kept.append(problem)
        else:
            left.append((problem, reason))
    return kept, left


def require_scorable(problem: Problem) -> Problem:
    """Return the problem, or raise `UsageError` if it cannot be scored here."""
    reason = why_unscorable(problem)
    if reason is not None:
        name = "" if problem.id in reason else f"{problem.id} "
        raise UsageError(f"{name}cannot be scored here: {reason}" if name else f"this cannot be scored here: {reason}")
    return problem
