"""pass@k and its intervals."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtl_agent_gym.evaluation.statistics import bootstrap, pass_at_k, pass_curve


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_all_draws_with_a_pass(drawn: tuple[int, int, int]) -> None:
    samples, passed, k = drawn
    draws = list(combinations([True] * passed + [False] * (samples - passed), k))
    assert pass_at_k(samples, passed, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_it_is_not_the_biased_formula() -> None:
    assert pass_at_k(5, 2, 3) == pytest.approx(0.9)
    assert pytest.approx(0.784) == 1 - (1 - 2 / 5) ** 3


@pytest.mark.parametrize(("samples", "passed", "k"), [(3, 1, 4), (3, 4, 1), (3, 1, 0)])
def test_impossible_counts_are_refused(samples: int, passed: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(samples, passed, k)


def test_the_interval_is_that_of_the_binomial() -> None:
    estimate = bootstrap([1.0] * 30 + [0.0] * 70)
    assert estimate.value == pytest.approx(0.3)
    assert estimate.low == pytest.approx(0.3 - 1.96 * 0.0458, abs=0.015)
    assert estimate.high == pytest.approx(0.3 + 1.96 * 0.0458, abs=0.015)
    assert bootstrap([1.0] * 30 + [0.0] * 70) == estimate


def test_each_k_takes_the_problems_with_enough_episodes() -> None:
    curve = pass_curve({"a": [True, False], "b": [False, False, False]})
    assert {k: (estimate.value, estimate.problems) for k, estimate in curve.items()} == {
        1: (0.25, 2),
        2: (0.5, 2),
        3: (0.0, 1),
    }
    assert pass_curve({}) == {}
