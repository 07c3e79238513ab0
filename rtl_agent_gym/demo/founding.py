"""The bundled arbiter as the only member of a family, so that the shipped models know it too.

Its designs have the form of the `arbiters` family, and its habits are the mistakes of the experiment that this project
began with: an active-low ``rst_n``, four requesters, the wrong order of priority, a flag for a vector, ``grant_valid``.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, fields
from functools import cache, cached_property
from random import Random

from ..problems import Problem, load_problems
from ..problems.families import FAMILIES
from ..problems.families.family import SPECIFICATION, Family, Parameters, Split

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


@dataclass(frozen=True)
class Founding(Family):
    """The family; every draw is the same member."""

    @cached_property
    def member(self) -> Parameters:
        """The only member."""
        return Parameters(family="arbiters", split="train", names=_NAMES, values=_VALUES, layout="prose", lines=())

    @property
    def words(self) -> tuple[str, ...]:
        """The names in the specification and in the habits, which are tokens of their own."""
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


_ARBITERS = FAMILIES["arbiters"]
FOUNDING = Founding(**{one.name: getattr(_ARBITERS, one.name) for one in fields(Family)} | {"name": "founding"})
"""The bundled arbiter."""
