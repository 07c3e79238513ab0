"""CVDP problems: their data, their sources, and how to select them."""

from __future__ import annotations

from .loading import find_problem, load_problems, order_by_difficulty, scan_problems, split_problems
from .model import CATEGORIES, DIFFICULTIES, Difficulty, Problem, category_name
from .paths import editable, is_allowed_path, path_fault
from .rows import apply_patch
from .validation import validate_problem

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
