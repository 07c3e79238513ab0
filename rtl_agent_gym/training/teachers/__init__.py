"""Teachers compute log-probabilities of the tokens that the student sampled.

A teacher reads the student's exact tokens (`base`), or the same turns in a dialect of its own (`cross`). `setup` builds
a run's teachers.
"""

from .base import Judgement, SameTokens, Sampled, Teacher

__all__ = ["Judgement", "SameTokens", "Sampled", "Teacher"]
