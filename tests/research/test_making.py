"""The shipped models are those of their recipe, and a recipe makes the same models again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from research.making import check, digests, families_digest, make
from research.mixture import Mix
from research.recipe import RECIPE, FamilyRecipe, Part, Phase, Shape
from rtl_agent_gym.demo.shipped import FOLDER, RENDERER, shipped
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.sources.families import FAMILIES
from rtl_agent_gym.sources.families.family import Layout

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
    assert sum(path.stat().st_size for path in FOLDER.rglob("*.safetensors")) <= 13_000_000


@pytest.mark.slow
def test_the_same_recipe_makes_the_same_models(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make(TINIEST, tmp_path / name, lambda line: None)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert {*digests(tmp_path / "a")} == {*digests(FOLDER)}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_shorter_recipe_learns_to_copy_from_the_specification(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    layouts: tuple[Layout, ...] = ("table",)
    mix = Mix(reference=0, feedback=0, layouts=layouts)
    part = Part(0, mix, Phase(400, 0.02, 0.0005, batch=16))
    make(FamilyRecipe(teacher=(part,), student=()), tmp_path, lambda line: None)
    model, tokenizer = (one.from_pretrained(tmp_path / "teacher") for one in (AutoModelForCausalLM, AutoTokenizer))
    renderer = get_renderer(RENDERER, tokenizer)
    tables = check(model.float(), tokenizer, renderer, FAMILIES["registers"], "train", 96, 0, layouts=layouts)
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
