"""Teachers: what they think of the tokens that the student sampled.

One reads the student's exact tokens (`base`), another its turns in a dialect of its own (`cross`); `setup` makes those
that a run's options ask for.
"""

from .base import ByProblem, Judgement, SameTokens, Sampled, Teacher, WeightedKinds

__all__ = ["ByProblem", "Judgement", "SameTokens", "Sampled", "Teacher", "WeightedKinds"]
