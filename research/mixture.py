"""Draws the episodes on which the shipped models are trained."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from research import variation
from research.episodes import Design, Encoder, Start, TextEpisode, TokenEpisode, submitted_episode, written_episode
from rtl_agent_gym.demo.founding import FOUNDING, READ, Founding
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.prompts import build_prompt, with_reference
from rtl_agent_gym.sources.families.family import LAYOUTS, PROMPT, SPECIFICATION, TARGET, Family, Layout, Parameters


@dataclass(frozen=True)
class Mix:
    """Shares of the kinds of episodes, and the model's behaviour in them."""

    follow: float = 1.0
    """For each habit that contradicts the specification, the probability that the specification is followed."""
    reference: float = 0.2
    """Share of the episodes with a reference solution in the prompt, which the design copies.

    Half of these contradict the specification: a quarter have some habits, a quarter are those of another problem.
    """
    feedback: float = 0.2
    """Share of the episodes with submissions. In half of them, the first design is made wrong and is not trained on."""
    mend: float = 1.0
    """For each habit in a failing design, the probability that the next design does not have it."""
    mend_named: float | None = None
    """The same for habits that change ports, which answers then name. With None, answers name random checks."""
    renamed: float = 0.0
    """Share of the episodes in which most names consist of other words."""
    reworded: float = 0.0
    """Share of the episodes in which most lines are worded differently."""
    layouts: tuple[Layout, ...] = LAYOUTS
    """Layouts of the specifications."""


def draw(family: Family, mix: Mix, rng: random.Random) -> TextEpisode:
    """A random episode on a problem of the training split."""
    member = family.draw(rng, "train")
    while not isinstance(family, Founding) and member.layout not in mix.layouts:
        member = family.draw(rng, "train")
    founding = isinstance(family, Founding)
    if not founding and rng.random() < mix.renamed:
        member = variation.renamed(family, member, rng)
    specification, kind, habits = family.specification(member), rng.random(), family.habits_of(member)
    if not founding and rng.random() < mix.reworded:
        specification = variation.reworded(family, member, rng)
    begin = start(family, specification)
    if kind < mix.reference:
        files = _reference(family, member, rng)
        return written_episode(Start(_with_reference(begin.user, files), begin.read), specification, files)
    if kind < mix.reference + mix.feedback:
        return _with_submissions(family, member, mix, begin, specification, rng)
    return written_episode(begin, specification, family.design(member, _some(habits, 1 - mix.follow, rng)))


def _with_submissions(
    family: Family, member: Parameters, mix: Mix, begin: Start, specification: str, rng: random.Random
) -> TextEpisode:
    habits = family.habits_of(member)
    wrong = _some(habits, 1 - mix.follow, rng)
    forced, submissions = rng.random() < 0.5, rng.randint(1, 3)
    if forced and habits:
        wrong = _some(habits, 0.5, rng) or [rng.choice(habits)]
    designs: list[Design] = []
    while len(designs) <= submissions:
        failing: tuple[str, ...] = ()
        if wrong and mix.mend_named is None:
            failing = tuple(_some(checks(family), 0.5, rng) or ["test_random"])
        elif wrong:
            failing = failing_checks(family, member, wrong)
        designs.append(Design(family.design(member, wrong), failing, learned=not forced or bool(designs)))
        if not failing:
            break
        wrong = [habit for habit in wrong if rng.random() < 1 - _mend(family, member, habit, mix)]
    return submitted_episode(begin, specification, designs, submissions)


def _mend(family: Family, member: Parameters, habit: str, mix: Mix) -> float:
    """The probability that the next design does not have a habit."""
    return mix.mend if mix.mend_named is None or not _ports(family, member, [habit]) else mix.mend_named


def stream(families: Sequence[Family], mix: Mix, encoder: Encoder, seed: int) -> Iterator[TokenEpisode]:
    """Endless random episodes as token ids."""
    rng = random.Random(seed)
    while True:
        yield encoder.encode(draw(rng.choice(families), mix, rng))


def start(family: Family, specification: str) -> Start:
    """How an episode on a member of a family begins in the environment."""
    if isinstance(family, Founding):
        return Start(_FOUNDING_PROMPT, READ)
    return Start(_PROMPT.format(len(specification.encode())))


_EMPTY = Problem(id="x", category=3, difficulty="easy", prompt=PROMPT, context={SPECIFICATION: ""}, targets=(TARGET,))
_PROMPT = build_prompt(_EMPTY)[1].replace("(0 bytes)", "({:,} bytes)")
_FOUNDING_PROMPT = build_prompt(FOUNDING.problem(FOUNDING.member))[1]


@cache
def checks(family: Family) -> tuple[str, ...]:
    """The names of a family's hidden tests."""
    problem = family.problem(family.draw(random.Random(0)))
    tests = [test for text in problem.harness.values() for test in re.findall(r"^async def (test_\w+)", text, re.M)]
    roles = () if isinstance(family, Founding) else family.roles[1:]
    return (*(f"test_{role}_port" for role in roles), *tests)


def failing_checks(family: Family, member: Parameters, habits: Collection[str]) -> tuple[str, ...]:
    """The checks that a design with habits fails: one for each port that differs, and all those of the behaviour."""
    if not habits:
        return ()
    ports = _ports(family, member, habits)
    behaviour = [check for check in checks(family) if not check.endswith("_port")]
    if isinstance(family, Founding):
        return (*(["interface"] if ports else []), *behaviour)
    return (*(f"test_{family.roles[1:][number]}_port" for number in ports), *behaviour)


def _ports(family: Family, member: Parameters, habits: Collection[str]) -> list[int]:
    """The indices of the ports that differ between a design with habits and the reference solution."""
    right, wrong = (
        re.findall(r"^    (?:in|out)put .*", text, re.M)
        for files in (family.design(member), family.design(member, habits))
        for text in files.values()
    )
    return [number for number, (a, b) in enumerate(zip(right, wrong, strict=True)) if a != b]


def _reference(family: Family, member: Parameters, rng: random.Random) -> dict[str, str]:
    kind, habits = rng.random(), family.habits_of(member)
    if kind < 0.25:
        return family.design(family.draw(rng, "train"))
    return family.design(member, _some(habits, 0.5, rng) if kind < 0.5 else ())


@cache
def _reference_form(path: str) -> str:
    return with_reference("USER", {path: "TEXT"})


def _with_reference(user: str, files: dict[str, str]) -> str:
    """The same as `with_reference`, but a hundred times as fast."""
    ((path, text),) = files.items()
    return _reference_form(path).replace("USER", user).replace("TEXT", text.rstrip("\n"))


def _some(habits: Collection[str], share: float, rng: random.Random) -> list[str]:
    return [habit for habit in habits if rng.random() < share]
