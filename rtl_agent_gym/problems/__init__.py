"""CVDP problems: their data, their sources, and how to select them."""

from __future__ import annotations

from rtl_agent_gym.problems.loading import (
    find_problem,
    load_problems,
    order_by_difficulty,
    scan_problems,
    split_problems,
)
from rtl_agent_gym.problems.model import CATEGORIES, DIFFICULTIES, Difficulty, Problem, category_name
from rtl_agent_gym.problems.paths import editable, is_allowed_path, path_fault
from rtl_agent_gym.problems.rows import apply_patch
from rtl_agent_gym.problems.validation import validate_problem

__all__ = [
    "CATEGORIES",
    "DIFFICULTIES",
    "Difficulty",
    "Problem",
    "apply_patch",
    "category_name",
    "editable",
    "find_problem",
    "is_allowed_path",
    "load_problems",
    "order_by_difficulty",
    "path_fault",
    "scan_problems",
    "split_problems",
    "validate_problem",
]
