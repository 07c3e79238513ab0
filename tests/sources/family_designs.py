"""Members of families, and their designs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from random import Random

from rtl_agent_gym.sources.families import FAMILIES, TARGET, Parameters, draw_members
from rtl_agent_gym.sources.families.looking import LookingFamily, read_rows


def members(family: str, count: int) -> list[Parameters]:
    """Members of all splits in turn."""
    splits = FAMILIES[family].splits
    sources = [draw_members(f"family:{family}?split={split}&seed=5&count={count}") for split in splits]
    return [member for group in islice(zip(*sources, strict=True), -(-count // len(splits))) for member in group][
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
        if axis == "base":  # the same number in other digits; reading digits in a wrong base is a habit
            continue
        others = [{**member.fields, axis: value} for value in values if value != member.values[axis]]
        fields = rng.choice([fields for fields in others if family.is_possible(fields)])
        found[f"{axis} {fields[axis]}"] = {TARGET: family.write(fields)}
    if isinstance(family, LookingFamily):
        module, other = member.names["module"], f"docs/{member.names['other_document']}.md"
        changes: dict[str, Mapping[str, str | int]] = {
            "wider": {"width": int(member.values["width"]) + 1},
            "another value": {"value": int(member.values["value"]) ^ 1},
            "the other document": read_rows(family.documents(member)[other], module),
        }
        for name, change in changes.items():
            found[name] = {TARGET: family.write({**member.fields, **change})}
    return found
