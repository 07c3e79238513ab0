"""pass@k and its intervals."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtl_agent_gym.evaluation.statistics import compare, estimate, newcombe, pass_at_k, pass_curve, wilson


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_all_draws_with_a_pass(drawn: tuple[int, int, int]) -> None:
    samples, passed, k = drawn
    draws = list(combinations([True] * passed + [False] * (samples - passed), k))
    assert pass_at_k(samples, passed, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@pytest.mark.parametrize(("samples", "passed", "k"), [(3, 1, 4), (3, 4, 1), (3, 1, 0)])
def test_impossible_counts_are_refused(samples: int, passed: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(samples, passed, k)


def test_the_interval_is_that_of_the_binomial() -> None:
    found = estimate([(1, 1)] * 30 + [(0, 1)] * 70)
    assert found.value == pytest.approx(0.3)
    assert found.low == pytest.approx(0.3 - 1.96 * 0.0458, abs=0.015)
    assert found.high == pytest.approx(0.3 + 1.96 * 0.0458, abs=0.015)
    assert estimate([(1, 1)] * 30 + [(0, 1)] * 70) == found


def test_with_one_episode_a_problem_the_interval_holds_near_1() -> None:
    found = estimate([(1, 1)] * 127 + [(0, 1)])
    assert (found.value, found.low, found.high) == (127 / 128, *wilson(127, 128))
    assert found.high < 1


def test_one_problem_has_an_interval_of_its_episodes() -> None:
    assert wilson(2, 5) == pytest.approx((0.1176, 0.7693), abs=1e-4)  # Wilson 1927, as statsmodels gives it
    assert (wilson(0, 5)[0], wilson(5, 5)[1]) == (0.0, 1.0)
    found = estimate([(2, 5)])
    assert (found.value, found.low, found.high) == pytest.approx((0.4, 0.1176, 0.7693), abs=1e-4)
    at_most = estimate([(2, 5)], 5)
    assert at_most.value == 1.0
    assert at_most.low == pytest.approx(1 - (1 - 0.1176) ** 5, abs=1e-3)
    assert at_most.high == 1.0


@pytest.mark.parametrize(("passed", "k"), [(0, 1), (4, 1), (3, 4)])
def test_problems_that_are_all_alike_are_no_certainty(passed: int, k: int) -> None:
    found = estimate([(passed, 4)] * 10, k)
    assert found.value == min(passed, 1)
    assert found.high - found.low == pytest.approx(0.2775, abs=1e-3)


def test_the_interval_of_several_problems_uses_the_episodes() -> None:
    same = estimate([(2, 5)] * 4)  # whichever problems are drawn, their mean is the same
    assert same.low < 0.3 < 0.5 < same.high
    # The spread of a mean of 20 draws; problems add none here.
    assert same.high - same.low == pytest.approx(2 * 1.96 * (0.4 * 0.6 / 20) ** 0.5, abs=0.06)


@pytest.mark.parametrize(
    ("verdicts", "k"), [([(1, 5)] * 50 + [(0, 5)] * 50, 5), ([(1, 5)] * 20, 5), ([(2, 5), (3, 5)] * 8, 3)]
)
def test_the_interval_of_pass_at_k_holds_its_estimate(verdicts: list[tuple[int, int]], k: int) -> None:
    """Episodes that are drawn twice would make it too low: 25 % to 43 % for an estimate of 50 %."""
    found = estimate(verdicts, k)
    assert 0.0 <= found.low <= found.value <= found.high <= 1.0
    assert 0.03 < found.high - found.low < 0.5


def test_few_problems_are_covered() -> None:
    """Of worlds with 8 problems and 3 episodes each, about 95 % of the intervals hold the truth."""
    draw = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        rates = draw.beta(1, 1, size=8)
        found = estimate([(int(draw.binomial(3, rate)), 3) for rate in rates])
        held += found.low <= 0.5 <= found.high
    assert 180 <= held <= 199


def test_runs_that_are_alike_do_not_differ() -> None:
    verdicts = {str(number): (number % 4, 3) for number in range(12)}
    found = compare(verdicts, verdicts)
    assert found is not None
    assert (found.difference, found.p_value, found.problems) == (0.0, 1.0, 12)
    assert found.low < 0 < found.high
    assert compare({"a": (1, 1)}, {"b": (1, 1)}) is None


def test_the_interval_of_a_difference_is_newcombes() -> None:
    """His examples (a) and (b), method 10."""
    assert newcombe((48, 80), (56, 70)) == pytest.approx((0.0524, 0.3339), abs=1e-4)
    assert newcombe((3, 10), (9, 10)) == pytest.approx((0.1705, 0.8090), abs=1e-4)


@pytest.mark.parametrize(
    ("first", "other", "low", "high"),
    [
        ([(1, 1)] * 10, [(1, 1)] * 10, -0.2775, 0.2775),
        ([(4, 4)] * 10, [(2, 2)] * 10, -0.2775, 0.2775),
        ([(0, 1)] * 5 + [(1, 1)] * 5, [(0, 1)] * 5 + [(1, 1)] * 5, -0.3716, 0.3716),
        ([(0, 1)] * 10, [(1, 1)] * 10, 0.6075, 1.0),
        ([(8, 8)], [(8, 8)], -0.3244, 0.3244),
        ([(1, 1)], [(1, 1)], -0.7935, 0.7935),
        ([(1, 1)], [(0, 1)], -1.0, 0.1221),
    ],
)
def test_differences_that_are_all_alike_are_no_certainty(
    first: list[tuple[int, int]], other: list[tuple[int, int]], low: float, high: float
) -> None:
    found = compare(*({str(number): one for number, one in enumerate(run)} for run in (first, other)))
    assert found is not None
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-3)
    assert found.low <= found.difference <= found.high


def test_the_paired_test_is_mcnemars_and_fishers() -> None:
    first = {str(number): (0, 1) for number in range(10)}
    won = compare(first, first | {str(number): (1, 1) for number in range(6)})
    assert won is not None
    assert won.difference == pytest.approx(0.6)
    assert won.p_value == pytest.approx(2 * 0.5**6, abs=0.006)  # McNemar's exact test of 6 against 0
    alone = compare({"a": (1, 8)}, {"a": (7, 8)})
    assert alone is not None
    assert alone.p_value == pytest.approx(0.0101, abs=0.004)  # Fisher's exact test


def exact_p(first: list[tuple[int, int]], other: list[tuple[int, int]]) -> float:
    """The share of all ways to deal each problem's verdicts to the runs that make at least as great a difference."""
    ways = Counter({Fraction(0): 1})
    for (passed, total), (others_passed, others_total) in zip(first, other, strict=True):
        verdicts = [1] * (both := passed + others_passed) + [0] * (total + others_total - both)
        hands = Counter(sum(hand) for hand in combinations(verdicts, others_total))
        further = Counter[Fraction]()
        for so_far, count in ways.items():
            for hand, times in hands.items():
                further[so_far + Fraction(hand, others_total) - Fraction(both - hand, total)] += count * times
        ways = further
    found = abs(
        sum((Fraction(*theirs) - Fraction(*mine) for mine, theirs in zip(first, other, strict=True)), Fraction())
    )
    return sum(count for difference, count in ways.items() if abs(difference) >= found) / ways.total()


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ([(0, 1)] * 6, [(3, 5)] * 6),
        ([(3, 5)] * 6, [(0, 1)] * 6),
        ([(3, 5), (3, 5), (5, 5), (1, 5)], [(2, 5), (4, 5), (5, 5), (5, 5)]),
    ],
    ids=("fewer episodes", "more episodes", "ties that rounding would part"),
)
def test_the_paired_test_is_that_of_all_deals(first: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    found = compare(*({str(number): one for number, one in enumerate(run)} for run in (first, other)))
    assert found is not None
    assert found.p_value == pytest.approx(exact_p(first, other), abs=0.01)


def test_the_paired_test_is_wrong_as_often_as_it_says() -> None:
    draw = np.random.default_rng(2)
    found = []
    for _ in range(80):
        rates = {str(number): draw.random() for number in range(20)}
        runs = [{name: (int(draw.binomial(2, rate)), 2) for name, rate in rates.items()} for _ in range(2)]
        paired = compare(*runs)
        assert paired is not None
        found.append(paired.p_value < 0.05)
    assert sum(found) <= 9


def test_each_k_takes_the_problems_with_enough_episodes() -> None:
    curve = pass_curve({"a": [True, False], "b": [False, False, False]})
    assert {k: (estimate.value, estimate.problems) for k, estimate in curve.items()} == {
        1: (0.25, 2),
        2: (0.5, 2),
        3: (0.0, 1),
    }
    assert pass_curve({}) == {}


def test_intervals_of_few_problems_are_those_of_one_draw() -> None:
    """Published intervals are of at most 200 problems."""
    curve = pass_curve({str(number): [at < number % 4 for at in range(3 + number % 2)] for number in range(30)})
    assert {k: (found.low, found.high) for k, found in curve.items()} == {
        1: (0.2694444444444445, 0.5333333333333333),
        2: (0.44552888888888886, 0.7566399999999999),
        3: (0.4993575, 0.8243575000000001),
        4: wilson(15, 15),  # each of these problems has a pass
    }
    assert curve[2] == estimate([(number % 4, 3 + number % 2) for number in range(30)], 2)
    runs = ({str(number): (number % of, of) for number in range(190)} for of in (4, 3))
    assert str(compare(*runs)).startswith("-4.1 points of pass rate over 190 shared problems (95 % interval -11.1 to")


def test_thousands_of_problems_need_little_memory() -> None:
    """Each of their 10,000 resamples has as many numbers as there are problems."""
    first, other = ({str(number): ((number + more) % 3, 2) for number in range(3000)} for more in (0, 1))
    verdicts = {name: [at < passed for at in range(total)] for name, (passed, total) in first.items()}
    tracemalloc.start()
    try:
        curve, paired = pass_curve(verdicts), compare(first, other)
        assert tracemalloc.get_traced_memory()[1] < 200_000_000
    finally:
        tracemalloc.stop()
    assert curve[1].high - curve[1].low == pytest.approx(2 * 1.96 * (5 / 24 / 3000) ** 0.5, abs=0.004)
    assert paired is not None
    assert paired.low < 0 < paired.high < 0.04
