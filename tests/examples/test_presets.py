"""The scripts in examples/runs: each shows its models, limits and cost, and would start."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from rtl_agent_gym.training.preview import KINDS

ROOT = Path(__file__).resolve().parents[2]
PAIRS = {
    "qwen3_8b": ("Qwen/Qwen3-8B", "qwen3", "Qwen/Qwen3-32B", "qwen3"),
    "qwen3_30b": (
        *("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3_instruct"),
        *("Qwen/Qwen3-235B-A22B-Instruct-2507", "qwen3_instruct"),
    ),
    "cross_tokenizer": (
        *("openai/gpt-oss-20b", "gpt_oss_medium_reasoning"),
        *("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3_instruct"),
    ),
}
"""The pairs of models that a script is named for, with their dialects: student and teacher."""
RECIPES = {"one_problem", "easy_problems", "all_problems", "single_turn", "rl"}
"""Scripts of a way to train, with the default models."""


def script(name: str) -> Path:
    return ROOT / "examples" / "runs" / f"{name}.sh"


def dry_run(name: str, prices: Path) -> dict[str, list[str]]:
    """The lines that a script prints with ``--dry-run``, by their first word."""
    done = subprocess.run(
        [str(script(name)), "--dry-run", f"prices={prices}"],
        env={**os.environ, "TINKER_API_KEY": "tml-x", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(": ")
        found.setdefault(key, []).append(value)
    return found


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prices") / "models.json"
    models = {model for student, _, teacher, _ in PAIRS.values() for model in (student, teacher)}
    path.write_text(json.dumps([{"tinker_id": model} | dict.fromkeys(KINDS, "$1.00") for model in models]))
    return path


def test_every_script_is_known_and_can_be_started() -> None:
    scripts = {path.stem: path for path in script("x").parent.glob("*.sh")}
    assert scripts.keys() == PAIRS.keys() | RECIPES | {"sft"}
    assert all(os.access(path, os.X_OK) for path in scripts.values())


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_shows_what_it_will_do_and_cost(name: str, prices: Path) -> None:
    student, dialect, teacher, teachers_dialect = PAIRS[name]
    shown = dry_run(name, prices)
    assert shown["student"] == [f"{student} on Tinker's service, dialect {dialect}, LoRA of rank 32"]
    assert shown["teacher"] == [f"{teacher}, dialect {teachers_dialect}"]
    assert shown["prompts"] == ["system of the environment, user of the environment"]
    for limit in ("max_turns", "max_tokens", "max_trajectory_tokens"):
        (value,) = re.findall(rf"{limit}=(\d+)", script(name).read_text())
        assert f"{int(value):,} " in shown["limits"][0]
    assert re.fullmatch(r"about \$[\d,.]+ if an episode has 10 turns, at most \$[\d,.]+", shown["cost"][0])
    assert "warning" not in shown


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_recipe_would_start(name: str, prices: Path) -> None:
    shown = dry_run(name, prices)
    assert shown["student"]
    assert ("teacher" in shown) == (name != "rl")
    assert shown["cost"]
