"""Draws the episodes that the shipped models are trained on."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from ..problems.families.family import LAYOUTS, Family, Layout, Parameters
from . import family_episode
from .family_episode import Encoder, Start, TextEpisode, TokenEpisode
from .founding import START, Founding


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
    renamed: float = 0.0
    """Share of the episodes with invented words in some names."""
    layouts: tuple[Layout, ...] = LAYOUTS
    """Layouts of the specifications."""
    wordings: int | None = None
    """Only the first wordings of each line, so many; None for all of training."""


def draw(family: Family, mix: Mix, pieces: Collection[str], rng: random.Random) -> TextEpisode:
    """A random episode on a problem of the training split."""
    member = _member(family, mix, rng)
    (path,) = family.design(member)

    def design(*habits: str) -> str:
        return family.design(member, habits)[path]

    specification, kind, habits = family.specification(member), rng.random(), family.habits_of(member)
    first = ""
    if kind < mix.reference:
        last = _reference(family, member, rng)
    elif habits and kind < mix.reference + mix.repair:
        wrong = _some(habits, 0.5, rng) or [rng.choice(habits)]
        first, last = design(*wrong), design(*_some(wrong, 1 - mix.mend, rng))
    else:
        last = design(*_some(habits, 1 - mix.follow, rng))
    if rng.random() < mix.renamed:
        specification, first, last = family_episode.renamed([specification, first, last], pieces, 0.5, rng)
    start = START if isinstance(family, Founding) else Start()
    if first:
        return family_episode.repaired(specification, {path: first}, failing(rng), {path: last}, start)
    if kind < mix.reference:
        start = replace(start, user=family_episode.with_reference({path: last}, start.user))
    return family_episode.episode(specification, {path: last}, start)


def stream(
    families: Sequence[Family], mix: Mix, pieces: Collection[str], encoder: Encoder, seed: int
) -> Iterator[TokenEpisode]:
    """Endless random episodes as ids."""
    rng = random.Random(seed)
    while True:
        one = draw(rng.choice(families), mix, pieces, rng)
        yield encoder.encode(one)


_CHECKS = (
    ("test_output_port", "test_reset", "test_kind_of_reset", "test_enable", "test_limits", "test_random"),
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


def _member(family: Family, mix: Mix, rng: random.Random) -> Parameters:
    """A random member with the mixture's layouts and wordings."""
    member = family.draw(rng, "train")
    while member.layout not in mix.layouts:
        member = family.draw(rng, "train")
    if mix.wordings is None:
        return member
    lines = tuple((key, number % mix.wordings) for key, number in member.lines)
    return member.model_copy(update={"lines": lines})


def _reference(family: Family, member: Parameters, rng: random.Random) -> str:
    kind, habits = rng.random(), family.habits_of(member)
    if kind < 0.25:
        (text,) = family.design(family.draw(rng, "train")).values()
    else:
        (text,) = family.design(member, _some(habits, 0.5, rng) if kind < 0.5 else ()).values()
    return text


def _some(habits: Collection[str], share: float, rng: random.Random) -> list[str]:
    return [one for one in habits if rng.random() < share]
