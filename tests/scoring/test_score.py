from __future__ import annotations

import pytest
from pydantic import ValidationError

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.scoring import PRESETS, RewardWeights
from rtl_agent_gym.scoring.grading import Grading
from rtl_agent_gym.scoring.score import Score, TestOutcome
from rtl_agent_gym.scoring.submission import sift

from .conftest import GOLDEN, TARGET, make_problem


def reward(weights: RewardWeights, *, passed: bool = True, tests: float = 1.0) -> float:
    """The reward of a design that compiles."""
    return weights.reward(passed=passed, format=1.0, syntax=1.0, interface=1.0, compile=1.0, tests=tests)


@pytest.mark.parametrize(
    ("name", "most"), [("default", 1.4), ("staged", 1.5), ("dense", 1.4), ("compile", 1.9), ("proxy", 0.6)]
)
def test_the_presets_and_their_highest_reward(name: str, most: float) -> None:
    weights = RewardWeights.preset(name)
    assert weights.most == pytest.approx(most)
    assert reward(weights) == pytest.approx(most)


def test_tests_count_whole_unless_parts_are_asked_for() -> None:
    assert reward(RewardWeights(), passed=False, tests=0.5) == pytest.approx(0.4)
    assert reward(RewardWeights.preset("dense"), passed=False, tests=0.5) == pytest.approx(0.9)


def test_without_a_simulation_nothing_is_earned_for_what_needs_one() -> None:
    weights = RewardWeights(simulate=False, compile=0.5, coverage=0.5)
    assert weights.most == reward(weights) == pytest.approx(0.4)
    shares = {"format": 1.0, "syntax": 1.0, "compile": 1.0, "coverage": 0.5}
    assert weights.reward(passed=True, **shares) == pytest.approx(0.4)
    simulated = weights.model_copy(update={"simulate": True})
    assert simulated.reward(passed=True, **shares) == pytest.approx(0.4 + 1.0 + 0.5 + 0.25)


def test_weights_are_frozen_and_checked() -> None:
    with pytest.raises(ValidationError):
        RewardWeights().tests = 2.0  # type: ignore[misc]
    with pytest.raises(ValidationError):
        RewardWeights(tests=-1)
    with pytest.raises(ValidationError):
        RewardWeights(test=1)  # type: ignore[call-arg]


def test_an_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="default, staged, dense, compile, proxy"):
        RewardWeights.preset("dens")
    assert set(PRESETS) == {"default", "staged", "dense", "compile", "proxy"}


def test_scores_are_the_same_if_everything_measured_is() -> None:
    score = Score(passed=True, reward=1.0, tests=[TestOutcome(name="a", outcome="passed")])
    same: dict[str, object] = {"seconds": 2.0, "cached": True, "retries": 1, "left_out": ["x"], "credit": 0.5}
    different: dict[str, object] = {"passed": False, "reward": 0.5, "tests": [], "violations": ["x"], "reason": "x"}
    for name, value in (same | different).items():
        assert score.same_as(score.model_copy(update={name: value})) == (name in same), name


def test_a_reason_has_no_characters_that_do_not_print() -> None:
    """A compiler repeats a design's names, which may hold any character."""
    grading = Grading(reason="does not compile: rtl/a.sv:1: error: Unknown module type: \x1b[2J\nu")
    submission = sift(make_problem(), {TARGET: GOLDEN})
    reason = grading.score(RewardWeights(), submission, seconds=0.0, retries=0).reason
    assert reason.endswith(r"type: \x1b[2J\nu")


def test_a_reason_has_a_bound() -> None:
    submission = sift(make_problem(), {TARGET: GOLDEN})
    for reason, length in (("x" * 2000, 2000), ("x" * 5_000_000, 2002), ("\U000e0001" * 2000, 2002)):
        score = Grading(reason=reason).score(RewardWeights(), submission, seconds=0.0, retries=0)
        assert len(score.reason) == length
