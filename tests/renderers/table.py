"""The table of families in docs/renderers.md, from what the tests compare and what the slow ones have noted.

RTL_GYM_RECORD_FAMILIES=1 pytest -m "" -n 0 tests/renderers/test_families.py -k thousand        # writes families.json
RTL_GYM_RECORD_FAMILIES=1 pytest -m "" -n 0 tests/training/test_families.py -k ten_episodes     # writes families.json
python -m tests.renderers.table                                                                 # writes the table
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rtl_agent_gym.renderers.families import FAMILIES, VARIANTS
from tests.integrations.ecosystem import ROOT, locked
from tests.integrations.table import with_table

from .families import COOKBOOK, DIFFERS, LIBRARY, OWN, REAL, TEMPLATE, TEMPLATES

VARIABLE = "RTL_GYM_RECORD_FAMILIES"
"""The tests write `RECORD` only if this environment variable is set."""
RECORD = Path(__file__).with_name("families.json")
DOCS = ROOT / "docs" / "renderers.md"
MARKS = "<!-- written by tests/renderers/table.py -->", "<!-- end of what it writes -->"
EPISODES, STUDENT = "episodes", "student"
"""The slow tests: 1,000 random episodes, compared with each oracle, and ten of a small student."""

MODELS = {
    "qwen3": "Qwen3",
    "qwen3_disable_thinking": "Qwen3",
    "qwen3_instruct": "Qwen3 2507 instruct",
    "gpt_oss": "gpt-oss",
    "qwen3_5": "Qwen3.5",
    "qwen3_6": "Qwen3.6",
    "qwen3_8": "Qwen3.8",
    "qwen3_coder": "Qwen3-Coder",
    "nemotron3": "Nemotron 3 Nano, Super",
    "nemotron3_ultra": "Nemotron 3 Ultra",
    "nemotron3_5": "Nemotron 3.5",
    "glm5_3": "GLM-5.3",
    "kimi_k2": "Kimi K2",
    "kimi_k25": "Kimi K2.5, K2.6",
    "deepseekv3": "DeepSeek V3.1",
    "deepseekv4_1": "DeepSeek V4.1",
    "deepseekv4": "DeepSeek V4 Flash (0731)",
    "inkling": "Inkling",
    "llama3": "Llama 3.2",
    "gemma4": "Gemma 4",
}
ORACLES = {TEMPLATE: "template", LIBRARY: "library", COOKBOOK: "cookbook"}
"""Who else renders the episodes, in the order of the columns, with a short name."""
EQUAL = "equal of 1,000 episodes"
NO_COOKBOOK = ("qwen3_6", "qwen3_coder", "nemotron3_5", "deepseekv4", "gemma4")
"""Families of which tinker-cookbook has no renderer."""


def record(test: str, family: str, found: dict[str, Any]) -> None:
    """Note what a slow test found of a family."""
    if not os.environ.get(VARIABLE):
        return
    with locked("families"):
        made = read()
        made.setdefault(test, {})[family] = found
        RECORD.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def read() -> dict[str, dict[str, Any]]:
    """By test and family, what was noted."""
    noted: dict[str, dict[str, Any]] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
    return noted


def table(noted: dict[str, dict[str, Any]]) -> str:
    """A row for each family."""
    head = ["family", "models", "names", "vocabulary tested", *ORACLES, EQUAL, "student"]
    rows = [head, ["---"] * len(head)]
    for family, models in MODELS.items():
        names = [name for name, variant in VARIANTS.items() if variant.family == family] or [family]
        real = "Harmony" if family == "gpt_oss" else "Qwen3's own" if family in OWN else f"{REAL.get(family)}'s own"
        episodes, student = noted.get(EPISODES, {}).get(family, {}), noted.get(STUDENT, {}).get(family)
        rows.append(
            [
                f"`{family}`",
                models,
                ", ".join(f"`{name}`" for name in names),
                real if family in (*OWN, *REAL) else "stand-in",
                *(_cell(oracle, family, names) for oracle in ORACLES),
                ", ".join(f"{ORACLES[who]} {episodes[who]:,}" for who in ORACLES if who in episodes) or "not run",
                f"{student['passed']} of {student['episodes']}" if student else "not run",
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(oracle: str, family: str, names: list[str]) -> str:
    """Whether an oracle renders a family's episodes as they are appended."""
    templates = dict.fromkeys(TEMPLATES[name][0] for name in names if name in TEMPLATES)
    if oracle == TEMPLATE and family == "gpt_oss":
        return "equal (openai-harmony)"
    if oracle == TEMPLATE and not templates:
        return "not at hand"
    own = family not in FAMILIES
    if (oracle == LIBRARY and not own and FAMILIES[family].config == "cookbook") or (
        oracle == COOKBOOK and family in NO_COOKBOOK
    ):
        return "none"
    differing = [name for name in names if name in DIFFERS[oracle]]
    reasons = list(dict.fromkeys(DIFFERS[oracle][name] for name in differing))
    if len(differing) == len(names):
        return "differs: " + "; ".join(reasons)
    equal = "equal" if oracle != TEMPLATE else f"equal ({', '.join(f'`{name}`' for name in templates)})"
    return equal + "".join(f", but for `{name}`: {DIFFERS[oracle][name]}" for name in differing)


if __name__ == "__main__":
    made = with_table(DOCS.read_text(encoding="utf-8"), table(read()), *MARKS)
    DOCS.write_text(made, encoding="utf-8")
