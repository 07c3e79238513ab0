"""Members of families, and their designs."""

from __future__ import annotations

from itertools import islice
from random import Random

from rtl_agent_gym.sources.families import FAMILIES, SPLITS, TARGET, Parameters, draw_members


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


def misreadings(member: Parameters) -> dict[str, dict[str, str]]:
    """For each axis, the design for another value of it."""
    family, rng = FAMILIES[member.family], Random(member.digest)
    found = {}
    for axis, values in family.axes.items():
        others = [{**member.fields, axis: value} for value in values if value != member.values[axis]]
        fields = rng.choice([fields for fields in others if family.is_possible(fields)])
        found[f"{axis} {fields[axis]}"] = {TARGET: family.write(fields)}
    return found
