"""Finds out before any episode which problems can be scored here."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ProblemError, UsageError
from ..problems.model import Problem
from ..problems.validation import missing_here
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
    except ProblemError as error:
        return problem.unscorable or (f"{error.field}: {error.message}" if error.field else error.message)
    return None


def scorable(
    problems: Sequence[Problem], options: GradingOptions | None = None, *, texts: bool = True
) -> tuple[list[Problem], list[tuple[Problem, str]]]:
    """The problems that can be scored here, and the others with the reason."""
    reasons = [(problem, why_unscorable(problem, options, texts=texts)) for problem in problems]
    kept = [problem for problem, reason in reasons if reason is None]
    return kept, [(problem, reason) for problem, reason in reasons if reason is not None]


def nothing_left(source: str, left_out: Sequence[tuple[Problem, str]]) -> str:
    """The message for a selection of which nothing can be scored here, perhaps since nothing was selected.

    Args:
        source: The name of what the problems were selected from.
        left_out: As `scorable` returns it.
    """
    if not left_out:
        return f"no problem of {source} matches the ids, categories and difficulties that are asked for"
    reasons = "; ".join(sorted({reason for _, reason in left_out})[:3])
    return f"no selected problem of {source} can be scored here: {reasons}"


def require_scorable(problem: Problem, options: GradingOptions | None = None, *, texts: bool = True) -> Problem:
    """Return the problem, or raise `UsageError` if it cannot be scored here."""
    reason = why_unscorable(problem, options, texts=texts)
    if reason is not None:
        raise UsageError(f"{'this' if problem.id in reason else problem.id} cannot be scored here: {reason}")
    return problem
