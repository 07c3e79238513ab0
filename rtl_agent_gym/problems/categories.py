"""CVDP's categories and difficulties, and how to parse them."""

from __future__ import annotations

import re
from typing import get_args

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.problems.model import Difficulty
from rtl_agent_gym.problems.near import near_matches

CATEGORIES: dict[int, str] = {
    2: "RTL completion",
    3: "spec to RTL",
    4: "RTL modification",
    5: "module reuse",
    6: "RTL correspondence",
    7: "lint and quality",
    8: "testbench correspondence",
    9: "RTL questions",
    10: "testbench questions",
    12: "stimulus generation",
    13: "checker generation",
    14: "assertion generation",
    16: "debugging",
}
"""Category numbers and their names."""

DIFFICULTIES: tuple[Difficulty, ...] = get_args(Difficulty)
"""From easy to hard."""

_CATEGORY = re.compile(r"(?:cid)?0*(\d{1,9})", re.IGNORECASE | re.ASCII)


def category_name(category: int) -> str:
    """The benchmark's form of a category: ``cid003`` for 3."""
    return f"cid{category:03d}"


def parse_category(value: int | str) -> int:
    """The number of a category given as 3, ``"3"``, ``"cid3"`` or ``"cid003"``.

    Raises:
        UsageError: CVDP has no such category.
    """
    match = _CATEGORY.fullmatch(str(value).strip())
    if match and int(match[1]) in CATEGORIES:
        return int(match[1])
    known = [category_name(number) for number in CATEGORIES]
    wanted = category_name(int(match[1])) if match else str(value)
    raise UsageError(f"unknown category {value!r}; {near_matches(wanted, known)} (all: {', '.join(known)})")


def parse_difficulty(value: str) -> Difficulty:
    """The difficulty named `value`, in upper or lower case.

    Raises:
        UsageError: There is no such difficulty.
    """
    name = str(value).strip().lower()
    for difficulty in DIFFICULTIES:
        if difficulty == name:
            return difficulty
    raise UsageError(f"unknown difficulty {value!r}; {near_matches(name, DIFFICULTIES)}")
