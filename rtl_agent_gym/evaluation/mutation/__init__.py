"""Mutants graded: the strength of hidden tests, and verified debugging problems."""

from .equivalence import Finding, compare
from .grading import GradedMutant, MutantGrader, mutant_grader
from .strength import Count, Strength, measure_strength

__all__ = [
    "Count",
    "Finding",
    "GradedMutant",
    "MutantGrader",
    "Strength",
    "compare",
    "measure_strength",
    "mutant_grader",
]
