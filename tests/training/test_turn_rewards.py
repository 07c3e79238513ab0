"""Rewards of turns in the gradient: unbiased, whatever the policy's own length, and only where they are asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, product
from typing import Any

import pytest

pytest.importorskip("tinker")
pytest.importorskip("torch")

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.evaluation.outcome import EpisodeResult
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.renderers.transcript import TokenTranscript
from rtl_agent_gym.training.advantages import RunningMeans, centred_rewards, centred_turns, shuffled
from rtl_agent_gym.training.datums import Example, example_metrics, make_examples
from rtl_agent_gym.training.options import TrainOptions
from rtl_agent_gym.training.rollouts import PlayedGroup, Rollout
from rtl_agent_gym.training.teachers import Judgement

GO = (0.3, 0.8, 0.6)
"""The probability of another turn after turns 1, 2 and 3; after the fourth the episode ends."""
POTENTIALS = (0.4, 0.1, 1.0, 0.7)
"""The score of the files after each turn."""

Centre = Callable[[list[list[float]]], list[list[float]]]


def episodes() -> list[tuple[float, list[int], list[float]]]:
    """All episodes of a policy that decides only when to stop: probability, decisions and rewards of the turns."""
    found = []
    for length in range(1, 5):
        decisions = [1] * (length - 1) + ([0] if length < 4 else [])
        chance = math.prod(GO[turn] if go else 1 - GO[turn] for turn, go in enumerate(decisions))
        scores = POTENTIALS[:length]
        found.append((chance, decisions, [now - before for now, before in zip(scores, (0.0, *scores), strict=False)]))
    return found


def true_gradient() -> list[float]:
    """The derivative of the expected reward by the logit of each decision."""
    return [
        sum(chance * (go[turn] - GO[turn]) * sum(rewards) for chance, go, rewards in episodes() if turn < len(go))
        for turn in range(3)
    ]


def expected_estimate(centre: Centre) -> list[float]:
    """The expectation of the policy gradient of groups of two, by enumeration."""
    total = [0.0] * 3
    for first, second in product(episodes(), episodes()):
        centred = centre([first[2], second[2]])
        for (_, decisions, _), advantages in zip((first, second), centred, strict=True):
            # A decision belongs to the turn that comes before the next one, as a model's last tokens of it do.
            for turn, go in enumerate(decisions):
                total[turn] += first[0] * second[0] * (go - GO[turn]) * advantages[turn] / 2
    return total


def of_later_turns(rewards: Sequence[float]) -> list[float]:
    return list(accumulate(reversed(rewards)))[::-1]


def test_the_gradient_is_that_of_the_reward_although_the_policy_decides_how_long_episodes_are() -> None:
    def centre(group: list[list[float]]) -> list[list[float]]:
        return centred_turns([group], ["p"], "group", RunningMeans())[0]

    half = [value / 2 for value in true_gradient()]  # an episode is in its own group's mean: (n - 1) / n
    assert expected_estimate(centre) == pytest.approx(half)
    whole = expected_estimate(lambda group: centred_turns([group], ["p"], "none", RunningMeans())[0])
    assert whole == pytest.approx(true_gradient())


def test_a_mean_over_the_episodes_that_have_the_turn_would_be_biased() -> None:
    def centre(group: list[list[float]]) -> list[list[float]]:
        means = []
        for turn in range(max(map(len, group))):
            rewards = [episode[turn] for episode in group if turn < len(episode)]
            means.append(sum(rewards) / len(rewards))
        return [of_later_turns([own - mean for own, mean in zip(one, means, strict=False)]) for one in group]

    half = [value / 2 for value in true_gradient()]
    assert max(abs(a - b) for a, b in zip(expected_estimate(centre), half, strict=True)) > 0.02


def test_one_turn_is_the_reward_of_the_episode_for_every_baseline() -> None:
    rewards = [[1.4, 0.4], [0.0, 1.0, 1.4]]
    for baseline in ("group", "batch", "running", "none"):
        turns = [[[reward] for reward in group] for group in rewards]
        found = centred_turns(turns, ["p", "q"], baseline, RunningMeans())
        wanted = centred_rewards(rewards, ["p", "q"], baseline, RunningMeans())
        assert [[one for [one] in group] for group in found] == wanted


def test_an_ended_episode_counts_with_what_it_still_earns() -> None:
    [found] = centred_turns([[[0.4, 1.0], [1.4]]], ["p"], "group", RunningMeans())
    assert found == [[0.0, 0.5], [0.0]]
    running = RunningMeans()
    centred_turns([[[0.4, 1.0], [1.4]]], ["p"], "running", running)
    assert running.means == {"p": (2, pytest.approx(1.4)), "p turn 2": (2, 0.5)}


def test_a_running_mean_of_a_turn_counts_all_earlier_episodes() -> None:
    """Also those of steps without an episode of so many turns, before and after."""
    episodes = [[0.4], [0.2], [0.0, 1.0], [0.3], [0.1]]
    running = RunningMeans()
    for turns in episodes:
        before = dict(running.means)
        [[found], _] = centred_turns([[turns], [[0.6] * len(turns)]], ["p", "q"], "running", running)
        if "p" in before:
            baselines = [before["p"][1], before.get("p turn 2", (0, 0.0))[1]]
            earned = of_later_turns(turns)
            assert found == pytest.approx([own - mean for own, mean in zip(earned, baselines, strict=False)])
    assert running.means["p turn 2"] == (5, pytest.approx(1.0 / 5))
    alone = RunningMeans()
    for turns in episodes:
        centred_turns([[turns]], ["p"], "running", alone)
    assert alone.means == {"p": (5, pytest.approx(2.0 / 5)), "p turn 2": (5, pytest.approx(1.0 / 5))}


@pytest.fixture(scope="module")
def problem() -> Problem:
    return load_problems("bundled")[0]


def rollout(problem: Problem, turns: Sequence[float]) -> Rollout:
    tokens = TokenTranscript([1, 2])
    for number, _ in enumerate(turns):
        if number:
            tokens.append([9])
        tokens.add_action([10 + number] * (number + 1), [-0.5] * (number + 1))
    return Rollout(EpisodeResult.of(problem, 0), (tokens,), sum(turns), turn_rewards=tuple(turns))


def with_advantages(rollouts: list[Rollout], problem: Problem, **options: Any) -> list[Example]:
    given = TrainOptions.build({"kl_penalty_coef": 0, "teacher_model": None} | options)
    examples = make_examples([PlayedGroup(problem, rollouts)], given, RunningMeans())
    for example in examples:
        example.set_advantages(given, None)
    return examples


def advantages(rollouts: list[Rollout], problem: Problem, **options: Any) -> list[list[float]]:
    examples = with_advantages(rollouts, problem, **options)
    return [example.datum.loss_fn_inputs["advantages"].tolist() for example in examples]


def test_each_token_has_what_is_earned_from_its_turn_on(problem: Problem) -> None:
    both = [rollout(problem, [0.4, 1.0]), rollout(problem, [0.5, 0.0, 0.5])]
    without = [replace(one, turn_rewards=()) for one in both]
    first, second = advantages(both, problem, turn_rewards="files")
    assert first == pytest.approx([0.0, 0.2, 0.0, 0.25, 0.25])
    assert second == pytest.approx([0.0, -0.2, 0.0, -0.25, -0.25, 0.0, 0.25, 0.25, 0.25])
    first, second = advantages(without, problem)
    assert first == pytest.approx([0.0, 0.2, 0.0, 0.2, 0.2])


def test_each_token_has_the_teachers_judgement_of_itself(problem: Problem) -> None:
    """Judgements count all tokens, and targets begin with the second."""
    [played] = [rollout(problem, [0.0, 0.0])]  # its tokens are 1 2 10 9 11 11, the last two of one turn
    kl, mask = [0.0, 0.0, 0.1, 0.0, 0.2, 0.3], [0.0, 0.0, 1.0, 0.0, 1.0, 1.0]
    top = [[(20 + place, -1.0)] if sampled else [] for place, sampled in enumerate(mask)]

    def inputs(**options: Any) -> dict[str, list[Any]]:
        given = TrainOptions.build({"kl_penalty_coef": 1.0, "reward_coef": 0.0} | options)
        [example] = make_examples([PlayedGroup(problem, [played])], given, RunningMeans())
        example.judgement = Judgement(kl, mask, top)
        example.set_advantages(given, None)
        return {name: values.to_torch().tolist() for name, values in example.datum.loss_fn_inputs.items()}

    assert inputs()["advantages"] == pytest.approx([0.0, -0.1, 0.0, -0.2, -0.3])
    assert inputs(kl_top_k=1)["target_tokens"] == [[2, 0], [10, 22], [9, 0], [11, 24], [11, 25]]


def test_a_long_episode_counts_as_much_as_a_short_one_in_the_size_of_the_rewards(problem: Problem) -> None:
    both = [rollout(problem, [1.0]), rollout(problem, [0.0, 0.0, 0.0])]
    for baseline, a_token in (("none", 1 / 7), ("group", 0.5)):  # one sampled token, and six
        metrics = example_metrics(with_advantages(both, problem, baseline=baseline), judged=False)
        assert metrics["advantage/abs_reward"] == 0.5
        assert metrics["advantage/abs_token"] == pytest.approx(a_token)


def test_the_control_keeps_each_episodes_rewards_and_changes_their_turns(problem: Problem) -> None:
    turns = [0.1, 0.2, 0.3, 0.4, 0.5]
    found = shuffled(turns, "seed")
    assert found != turns
    assert sorted(found) == turns
    assert shuffled(turns, "seed") == found
    assert shuffled(turns, "other seed") != found
    both = [rollout(problem, turns), rollout(problem, [0.0] * 5)]
    true, control = (
        advantages(both, problem, turn_rewards="files", control=control) for control in ("none", "shuffled_turns")
    )
    # The first turn earns all that comes after it, in any order, so this control learns.
    assert [tokens[1] for tokens in control] == pytest.approx([tokens[1] for tokens in true])
    assert true[0] != pytest.approx(control[0])


@pytest.mark.parametrize("baseline", ["group", "batch", "running", "none"])
def test_permuted_rewards_of_one_problem_teach_nothing(problem: Problem, baseline: str) -> None:
    groups = [PlayedGroup(problem, [rollout(problem, [reward])]) for reward in (1.4, 0.4)]
    given = TrainOptions.build({"control": "permuted_rewards", "batch_size": 2, "baseline": baseline})
    examples = make_examples(groups, given, RunningMeans(means={problem.id: (8, 0.2)}))
    assert [example.centred for example in examples] == [(0.0,), (0.0,)]


def test_rollouts_are_kept_with_the_rewards_of_their_turns(problem: Problem) -> None:
    made = rollout(problem, [0.4, 1.0])
    assert Rollout.from_json(made.to_json()).turn_rewards == (0.4, 1.0)
    data = made.to_json()
    del data["turn_rewards"]  # written by an earlier version
    assert Rollout.from_json(data).turn_rewards == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"turn_rewards": "files", "reward_coef": "0"},
        {"turn_rewards": "files", "control": "permuted_rewards", "batch_size": "2"},
        {"turn_rewards": "files", "env": "single_turn"},
        {"turn_rewards": "files", "agent": "opencode"},
        {"turn_rewards": "submissions"},
        {"control": "shuffled_turns"},
        {"turn_rewards": "both"},
        {"turn_grading_time": "-1"},
    ],
)
def test_what_would_have_no_effect_is_refused(wrong: dict[str, str]) -> None:
    name = "control" if "turn_rewards" not in wrong and "control" in wrong else next(iter(wrong))
    with pytest.raises(UsageError, match=name):
        TrainOptions.build(wrong)
