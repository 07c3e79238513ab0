"""Mutants: right designs with one small change each, and the debugging problems made of them."""

from __future__ import annotations

from rtl_agent_gym.problems.mutants.derived import HINTS, Hint, derived_problem
from rtl_agent_gym.problems.mutants.designs import with_design
from rtl_agent_gym.problems.mutants.generate import Mutant, design_mutants, draw_mutants, problem_mutants
from rtl_agent_gym.problems.mutants.operators import OPERATORS
from rtl_agent_gym.problems.mutants.source import (
    Candidate,
    Derived,
    MutantOptions,
    candidates,
    derive,
    enough_candidates,
    parse_source,
    too_few,
)
from rtl_agent_gym.problems.mutants.verdicts import Equivalence, Outcome, Verdict, VerdictStore, design_key

__all__ = [
    "HINTS",
    "OPERATORS",
    "Candidate",
    "Derived",
    "Equivalence",
    "Hint",
    "Mutant",
    "MutantOptions",
    "Outcome",
    "Verdict",
    "VerdictStore",
    "candidates",
    "derive",
    "derived_problem",
    "design_key",
    "design_mutants",
    "draw_mutants",
    "enough_candidates",
    "parse_source",
    "problem_mutants",
    "too_few",
    "with_design",
]
