"""Teachers compute log-probabilities of the tokens that the student sampled.

A teacher reads the student's exact tokens (`base`), or the same turns in another dialect (`cross`, with `align`). It
may be the student itself, with earlier weights. `setup` builds a run's teachers.
"""

from .base import Judgement, SameTokens, Sampled, SelfTeacher, Teacher

__all__ = ["Judgement", "SameTokens", "Sampled", "SelfTeacher", "Teacher"]
