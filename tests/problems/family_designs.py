"""Members of families, and their designs."""

from __future__ import annotations

from itertools import islice

from rtl_agent_gym.problems.families import FAMILIES, SPLITS, Parameters
from rtl_agent_gym.problems.families.source import draw_members


def members(family: str, count: int) -> list[Parameters]:
    """Members of all splits in turn."""
    sources = [draw_members(f"family:{family}?split={split}&seed=5&count={count}") for split in SPLITS]
    return [member for group in islice(zip(*sources, strict=True), -(-count // len(SPLITS))) for member in group][
        :count
    ]


def designs(member: Parameters) -> dict[str, dict[str, str]]:
    """A member's reference, the design of each habit, and the one that follows all habits."""
    family = FAMILIES[member.family]
    habits = family.habits_of(member)
    each = {habit: family.design(member, {habit}) for habit in habits}
    return {"reference": family.design(member), **each, **({"all": family.design(member, habits)} if habits else {})}
