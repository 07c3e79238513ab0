"""Draws the episodes that the shipped models are trained on."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ..problems.families.family import Family, Parameters
from . import family_episode
from .family_episode import Encoder, TextEpisode, TokenEpisode


@dataclass(frozen=True)
class Mix:
    """Shares of the kinds of episodes, and how the model behaves in them."""

    follow: float = 1.0
    """Probability that the specification is followed where a habit contradicts it, for each habit."""
    reference: float = 0.25
    """Share of the episodes with a reference solution in the prompt, which the design copies.

    Half of the references contradict the specification: a quarter have some habits, a quarter are another problem's.
    """
    repair: float = 0.25
    """Share of the episodes in which a first design fails."""
    mend: float = 1.0
    """Probability that the second design follows the specification where the first one did not, for each habit."""
    renamed: float = 0.3
    """Share of the episodes with invented words in some names."""


def draw(family: Family, mix: Mix, pieces: Collection[str], rng: random.Random) -> TextEpisode:
    """A random episode on a problem of the training split."""
    member = family.draw(rng, "train")
    specification, kind = family.specification(member), rng.random()
    if kind < mix.reference:
        design = _reference(family, member, rng)
        if rng.random() < mix.renamed:
            specification, design = _renamed([specification, design], pieces, rng)
        return family_episode.episode(specification, _files(design), family_episode.with_reference(_files(design)))
    habits = family.habits_of(member)
    if habits and kind < mix.reference + mix.repair:
        wrong = _some(habits, 0.5, rng) or [rng.choice(habits)]
        left = _some(wrong, 1 - mix.mend, rng)
        first, second = _text(family, member, wrong), _text(family, member, left)
        if rng.random() < mix.renamed:
            specification, first, second = _renamed([specification, first, second], pieces, rng)
        return family_episode.repaired(specification, _files(first), failing(rng), _files(second))
    design = _text(family, member, _some(habits, 1 - mix.follow, rng))
    if rng.random() < mix.renamed:
        specification, design = _renamed([specification, design], pieces, rng)
    return family_episode.episode(specification, _files(design))


def stream(
    families: Sequence[Family], mix: Mix, pieces: Collection[str], encoder: Encoder, seed: int
) -> Iterator[TokenEpisode]:
    """Endless random episodes as ids."""
    rng = random.Random(seed)
    while True:
        one = draw(rng.choice(families), mix, pieces, rng)
        yield encoder.encode(one)


_CHECKS = (
    ("test_widths", "test_reset", "test_kind_of_reset", "test_enable", "test_limits", "test_random"),
    ("test_reset", "test_kind_of_reset", "test_enable", "test_limits", "test_random"),
    ("test_reset", "test_limits", "test_random"),
    ("test_limits", "test_random"),
)
"""Checks that fail together."""


def failing(rng: random.Random) -> str:
    """What ``submit`` answers about a wrong design."""
    lines = [
        f"submission 1 of {rng.choice((1, 2, 3))}: these checks fail:",
        *(f"- {one}" for one in rng.choice(_CHECKS)),
    ]
    return "\n".join([*lines, "[exit code 1]"])


def _reference(family: Family, member: Parameters, rng: random.Random) -> str:
    kind, habits = rng.random(), family.habits_of(member)
    if kind < 0.25:
        return _text(family, family.draw(rng, "train"), ())
    return _text(family, member, _some(habits, 0.5, rng) if kind < 0.5 else ())


def _text(family: Family, member: Parameters, habits: Collection[str]) -> str:
    return family.design(member, habits)[family_episode.TARGET]


def _files(design: str) -> dict[str, str]:
    return {family_episode.TARGET: design}


def _some(habits: Collection[str], share: float, rng: random.Random) -> list[str]:
    return [one for one in habits if rng.random() < share]


def _renamed(texts: Sequence[str], pieces: Collection[str], rng: random.Random) -> list[str]:
    return family_episode.renamed(texts, pieces, 0.5, rng)
