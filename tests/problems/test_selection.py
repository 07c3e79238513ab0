from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.problems import Difficulty, Problem, order_by_difficulty, split_problems

DIFFICULTIES: tuple[Difficulty, ...] = ("easy", "medium", "hard")
PROBLEMS = [
    Problem(id=f"p_{number:04d}", category=3, difficulty=DIFFICULTIES[number * 7 % 3], prompt="p")
    for number in range(1000)
]


def test_a_split_has_about_the_share_asked_for_and_loses_nothing() -> None:
    train, test = split_problems(PROBLEMS, held_out=0.2)
    assert 150 < len(test) < 250
    assert sorted(p.id for p in train + test) == [p.id for p in PROBLEMS]
    assert [p.id for p in train] == sorted(p.id for p in train)


def test_a_split_is_the_same_on_every_machine() -> None:
    held_out = [p.id for p in split_problems(PROBLEMS[:20], held_out=0.2)[1]]
    assert held_out == ["p_0000", "p_0005", "p_0007", "p_0011"]


@given(st.permutations(range(30)), st.integers(0, 30))
def test_a_problem_stays_on_its_side_when_others_come_and_go(order: list[int], count: int) -> None:
    whole = {p.id for p in split_problems(PROBLEMS[:30])[1]}
    part = [PROBLEMS[index] for index in order[:count]]
    assert {p.id for p in split_problems(part)[1]} == whole & {p.id for p in part}


def test_the_seed_and_the_ends_of_the_share() -> None:
    assert split_problems(PROBLEMS, seed=0)[1] != split_problems(PROBLEMS, seed=1)[1]
    assert split_problems(PROBLEMS, held_out=0.0) == (PROBLEMS, [])
    assert split_problems(PROBLEMS, held_out=1.0) == ([], PROBLEMS)


@pytest.mark.parametrize("held_out", [-0.1, 1.1, float("nan")])
def test_a_share_out_of_range(held_out: float) -> None:
    with pytest.raises(UsageError, match="between 0 and 1"):
        split_problems(PROBLEMS, held_out=held_out)


def test_order_by_difficulty_is_stable() -> None:
    ordered = order_by_difficulty(PROBLEMS)
    ranks = [DIFFICULTIES.index(p.difficulty) for p in ordered]
    assert ranks == sorted(ranks)
    easy = [p.id for p in ordered if p.difficulty == "easy"]
    assert easy == sorted(easy)
