"""Names of modules and ports: a stem, in half of the cases with a suffix that fits the role."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

_STEMS = """
amber anchor apple arrow aspen badge basin birch blaze bloom brook cabin cedar chalk cider cliff cloud coral crane delta
drift eagle ember fable fern flint frost gale glade grove harbor hazel heron iris jade kettle lagoon lantern lark lemon
linen lotus maple marble meadow mint moss nectar olive onyx orchid otter pearl pebble pine plume quartz raven reed ridge
river saddle
"""
_HELD_OUT_STEMS = """
bramble copper dune sable shale sierra slate spruce stone summit swan teal thistle timber tulip umber velvet violet
walnut wharf willow yarrow zephyr zinnia
"""
STEMS = tuple(_STEMS.split())
HELD_OUT_STEMS = tuple(_HELD_OUT_STEMS.split())
"""Used by the split ``names`` alone."""

_SUFFIXES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "module": (("unit", "block", "core"), ("cell", "stage")),
    "clock": (("clk", "clock", "ck"), ("osc", "tick")),
    "reset": (("rst", "reset", "clear"), ("init", "zero")),
}
_INPUT = (("in", "a", "line"), ("src", "port"))
_OUTPUT = (("out", "y", "reg"), ("dst", "pin"))


def suffixes(role: str, held_out: bool, is_output: bool) -> tuple[str, ...]:
    """The suffixes of a role's names: those of training, or those that only the split ``names`` has."""
    return _SUFFIXES.get(role, _OUTPUT if is_output else _INPUT)[held_out]


def draw_names(rng: Random, roles: Iterable[str], outputs: Iterable[str], held_out: bool) -> dict[str, str]:
    """A name for each role; no two share a stem.

    Args:
        rng: The source of chance.
        roles: What is named, such as ``clock``.
        outputs: The roles that are output ports.
        held_out: Only stems and suffixes that training never has.
    """
    roles = list(roles)
    names = {}
    for role, stem in zip(roles, rng.sample(HELD_OUT_STEMS if held_out else STEMS, len(roles)), strict=True):
        suffix = rng.choice(suffixes(role, held_out, role in outputs))
        names[role] = f"{stem}_{suffix}" if rng.random() < 0.5 else stem
    return names
