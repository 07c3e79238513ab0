"""The shipped models are those of their recipe, know the families' texts, and behave as described."""

from __future__ import annotations

import asyncio

import pytest

from rtl_agent_gym.demo.shipped import FEEDBACK_PROMPT, RENDERER, SMALL, SPELLED, SYSTEM_PROMPT, shipped
from rtl_agent_gym.episodes.episode import EpisodeConfig
from rtl_agent_gym.evaluation import EvaluationConfig, evaluate
from rtl_agent_gym.policies import ModelOptions
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.renderers.vocabularies import QWEN3_ADDED, QWEN3_SPECIAL
from rtl_agent_gym.training.plan import ModelRecipe, plan_run


@pytest.mark.parametrize("name", ["student", "teacher", "spelled/student", "spelled/teacher"])
def test_the_tokenizer_has_the_dialects_control_tokens(name: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(shipped(name))
    for control in (*QWEN3_SPECIAL, *QWEN3_ADDED):
        assert len(tokenizer.encode(control, add_special_tokens=False)) == 1
    assert get_renderer(RENDERER, tokenizer).initial_ids(SYSTEM_PROMPT, "Write it.")


@pytest.mark.parametrize("feedback", [0, 2])
@pytest.mark.parametrize(("recipe", "folder"), [(SMALL, ""), (SPELLED, "spelled/")])
def test_the_models_get_the_environments_user_prompt(recipe: ModelRecipe, folder: str, feedback: int) -> None:
    given = {
        "student_model": recipe.name,
        "harness_feedback": feedback,
        "cvdp_jsonl_path": "family:registers?count=2",
        "held_out": "family:registers?count=1&seed=1",
    }
    plan = recipe.make(plan_run(given, recipes=[SMALL, SPELLED]))
    assert (plan.student, plan.teacher) == (str(shipped(f"{folder}student")), str(shipped(f"{folder}teacher")))
    assert plan.user_prompt is None
    assert plan.system_prompt == (FEEDBACK_PROMPT if feedback else SYSTEM_PROMPT)


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("problems", ["family:registers", "family:arbiters"])
@pytest.mark.parametrize(
    ("name", "feedback", "least", "most"),
    [("teacher", 0, 0.97, 1.0), ("teacher", 2, 0.95, 1.0), ("student", 0, 0.0, 0.15)],
    ids=["teacher", "teacher that submits", "student"],  # a student that may submit mends some of its habits
)
async def test_the_teacher_passes_the_real_harness_and_the_student_seldom_does(
    name: str, feedback: int, least: float, most: float, problems: str
) -> None:
    config = EvaluationConfig(
        problems=f"{problems}?count=96&seed=5&split=combinations",
        policy=f"local:{shipped(name)}",
        renderer=RENDERER,
        keep=False,
        concurrency=4,
        model=ModelOptions(max_tokens=220, max_context=1000),
        episode=EpisodeConfig(
            system_prompt=FEEDBACK_PROMPT if feedback else SYSTEM_PROMPT, max_turns=8, harness_feedback=feedback
        ),
    )
    results = (await asyncio.wait_for(evaluate(config), 1100)).results
    assert len(results) == 96
    assert least <= sum(bool(one.score and one.score.passed) for one in results) / 96 <= most
