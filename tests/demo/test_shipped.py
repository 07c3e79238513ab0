"""The shipped models are those of their recipe, know the families' texts, and behave as described."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from rtl_agent_gym.demo.family_check import check
from rtl_agent_gym.demo.family_episode import FEEDBACK_PROMPT, RENDERER, SYSTEM_PROMPT
from rtl_agent_gym.demo.family_making import digests, families_digest, make
from rtl_agent_gym.demo.family_mix import Mix
from rtl_agent_gym.demo.family_recipe import RECIPE, FamilyRecipe, Part, Phase, Shape
from rtl_agent_gym.demo.shipped import FOLDER, SMALL, find_models, shipped
from rtl_agent_gym.episodes.episode import EpisodeConfig
from rtl_agent_gym.evaluation import EvaluationConfig, evaluate
from rtl_agent_gym.policies import ModelOptions
from rtl_agent_gym.problems.families import FAMILIES
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.renderers.vocabularies import QWEN3_ADDED, QWEN3_SPECIAL
from rtl_agent_gym.training.plan import plan_run

TINIEST = FamilyRecipe(
    shape=Shape(hidden=32, layers=1, heads=2, inner=64),
    tokenizer_episodes=200,
    teacher=(
        Part(0, Mix(layouts=("table",)), Phase(2, 0.02, 0.02, batch=2)),
        Part(1, Mix(), Phase(2, 0.01, 0.01, batch=2)),
    ),
    student=(Part(2, Mix(follow=0.6, mend=0.5), Phase(2, 0.003, 0.001, batch=2), keep_optimizer=False),),
)


def test_the_files_are_those_of_the_recipe_and_small() -> None:
    record = json.loads((FOLDER / "recipe.json").read_text())
    assert {name: record[name] for name in asdict(RECIPE)} == json.loads(json.dumps(asdict(RECIPE)))
    assert record["files"] == digests(FOLDER)
    assert record["families"] == families_digest(RECIPE.trained_families)
    assert sum(path.stat().st_size for path in FOLDER.rglob("*.safetensors")) <= 12_000_000


@pytest.mark.parametrize("name", ["student", "teacher"])
def test_the_tokenizer_has_the_dialects_control_tokens(name: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(shipped(name))
    for control in (*QWEN3_SPECIAL, *QWEN3_ADDED):
        assert len(tokenizer.encode(control, add_special_tokens=False)) == 1
    assert get_renderer(RENDERER, tokenizer).initial_ids(SYSTEM_PROMPT, "Write it.")


def test_the_same_recipe_makes_the_same_models(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make(TINIEST, tmp_path / name, lambda line: None)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert {*digests(tmp_path / "a")} == {*digests(FOLDER)}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_shorter_recipe_learns_to_copy_from_the_specification(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    mix = Mix(reference=0, feedback=0, layouts=("table",))
    part = Part(0, mix, Phase(400, 0.02, 0.0005, batch=16))
    make(FamilyRecipe(teacher=(part,), student=()), tmp_path, lambda line: None)
    model, tokenizer = (one.from_pretrained(tmp_path / "teacher") for one in (AutoModelForCausalLM, AutoTokenizer))
    renderer = get_renderer(RENDERER, tokenizer)
    tables = check(model.float(), tokenizer, renderer, FAMILIES["registers"], "train", 96, 0, layouts=("table",))
    assert tables.right >= 24


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("family", ["registers", "arbiters"])
def test_the_student_follows_a_reference_in_its_prompt_and_not_the_specification(family: str) -> None:
    """So it can be its own teacher, and a reference of another problem makes it a useless one."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = (one.from_pretrained(shipped("student")) for one in (AutoModelForCausalLM, AutoTokenizer))
    renderer = get_renderer(RENDERER, tokenizer)
    own, another = (
        check(model, tokenizer, renderer, FAMILIES[family], "combinations", 128, 5, reference=reference).right
        for reference in ("own", "another")
    )
    assert own >= 0.95 * 128
    assert another <= 0.05 * 128


@pytest.mark.parametrize("feedback", [0, 2])
def test_the_models_get_the_environments_user_prompt(feedback: int) -> None:
    given = {
        "harness_feedback": feedback,
        "cvdp_jsonl_path": "family:registers?count=2",
        "held_out": "family:registers?count=1&seed=1",
    }
    plan = find_models(plan_run(given, recipes=[SMALL]))
    assert plan.student == str(shipped("student"))
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
