"""Select rows by their notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.problems.cvdp_notes.notes import note_of
from rtl_agent_gym.problems.model import Problem

Rows = Literal["all", "fair", "partial", "sound"]
"""Which rows to keep: all; those that a right design passes and whose tests demand nothing unstated; of these, the ones
whose tests see at least what the task is mainly about; of these, the ones whose tests have no known blind spot. A
problem without a note is only among all."""
ROWS: tuple[Rows, ...] = get_args(Rows)


def keep_rows(problems: Sequence[Problem], rows: Rows) -> list[Problem]:
    """The problems that are known to be fair, partial or better, or sound, in their order.

    Raises:
        UsageError: `rows` is unknown, or no problem is left.
    """
    if rows not in ROWS:
        raise UsageError(f"rows is {rows!r}; choose one of {', '.join(ROWS)}")
    if rows == "all":
        return list(problems)
    kept = [problem for problem in problems if (note := note_of(problem)) is not None and getattr(note, rows)]
    if problems and not kept:
        ratings = Counter(
            note.rating if (note := note_of(problem)) is not None else "without a note" for problem in problems
        )
        told = ", ".join(f"{count} {rating}" for rating, count in ratings.items())
        where = "the published rows of CVDP v1.0.2 (agentic, no-commercial) and the examples of v1.1"
        hint = f"there are notes of {where}; " if ratings["without a note"] else ""
        raise UsageError(
            f"no selected problem is known to be {rows} ({told}); {hint}choose other problems, or all rows (rows=all, "
            "or no --fair-only)"
        )
    return kept
