"""Members of families, and their designs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from random import Random

from rtl_agent_gym.sources.families import FAMILIES, TARGET, Parameters, draw_members
from rtl_agent_gym.sources.families.family import Fields
from rtl_agent_gym.sources.families.looking import LookingFamily


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
        other = family.documents(member)[family.document(member, "other_document")]
        changes = _FACTS[family.name](member.fields)
        changes["the other document"] = family.documents_of.read(other, member.names["module"])
        found |= {name: {TARGET: family.write({**member.fields, **change})} for name, change in changes.items()}
    return found


def _misread_rows(fields: Fields) -> dict[str, dict[str, str | int]]:
    return {"wider": {"width": int(fields["width"]) + 1}, "another value": {"value": int(fields["value"]) ^ 1}}


def _misread_table(fields: Fields) -> dict[str, dict[str, str | int]]:
    """Another reset state, and for each kind of entry another one in a place drawn by chance."""
    rng, states, table, outputs = (
        Random(str(fields)),
        int(fields["states"]),
        str(fields["table"]),
        str(fields["outputs"]),
    )
    places = [at for at, cell in enumerate(table) if cell.isdigit()]
    place, output = rng.choice(places), rng.choice([at for at, cell in enumerate(outputs) if cell != " "])
    following = (int(table[place]) + 1) % states
    shown = f"{int(outputs[output], 16) ^ 1:x}"
    return {
        "another reset state": {"start": (int(fields["start"]) + 1) % states},
        "another next state": {"table": f"{table[:place]}{following}{table[place + 1 :]}"},
        "another output": {"outputs": f"{outputs[:output]}{shown}{outputs[output + 1 :]}"},
    }


_FACTS = {"accumulators": _misread_rows, "machines": _misread_table}
