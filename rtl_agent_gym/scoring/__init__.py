"""Grades files with a problem's hidden tests: stages, harness, reward, cache."""

from __future__ import annotations

from .cache import ScoreCache, rules_digest
from .harness import TIME_LIMIT
from .score import PRESETS, RewardWeights, Score, TestOutcome
from .scorer import Scorer, score_files

__all__ = [
    "PRESETS",
    "TIME_LIMIT",
    "RewardWeights",
    "Score",
    "ScoreCache",
    "Scorer",
    "TestOutcome",
    "rules_digest",
    "score_files",
]
