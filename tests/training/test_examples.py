"""The recipes of examples/runs are sound: their options make a plan."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from rtl_agent_gym.training.options import SftOptions, split_arguments
from rtl_agent_gym.training.plan import plan_options, plan_run

RUNS = sorted((Path(__file__).parents[2] / "examples" / "runs").glob("*.sh"))


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_recipe_makes_a_plan(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "k")
    text = path.read_text().replace("\\\n", " ")
    found = re.search(
        r"^\.venv/bin/(?:python scripts/|rtl-agent-gym )train[_ ](\w+)(?:\.py)? (.*) \"\$@\"$", text, re.M
    )
    assert found is not None
    given = split_arguments(shlex.split(found[2]))
    supervised = found[1] == "sft"  # its complete plan needs the episodes
    plan = plan_options(SftOptions.build(given), given, ()) if supervised else plan_run(given, rl=found[1] == "rl")
    assert plan.engine == "tinker"
    assert plan.options.log_path == f"runs/{path.stem}"


def test_there_is_one_for_each_recipe() -> None:
    names = {path.stem for path in RUNS}
    assert names == {"all_problems", "cross_tokenizer", "easy_problems", "one_problem", "rl", "sft", "single_turn"}
