"""Generated problems: families of many members, with held-out splits.

The source ``family:NAME?count=200&seed=7&split=train`` names members of a family as problems.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from pydantic import BaseModel, ConfigDict, Field

from rtl_agent_gym.errors import UsageError, near_matches
from rtl_agent_gym.problems.registry import Located, read_query
from rtl_agent_gym.problems.rows import Place
from rtl_agent_gym.sources.families.arbiters import ARBITERS
from rtl_agent_gym.sources.families.family import SPECIFICATION, SPLITS, TARGET, Family, Parameters, Split
from rtl_agent_gym.sources.families.registers import REGISTERS
from rtl_agent_gym.sources.families.timers import TIMERS

__all__ = ["FAMILIES", "SPECIFICATION", "SPLITS", "TARGET", "Family", "Parameters", "Split", "draw_members"]

FAMILIES: dict[str, Family] = {family.name: family for family in (REGISTERS, ARBITERS, TIMERS)}
"""All families by name."""


class FamilyOptions(BaseModel):
    """What may follow the question mark."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    count: int = Field(default=200, ge=1, le=1_000_000)
    """How many members, no two of them equal."""
    seed: int = Field(default=0, ge=0)
    """The first members of a seed are the same for every count."""
    split: Split = "train"


def draw_members(source: str) -> Iterator[Parameters]:
    """The parameters that a source names, in its order.

    Raises:
        UsageError: There is no such family or split, or an option is not valid.
    """
    name, _, query = source.removeprefix("family:").partition("?")
    if name not in FAMILIES:
        raise UsageError(f"unknown family {name!r} in {source!r}; {near_matches(name, FAMILIES)}")
    expected = {
        "count": "a number from 1 to 1000000",
        "seed": "a number from 0 up",
        "split": f"one of {', '.join(SPLITS)}",
    }
    options = read_query(FamilyOptions, source, query, expected)
    family, seen = FAMILIES[name], set[str]()
    rng = Random(f"{name}/{options.split}/{options.seed}")
    while len(seen) < options.count:
        parameters = family.draw(rng, options.split)
        if parameters.digest not in seen:
            seen.add(parameters.digest)
            yield parameters


def read_source(source: str) -> Iterator[Located]:
    """The problems that a source names, for the registry. Raises `UsageError` as `draw_members` does."""
    for number, parameters in enumerate(draw_members(source), 1):
        yield FAMILIES[parameters.family].problem(parameters), Place(source, number)
