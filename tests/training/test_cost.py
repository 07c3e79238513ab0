"""The estimate of a run's tokens and price on a service."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rtl_agent_gym.training.cost import describe_cost, usage
from rtl_agent_gym.training.options import SftOptions
from rtl_agent_gym.training.plan import Plan, plan_run
from rtl_agent_gym.training.sft.data import EncodedEpisode, SupervisedData

STUDENT, TEACHER = "Qwen/Qwen3-8B", "Qwen/Qwen3-32B"


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-k")


def plan(**options: object) -> Plan:
    given = {"cvdp_jsonl_path": "family:registers?count=4", "num_steps": 5, "batch_size": 2, "group_size": 3}
    return plan_run({**given, "max_turns": 6, "max_tokens": 100, "max_trajectory_tokens": 2000, **options})


def test_at_most_is_what_the_limits_allow() -> None:
    found = usage(plan(), at_most=True)  # 30 episodes
    assert found == {
        (STUDENT, "prefill"): 30 * 6 * 2000,
        (STUDENT, "sample"): 30 * 6 * 100,
        (STUDENT, "train"): 30 * 2000,
        (TEACHER, "prefill"): 30 * 2000,
    }
    typical = usage(plan(), at_most=False)
    assert all(0 < typical[key] <= found[key] for key in found)


def test_evaluations_count_for_the_student_only() -> None:
    tested = usage(
        plan(
            held_out="family:timers?count=7",
            extra_held_out='{"other": "family:arbiters?count=2"}',
            eval_episodes=8,
            eval_every=2,
        ),
        at_most=True,
    )
    # Before, and after steps 2, 4 and 5: 7 held-out and twice 4 training problems; the others only twice.
    episodes = 30 + 4 * (7 + 8) + 2 * 4 * 2
    assert tested[STUDENT, "sample"] == episodes * 600
    assert tested[STUDENT, "train"] == 30 * 2000


def test_without_a_teacher_only_the_student_is_used() -> None:
    assert {model for model, _ in usage(plan(teacher_model="none", baseline="running"), at_most=True)} == {STUDENT}


def test_a_student_that_is_its_own_teacher_has_its_price() -> None:
    own = plan(teacher_model="self", teacher_context="reference", prices=json.dumps({STUDENT: [1, 1, 1]}))
    assert usage(own, at_most=True)[STUDENT, "prefill"] == 30 * 6 * 2000 + 30 * 2000
    assert "by your prices" in describe_cost(own)


def test_supervised_training_plays_no_episodes() -> None:
    episodes = [EncodedEpisode("p", [0] * size, [1] * size, True) for size in (300, 500)]
    options = SftOptions(num_steps=3, batch_size=2, held_out="family:timers?count=7")
    made = replace(plan(), options=options, problems=[], supervised=SupervisedData(episodes))
    assert usage(made, at_most=True) == {
        (STUDENT, "train"): 3 * 2 * 400,
        (STUDENT, "prefill"): 0,
        (STUDENT, "sample"): 0,
    }
    assert "tokens, if" in describe_cost(made)


def test_the_price_is_the_sum_over_models_and_kinds() -> None:
    assert f"give prices= for {TEACHER}, {STUDENT}" in describe_cost(plan())
    told = describe_cost(plan(prices=json.dumps({STUDENT: [1, 10, 100], TEACHER: [1000, 0, 0]})))
    most = 30 * (6 * 2000 * 1 + 600 * 10 + 2000 * 100 + 2000 * 1000) / 1e6
    assert f"(at most ${most:,.2f})" in told
