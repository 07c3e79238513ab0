"""Finds out before any episode which problems can be scored here."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UsageError
from ..problems.model import Problem
from ..problems.needs import missing_here
from .compose import read_services
from .options import GradingOptions

NO_TEXTS = "its answer is text, which is played by run, eval, and the Gymnasium and tinker environments only"


def why_unscorable(problem: Problem, options: GradingOptions | None = None, *, texts: bool = True) -> str | None:
    """Why a problem cannot be scored here, with these options; None if it can.

    Args:
        problem: The problem.
        options: The judge and the images that there are; None for none.
        texts: Whether answers that are text reach the grader.
    """
    options = options or GradingOptions()
    if problem.asks_text and not texts:
        return NO_TEXTS
    if problem.asks_text:
        return problem.unscorable if options.judge is not None else missing_here(problem)
    try:
        read_services(problem, options.harness)
    except UsageError as error:
        return problem.unscorable or str(error)
    return None


def scorable(
    problems: Sequence[Problem], options: GradingOptions | None = None, *, texts: bool = True
) -> tuple[list[Problem], list[tuple[Problem, str]]]:
    """The problems that can be scored here, and the others with the reason."""
    reasons = [(problem, why_unscorable(problem, options, texts=texts)) for problem in problems]
    kept = [problem for problem, reason in reasons if reason is None]
    return kept, [(problem, reason) for problem, reason in reasons if reason is not None]


def require_scorable(problem: Problem, options: GradingOptions | None = None, *, texts: bool = True) -> Problem:
    """Return the problem, or raise `UsageError` if it cannot be scored here."""
    reason = why_unscorable(problem, options, texts=texts)
    if reason is not None:
        raise UsageError(f"{'this' if problem.id in reason else problem.id} cannot be scored here: {reason}")
    return problem
