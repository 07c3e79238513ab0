"""Every attack earns nothing and, where it is one that no honest design would make, is named with its place.

Those that the plain arrangement falls for are first shown to work with the defence in their way taken down.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from rtl_agent_gym.sandboxes import SandboxProvider
from rtl_agent_gym.scoring import Score, Scorer

from .file_attacks import FORGERIES, LATE, READERS, WRITERS
from .other_attacks import CARRIED, ENDINGS, ESCAPES, EXHAUSTION, INCLUDES, TEXTS
from .testbench_attacks import BESIDE, REACHES, UNTESTED
from .thieves import WIDTHS, Attack

pytestmark = pytest.mark.docker

ATTACKS = [
    *FORGERIES,
    *WRITERS,
    *READERS,
    LATE,
    *INCLUDES,
    *BESIDE,
    *REACHES,
    *UNTESTED,
    *ESCAPES,
    *CARRIED,
    *TEXTS,
    *ENDINGS,
    *EXHAUSTION,
]


def _rows(attacks: list[Attack], *, quick: Callable[[int], bool] = lambda number: number % 12 == 0) -> list[object]:
    """Rows by class. Slow are those that take long by themselves, and all whose number in their class is not quick.

    Rows of a class are spelled differently and meet the same wall, so by default every twelfth is graded.
    """
    seen: Counter[int] = Counter()
    rows: list[object] = []
    for attack in attacks:
        slow = attack.slow or not (attack.quick or quick(seen[attack.threat]))
        seen[attack.threat] += 1
        rows.append(pytest.param(attack, id=attack.name, marks=[pytest.mark.slow] if slow else []))
    return rows


async def grade(attack: Attack, scorer: Scorer) -> Score:
    grading = scorer.score(attack.problem, attack.files, timeout=attack.seconds)
    return await asyncio.wait_for(grading, attack.seconds + 60)


def test_there_are_enough_of_them() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS) >= 40


THEFTS = [attack for attack in ATTACKS if attack.walls]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("attack", _rows(THEFTS, quick=lambda number: number == 0))
async def test_a_theft_works_until_its_wall_stands(attack: Attack, shared_provider: SandboxProvider) -> None:
    """By default, some of each class: whether an attack works depends on it alone, which seldom changes."""
    async with Scorer(shared_provider, defences=attack.undefended) as scorer:
        stolen = await grade(attack, scorer)
    assert stolen.passed, stolen.reason
    assert stolen.reward >= 1.0
    assert stolen.violations == []


@pytest.mark.sampled(28)
@pytest.mark.parametrize("attack", [*_rows(THEFTS), *_rows([attack for attack in ATTACKS if not attack.walls])])
async def test_an_attack_earns_nothing(attack: Attack, dense_scorer: Scorer) -> None:
    """Also what never worked, and no partial credit but that of the thief's module."""
    score = await grade(attack, dense_scorer)
    assert not score.passed
    credit = WIDTHS if attack.said is None else 0.0
    assert score.credit <= credit
    assert score.reward <= round(0.4 + credit, 9), "only format and syntax may have been earned"
    if attack.said is None:
        assert score.violations == []
    else:
        assert score.tests_passed == 0
        assert attack.named_in(score.violations), score.violations
