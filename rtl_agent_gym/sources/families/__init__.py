"""Generated problems: families of many members, with held-out splits.

The source ``family:NAME?count=200&seed=7&split=train`` names members of a family as problems.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from pydantic import BaseModel, Field

from ...errors import UsageError, near_matches
from ...problems.registry import Located, read_query
from ...problems.rows import Place
from .accumulators import ACCUMULATORS
from .arbiters import Arbiters
from .family import SPECIFICATION, TARGET, Family, Parameters, Split
from .fifos import Fifos
from .looking import Lie, LookingFamily
from .machines import Machines
from .pipelines import Pipelines
from .registers import Registers
from .timers import Timers
from .wrappers import Wrappers

__all__ = ["FAMILIES", "SPECIFICATION", "TARGET", "Family", "Parameters", "Split", "draw_members"]

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (Registers(), Arbiters(), Timers(), ACCUMULATORS, Machines(), Wrappers(), Fifos(), Pipelines())
}
"""All families by name."""


class FamilyOptions(BaseModel, frozen=True, extra="forbid"):
    """What may follow the question mark."""

    count: int = Field(default=200, ge=1, le=1_000_000)
    """How many members, no two of them equal."""
    seed: int = Field(default=0, ge=0)
    """The first members of a seed are the same for every count."""
    split: Split = "train"
    lie: Lie | None = None
    """For controls: files that do not tell the truth. Only families with such files have it."""


def read_options(source: str) -> tuple[Family, FamilyOptions]:
    """The family that a source names, and what follows the question mark.

    Raises:
        UsageError: There is no such family, it has no such split or lie, or an option is not valid.
    """
    name, _, query = source.removeprefix("family:").partition("?")
    if name not in FAMILIES:
        raise UsageError(f"unknown family {name!r} in {source!r}; {near_matches(name, FAMILIES)}")
    options, family = read_query(FamilyOptions, source, query), FAMILIES[name]
    if options.split not in family.splits:
        raise UsageError(f"{name} has no split {options.split!r}; it has {', '.join(family.splits)}")
    if options.lie is not None and not isinstance(family, LookingFamily):
        raise UsageError(f"{name} has no files that could lie, so {source!r} is not possible; leave out lie=")
    return family, options


def draw_members(source: str) -> Iterator[Parameters]:
    """The parameters that a source names, in its order. Raises like `read_options`."""
    family, options = read_options(source)
    seen, rng = set[str](), Random(f"{family.name}/{options.split}/{options.seed}")
    while len(seen) < options.count:
        parameters = family.draw(rng, options.split)
        if parameters.digest not in seen:
            seen.add(parameters.digest)
            yield parameters


def read_source(source: str) -> Iterator[Located]:
    """The problems that a source names, for the registry. Raises like `read_options`."""
    family, options = read_options(source)
    for number, parameters in enumerate(draw_members(source), 1):
        if isinstance(family, LookingFamily):
            yield family.problem(parameters, options.lie), Place(source, number)
        else:
            yield family.problem(parameters), Place(source, number)
