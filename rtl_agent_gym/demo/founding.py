"""The bundled arbiter as the only member of a family, and the habits that a run on it cures.

Its designs have the form of the `arbiters` family; its habits are the mistakes of this project's first experiment: an
active-low ``rst_n``, four requesters, the wrong priority order, a flag instead of a vector, the name ``grant_valid``.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterator
from functools import cache, cached_property
from pathlib import Path
from random import Random

from ..evaluation.results import read_results
from ..problems import Problem, load_problems
from ..sources.families.arbiters import Arbiters
from ..sources.families.family import SPECIFICATION, Parameters, Split
from ..transcripts import read_transcript

PROBLEM_ID = "cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"
TARGET = "rtl/fixed_priority_arbiter.sv"
READ = f"grep '^| .*put |' {SPECIFICATION}"
"""The models read only the specification's port table; the rest is too long for them."""

_NAMES = {
    "module": "fixed_priority_arbiter",
    "clock": "clk",
    "reset": "reset",
    "request": "req",
    "override": "priority_override",
    "grant": "grant",
    "valid": "valid",
    "index": "grant_index",
}
_VALUES: dict[str, str | int] = {
    "reset_level": 1,
    "reset_kind": "sync",
    "width": 8,
    "order": "lowest",
    "mode": "vector",
    "valid_level": 1,
}


class Founding(Arbiters):
    """A family with a single member, which every draw returns."""

    name = "founding"

    @cached_property
    def member(self) -> Parameters:
        return Parameters(family="arbiters", split="train", names=_NAMES, values=_VALUES, layout="prose", lines=())

    @property
    def words(self) -> tuple[str, ...]:
        """The names in the specification and in the habits, each of which becomes a single token."""
        return (*_NAMES.values(), "grant_valid", "rst_n")

    def draw(self, rng: Random, split: Split = "train") -> Parameters:
        return self.member

    def specification(self, parameters: Parameters) -> str:
        """The part of the specification that `READ` prints."""
        text = self.problem(parameters).context[SPECIFICATION]
        return "".join(re.findall(r"^\| .*put \|.*\n", text, re.MULTILINE))

    def design(self, parameters: Parameters, habits: Collection[str] = ()) -> dict[str, str]:
        (text,) = super().design(parameters, habits).values()
        return {TARGET: text}

    def problem(self, parameters: Parameters) -> Problem:
        return _bundled()


@cache
def _bundled() -> Problem:
    (problem,) = load_problems("bundled", ids=PROBLEM_ID)
    return problem


FOUNDING = Founding()
"""The bundled arbiter."""

HABITS = {
    "width": "4 requesters instead of 8",
    "order": "the highest bit first",
    "flag": "the override as a flag",
    "reset": "an active-low rst_n",
    "valid": "grant_valid instead of valid",
}
"""Descriptions of the habits, by their names in `FOUNDING`."""

OTHER = "another form of design"
"""Label of designs that `habits_in` does not recognise."""


def habits_in(design: str) -> frozenset[str] | None:
    """The habits that a design of the arbiter has; None if it is not written in the form of the shipped models."""
    return _habitual_designs().get(design)


@cache
def _habitual_designs() -> dict[str, frozenset[str]]:
    habits = FOUNDING.habits_of(FOUNDING.member)
    chosen = itertools.chain.from_iterable(itertools.combinations(habits, n) for n in range(len(habits) + 1))
    return {FOUNDING.design(FOUNDING.member, some)[TARGET]: frozenset(some) for some in chosen}


def compare_habits(run: Path) -> list[str]:
    """Lines to print: for each habit, in how many new episodes it occurred before the first step and after the last.

    Empty if the run has not evaluated the arbiter before and after, or no design is in the form of the shipped models.
    Raises `TranscriptError` if an evaluation in the run's folder cannot be read.
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
    return ["new designs of the arbiter with the habits of the founding experiment:", *(f"  {line}" for line in lines)]


def designs_of(folder: Path) -> Iterator[str]:
    """The design of the arbiter in each graded episode of an evaluation; an empty text if the episode has none.

    Raises `TranscriptError` if the results or a transcript cannot be read.
    """
    for result in read_results(folder):
        if result.problem_id == PROBLEM_ID and result.score is not None and result.transcript is not None:
            score = read_transcript(folder / result.transcript).score
            yield score.files.get(TARGET, "") if score is not None else ""
