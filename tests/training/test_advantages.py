"""Rewards and KL as advantages."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.training.advantages import RunningMeans, centred_rewards, permuted, token_advantages, token_targets
from rtl_agent_gym.training.options import TrainOptions


@pytest.mark.parametrize(
    ("given", "centred", "kl_T", "mask_T", "expected"),
    [
        ({"reward_coef": 2, "kl_penalty_coef": 0.5}, 0.25, [9, 1, -2, 9], [0, 1, 1, 0], [0, 0.5 - 0.5, 0.5 + 1, 0]),
        ({}, 0.25, None, [0, 1], [0, 0.25]),
        ({"kl_penalty_coef": 0}, 1.0, [3], [1], [0]),
        ({"kl_clip": 0.5, "kl_discount_factor": 1}, 0.0, [4, -4, 4], [1, 1, 1], [-0.5, 0, -0.5]),
        ({"kl_discount_factor": 0.5}, 0.0, [1, 7, 2], [1, 0, 1], [-2, 0, -2]),
        ({"control": "negated_kl", "kl_penalty_coef": 0.5}, 0.0, [2, -2], [1, 1], [1, -1]),
        ({"reward_coef": 1, "kl_budget": 2}, 0.5, [1, -1.5, 4], [1, 1, 1], [-0.5, 2, 0.5]),
        ({"kl_budget": 2}, 0.0, [1, -1, 4, 1], [1, 1, 1, 1], [-1, 1, -4, 0]),
    ],
    ids=(
        "reward less baseline less KL, on sampled tokens alone",
        "no teacher",
        "coefficients of 0",
        "the clip is of what the KL gives before discounting",
        "a token is charged for later ones, counted in sampled tokens",
        "a control negates the KL",
        "the budget leaves out what lies behind it",
        "a budget that is reached is not exceeded",
    ),
)
def test_advantages(given: dict[str, Any], centred: float, kl_T: Any, mask_T: list[float], expected: Any) -> None:
    usual: dict[str, Any] = {"reward_coef": 1.0 if kl_T is None else 0.0, "kl_penalty_coef": 1.0}
    found = token_advantages([centred] * len(mask_T), kl_T, mask_T, TrainOptions(**usual | given))
    assert found == expected


def test_the_control_permutes_the_rewards_between_groups() -> None:
    assert permuted([[1.0, 2.0], [3.0], [4.0, 5.0]], ["a", "b", "c"]) == [[4.0, 5.0], [1.0], [3.0, 3.0]]
    assert permuted([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], ["a", "b", "b"]) == [[5.0, 6.0], [1.0, 2.0], [1.0, 2.0]]
    assert permuted([[1.0, 2.0, 3.0], [4.0, 5.0]], ["a", "b"]) == [[4.0, 5.0, 4.0], [1.0, 2.0]]
    assert permuted([[1.0], [2.0], [3.0], [4.0]], ["a", "a", "b", "b"]) == [[3.0], [4.0], [1.0], [2.0]]


@given(st.lists(st.floats(0, 1.4), min_size=1, max_size=8))
def test_group_mean_sums_to_nothing(rewards: list[float]) -> None:
    [centred] = centred_rewards([rewards], ["p"], "group", RunningMeans())
    assert sum(centred) == pytest.approx(0.0, abs=1e-9)


def test_each_baseline() -> None:
    rewards, problems = [[1.0, 0.0], [1.0, 1.0]], ["a", "b"]
    assert centred_rewards(rewards, problems, "group", RunningMeans()) == [[0.5, -0.5], [0.0, 0.0]]
    assert centred_rewards(rewards, problems, "batch", RunningMeans()) == [[0.25, -0.75], [0.25, 0.25]]
    assert centred_rewards(rewards, problems, "none", RunningMeans()) == rewards


def test_running_mean_is_of_earlier_episodes_of_the_same_problem() -> None:
    running = RunningMeans()
    assert centred_rewards([[1.0]], ["a"], "running", running) == [[1.0]]  # nothing to compare with
    assert centred_rewards([[0.0]], ["a"], "running", running) == [[-1.0]]
    assert centred_rewards([[1.0]], ["b"], "running", running) == [[1.0]]
    assert running.means["a"][1] == pytest.approx(0.5)


def test_a_running_mean_forgets_what_lies_far_back() -> None:
    running = RunningMeans()
    for reward in (0.0, 1.0):
        for _ in range(50):
            running.update("p", [reward] * 4)
    assert running.means["p"][1] > 0.99


def test_running_means_survive_a_checkpoint() -> None:
    first = RunningMeans()
    first.update("p", [1.0, 0.0, 0.0])
    second = RunningMeans(means=json.loads(json.dumps(first.means)))
    for means in (first, second):
        means.update("p", [1.0])
    assert first.means == second.means


def test_the_running_baseline_never_holds_the_reward_itself() -> None:
    """In a problem's first batch the others of the problem stand in, then the others of the batch, then 0."""
    running = RunningMeans()
    found = centred_rewards([[1.0, 0.0], [0.4]], ["a", "b"], "running", running)
    assert found == [[pytest.approx(1.0), pytest.approx(-1.0)], [pytest.approx(0.4 - 0.5)]]
    assert running.means == {"a": (2, pytest.approx(0.5)), "b": (1, pytest.approx(0.4))}
    assert centred_rewards([[0.5], [1.0]], ["a", "c"], "running", running) == [[0.0], [pytest.approx(0.5)]]
    twice = centred_rewards([[1.0], [0.0]], ["d", "d"], "running", RunningMeans())  # one problem in two groups
    assert twice == [[1.0], [-1.0]]
    [[first], [second], _] = centred_rewards([[1.0], [0.0], [0.6]], ["d", "d", "e"], "running", RunningMeans())
    assert (first, second) == (1.0, -1.0), "another problem does not count while there is an episode of the same one"


@given(st.lists(st.floats(0, 1.4), min_size=2, max_size=6), st.floats(0, 1.4))
def test_a_first_batchs_baseline_does_not_move_with_the_reward(rewards: list[float], other: float) -> None:
    first = centred_rewards([rewards], ["p"], "running", RunningMeans())[0][0]
    second = centred_rewards([[other, *rewards[1:]]], ["p"], "running", RunningMeans())[0][0]
    assert rewards[0] - first == pytest.approx(other - second, abs=1e-9)


def test_a_weight_scales_a_tokens_kl_before_clip_and_discount_but_not_the_budget() -> None:
    config = TrainOptions(reward_coef=1.0, kl_penalty_coef=1.0, kl_clip=1.0, kl_budget=4.0)
    found = token_advantages([0.5] * 4, [2.0, 2.0, 1.0, 7.0], [1, 1, 1, 1], config, [0.25, 1.0, 0.0, 1.0])
    assert found == [0.0, -0.5, 0.5, 0.5]


LIKELY = [(7, math.log(0.6)), (8, math.log(0.2))]
"""A teacher's two most likely tokens."""


def targets(
    kl_T: list[float], top_T: list[list[tuple[int, float]]], weight: float = 1.0, **options: Any
) -> list[list[tuple[int, float]]]:
    """The targets of tokens 7, 8, 9 … that the student sampled with probability 1/2, with their weights."""
    config = TrainOptions(reward_coef=0.0, **{"kl_penalty_coef": 1.0, "kl_top_k": 2, **options})
    size = len(kl_T)
    sampled_T, logprobs_T = [7 + place for place in range(size)], [math.log(0.5)] * size
    found = token_targets(sampled_T, kl_T, logprobs_T, top_T, [1.0] * size, config, [weight] * size)
    return [list(zip(*pair, strict=True)) for pair in zip(*found, strict=True)]


def test_targets_are_the_sampled_token_and_the_teachers_with_its_probabilities() -> None:
    kl_T = [math.log(0.5) - math.log(q) for q in (0.6, 0.2, 0.2)]  # what the teacher thinks of the sampled tokens
    first, second, third = targets(kl_T, [LIKELY] * 3)
    assert first == [(7, pytest.approx(0.75)), (8, pytest.approx(0.25)), (0, 0.0)]
    assert second == [(8, pytest.approx(0.25)), (7, pytest.approx(0.75)), (0, 0.0)]
    assert third == [(9, pytest.approx(0.2)), (7, pytest.approx(0.6)), (8, pytest.approx(0.2))]


def test_targets_have_weights_where_the_kl_has() -> None:
    assert targets([0.0, 0.0], [[], LIKELY])[0] == [(7, 0.0), (0, 0.0), (0, 0.0)], "it is unknown"
    spent = targets([3.0, 0.0], [LIKELY] * 2, kl_budget=2.0)
    assert [sum(weight for _, weight in place) for place in spent] == [pytest.approx(1.0), 0.0]
    assert [targets([0.0], [LIKELY], weight)[0][1][1] for weight in (1.0, 0.5)] == pytest.approx([1 / 3.5, 0.5 / 3.5])
    negated = targets([0.0], [LIKELY], control="negated_kl", kl_penalty_coef=0.5)
    assert sum(weight for _, weight in negated[0]) == pytest.approx(-0.5)
    config = TrainOptions(reward_coef=0.0, kl_top_k=1)
    assert token_targets([7], [0.0], [0.0], [LIKELY], [0.0], config, [1.0]) == ([[7, 0]], [[0.0, 0.0]]), "not sampled"


@pytest.mark.parametrize(
    "given", [{"kl_clip": 1.0}, {"kl_discount_factor": 0.5}, {"reward_coef": 1.0}, {"loss_fn": "ppo"}]
)
def test_the_teachers_tokens_are_learnt_without_a_reward(given: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=f"kl_top_k: cannot be combined with {next(iter(given))}"):
        TrainOptions.build({"reward_coef": 0.0, "kl_top_k": 4, **given})
