"""How many designs of a run on the founding arbiter have each of the founding experiment's habits, before and after."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ..evaluation.results import read_results
from ..transcripts import read_transcript
from .founding import FOUNDING, PROBLEM_ID, TARGET

HABITS = {
    "width": "4 requesters instead of 8",
    "order": "the highest bit first",
    "flag": "the override as a flag",
    "reset": "an active-low rst_n",
    "valid": "grant_valid instead of valid",
}
"""The habits by their names in `FOUNDING`, in words."""

OTHER = "another form of design"
"""What is said of designs that `habits_in` cannot tell."""


def habits_in(design: str) -> frozenset[str] | None:
    """The habits that a design of the arbiter has; None if it is not written in the form of the shipped models."""
    return _habitual_designs().get(design)


@cache
def _habitual_designs() -> dict[str, frozenset[str]]:
    habits = FOUNDING.habits_of(FOUNDING.member)
    chosen = itertools.chain.from_iterable(itertools.combinations(habits, n) for n in range(len(habits) + 1))
    return {FOUNDING.design(FOUNDING.member, some)[TARGET]: frozenset(some) for some in chosen}


def compare_habits(run: Path) -> list[str]:
    """Lines for people: of each habit, in how many new episodes it occurred before the first step and after the last.

    Empty if the run has not evaluated the arbiter before and after, or no design is in the form of the shipped models.

    Args:
        run: The run's folder.

    Raises:
        TranscriptError: An evaluation of it cannot be read.
    """
    folders = sorted((run / "evaluations").glob("[0-9]*-train"))
    if len(folders) < 2:
        return []
    counts = []
    for folder in (folders[0], folders[-1]):
        found = [habits_in(design) for design in designs_of(folder)]
        named = Counter(HABITS[habit] for habits in found if habits is not None for habit in habits)
        counts.append((named + Counter({OTHER: found.count(None)}), len(found)))
    (before, first), (after, last) = counts
    if before[OTHER] == first and after[OTHER] == last:
        return []
    names = [*HABITS.values(), *([OTHER] if before[OTHER] or after[OTHER] else [])]
    lines = [f"{name}: before {before[name]} of {first}, after {after[name]} of {last}" for name in names]
    return ["new designs of the arbiter with the habits of the founding experiment:", *(f"  {one}" for one in lines)]


def designs_of(folder: Path) -> Iterator[str]:
    """The designs of the arbiter that the graded episodes of an evaluation left; empty for one that left none.

    Raises:
        TranscriptError: The results or a transcript cannot be read.
    """
    for result in read_results(folder):
        if result.problem_id == PROBLEM_ID and result.score is not None and result.transcript is not None:
            score = read_transcript(folder / result.transcript).score
            yield score.files.get(TARGET, "") if score is not None else ""
