"""Teachers compute log-probabilities of the tokens that the student sampled.

A teacher reads the student's exact tokens (`base`), or the same turns in a dialect of its own (`cross`). It may be the
student itself, with earlier weights (`own`). `setup` builds a run's teachers.
"""

from .base import Judgement, Prompt, SameTokens, Sampled, Teacher
from .own import SelfTeacher

__all__ = ["Judgement", "Prompt", "SameTokens", "Sampled", "SelfTeacher", "Teacher"]
