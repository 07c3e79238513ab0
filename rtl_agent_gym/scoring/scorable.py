"""Which problems can be scored here at all, found out before anything is played."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UsageError
from ..problems.model import Problem
from .compose import read_services


def why_unscorable(problem: Problem) -> str | None:
    """Why a problem cannot be scored here; None where it can be."""
    if problem.unscorable:
        return problem.unscorable
    try:
        read_services(problem)
    except UsageError as error:
        return str(error)
    return None


def scorable(problems: Sequence[Problem]) -> tuple[list[Problem], list[tuple[Problem, str]]]:
    """The problems that can be scored here, and the others with why not."""
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
    """The problem. Raises `UsageError` where it cannot be scored here, as playing it would be for nothing."""
    reason = why_unscorable(problem)
    if reason is not None:
        name = "" if problem.id in reason else f"{problem.id} "
        raise UsageError(f"{name}cannot be scored here: {reason}" if name else f"this cannot be scored here: {reason}")
    return problem
