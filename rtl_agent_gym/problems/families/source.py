"""The source ``family:NAME?count=200&seed=7&split=train``: members of a family as problems."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from pydantic import BaseModel, ConfigDict, Field

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.problems.families import FAMILIES
from rtl_agent_gym.problems.families.family import SPLITS, Parameters, Split
from rtl_agent_gym.problems.model import Problem
from rtl_agent_gym.problems.near import near_matches
from rtl_agent_gym.problems.queries import read_query

PREFIX = "family:"
"""What such a source begins with."""


class Options(BaseModel):
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
    name, _, query = source.removeprefix(PREFIX).partition("?")
    if name not in FAMILIES:
        raise UsageError(f"unknown family {name!r} in {source!r}; {near_matches(name, FAMILIES)}")
    options = _parse_options(source, query)
    family, seen = FAMILIES[name], set[str]()
    rng = Random(f"{name}/{options.split}/{options.seed}")
    while len(seen) < options.count:
        parameters = family.draw(rng, options.split)
        if parameters.digest not in seen:
            seen.add(parameters.digest)
            yield parameters


def generate(source: str) -> Iterator[Problem]:
    """The problems that a source names. Raises `UsageError` as `draw_members` does."""
    for parameters in draw_members(source):
        yield FAMILIES[parameters.family].problem(parameters)


def _parse_options(source: str, query: str) -> Options:
    expected = {
        "count": "a number from 1 to 1000000",
        "seed": "a number from 0 up",
        "split": f"one of {', '.join(SPLITS)}",
    }
    return read_query(Options, source, query, expected)
