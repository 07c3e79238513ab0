"""The recipes of examples/runs are sound: each would start, and shows its models, limits and cost before."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from tinker_cookbook.model_info import get_model_attributes

from rtl_agent_gym.engines.catalogue import DEFAULT_STUDENT, DEFAULT_TEACHER
from rtl_agent_gym.training.launch import dry_run
from rtl_agent_gym.training.options import SftOptions, split_arguments
from rtl_agent_gym.training.plan import Plan, plan_options, plan_run
from rtl_agent_gym.training.preview import KINDS, describe_run

ROOT = Path(__file__).parents[2]
RUNS = {path.stem: path for path in sorted((ROOT / "examples" / "runs").glob("*.sh"))}
PAIRS = {
    "qwen3_5": ("Qwen/Qwen3.5-9B", "qwen3_5", "Qwen/Qwen3.6-27B, dialect qwen3_5"),
    "qwen3_8b": ("Qwen/Qwen3-8B", "qwen3", "the student's own weights (context reference)"),
    "cross_tokenizer": ("openai/gpt-oss-20b", "gpt_oss_medium_reasoning", "Qwen/Qwen3.6-35B-A3B, dialect qwen3_5"),
}
"""Recipes for a pair of models: the student, its dialect, and the teacher as it is shown."""
RETIRED = re.compile(r"Qwen3-(4B|30B|32B|235B|VL)|Qwen3\.5-(27B|35B)")
"""Models that Tinker no longer serves, though tinker-cookbook knows them."""


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-k")


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A list of prices that has the pairs' models."""
    path = tmp_path_factory.mktemp("prices") / "models.json"
    models = {model for student, _, teacher in PAIRS.values() for model in (student, teacher.partition(",")[0])}
    path.write_text(json.dumps([{"tinker_id": model} | dict.fromkeys(KINDS, "$1.00") for model in models]))
    return path


def made(name: str, prices: Path) -> Plan:
    text = RUNS[name].read_text().replace("\\\n", " ")
    found = re.search(
        r"^\.venv/bin/(?:python scripts/|rtl-agent-gym )train[_ ](\w+)(?:\.py)? (.*) \"\$@\"$", text, re.M
    )
    assert found is not None
    given = split_arguments([*shlex.split(found[2]), f"prices={prices}"])
    if found[1] == "sft":  # its complete plan needs the episodes
        return plan_options(SftOptions.build(given), given, ())
    return plan_run(given, rl=found[1] == "rl")


def test_there_is_one_for_each_recipe() -> None:
    recipes = {"all_problems", "easy_problems", "one_problem", "rl", "sft", "single_turn"}
    assert RUNS.keys() == recipes | PAIRS.keys()


def test_the_service_has_the_models_of_the_recipes() -> None:
    named = {name for path in RUNS.values() for name in re.findall(r"(?:_model\?=|tinker:)(\S+)", path.read_text())}
    for model in (named - {"self"}) | {DEFAULT_STUDENT, DEFAULT_TEACHER}:
        assert get_model_attributes(model).is_chat  # raises an error for a model that it does not know
        assert not RETIRED.search(model)
    for path in (*RUNS.values(), ROOT / "docs" / "howto" / "tinker.md"):
        assert not RETIRED.search(path.read_text()), path


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for name in RUNS if name not in PAIRS])
def test_a_recipe_makes_a_plan(name: str, prices: Path) -> None:
    plan = made(name, prices)
    assert plan.engine == "tinker"
    assert plan.options.log_path == f"runs/{name}"
    shown = describe_run(plan) if name == "sft" else dry_run(plan).splitlines()
    parts = dict(line.split(": ", 1) for line in shown)
    teachers = {plan.teacher} - {None} if plan.options.distils else set()
    tokens = {f"tokens of {model}" for model in (plan.student, *teachers)}
    assert parts.keys() >= {"student", "data", "prompts", "limits", "steps", "cost", *tokens}, name
    assert parts.keys() - tokens - {"student", "data", "prompts", "limits", "steps", "cost"} <= {"teacher", "warning"}
    assert ("teacher" in parts) is bool(teachers)
    assert f", dialect {plan.renderer}, " in parts["student"]
    assert all(", dialect " in line for part, line in parts.items() if part == "teacher")
    for limit in ("max_tokens", "max_trajectory_tokens"):
        assert f"{getattr(plan.options, limit):,} " in parts["limits"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_shows_what_it_will_do_and_cost(name: str, prices: Path) -> None:
    student, dialect, teacher = PAIRS[name]
    plan = made(name, prices)
    assert (plan.engine, plan.options.log_path) == ("tinker", f"runs/{name}")
    shown = dict(line.split(": ", 1) for line in dry_run(plan).splitlines())
    assert shown["student"] == f"{student} on Tinker's service, dialect {dialect}, LoRA of rank 32"
    assert shown["teacher"] == teacher
    assert shown["prompts"] == "system of the environment, user of the environment"
    for limit in ("max_turns", "max_tokens", "max_trajectory_tokens"):
        assert f"{limit}?={getattr(plan.options, limit)} " in RUNS[name].read_text()
        assert f"{getattr(plan.options, limit):,} " in shown["limits"]
    assert re.fullmatch(r"about \$[\d,.]+ if an episode has 10 turns, at most \$[\d,.]+", shown["cost"])
    assert "warning" not in shown


@pytest.mark.slow  # a process; that a dry run shows a plan is tested above, and in this process
def test_a_script_takes_dry_run(prices: Path) -> None:
    done = subprocess.run(
        [str(RUNS["qwen3_8b"]), "--dry-run", f"prices={prices}", "num_steps=3"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("student: Qwen/Qwen3-8B on ")
    assert "\nsteps: 3 " in done.stdout
    assert "\ncost: about $" in done.stdout
