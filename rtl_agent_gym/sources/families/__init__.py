"""Generated problems: families with many members each, and held-out splits.

The source ``family:NAME?count=200&seed=7&split=train`` selects members of a family as problems.
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
    """Options after the question mark of a source name."""

    count: int = Field(default=200, ge=1, le=1_000_000)
    """Number of members, all different."""
    seed: int = Field(default=0, ge=0)
    """With the same seed, a larger count only adds members at the end."""
    split: Split = "train"
    lie: Lie | None = None
    """For control experiments: which files contain false information. Only for families whose facts are in files."""


def read_options(source: str) -> tuple[Family, FamilyOptions]:
    """The family that a source names, and its options.

    Raises:
        UsageError: The family does not exist or lacks this split or lie, or an option is not valid.
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
    """The parameters of a source's members, in order. Raises like `read_options`."""
    family, options = read_options(source)
    seen, rng = set[str](), Random(f"{family.name}/{options.split}/{options.seed}")
    while len(seen) < options.count:
        parameters = family.draw(rng, options.split)
        if parameters.digest not in seen:
            seen.add(parameters.digest)
            yield parameters


def read_source(source: str) -> Iterator[Located]:
    """The problems of a source, for the registry. Raises like `read_options`."""
    family, options = read_options(source)
    for number, parameters in enumerate(draw_members(source), 1):
        if isinstance(family, LookingFamily):
            yield family.problem(parameters, options.lie), Place(source, number)
        else:
            yield family.problem(parameters), Place(source, number)
