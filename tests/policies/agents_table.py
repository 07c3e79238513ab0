"""The table of agents in docs/integrations.md: what came of each agent's episodes, as their tests have noted it.

RTL_GYM_RECORD_CONFORMANCE=1 ./scripts/test --agents    # writes agents.json
.venv/bin/python -m tests.policies.agents_table         # writes the table from it
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from rtl_agent_gym import sandboxes
from rtl_agent_gym.policies.harness import AGENTS, AgentPlayer
from tests.integrations.ecosystem import locked
from tests.integrations.table import CONSTRAINTS, DOCS, VARIABLE, with_table

from .test_streams import assert_exact

RECORD = Path(__file__).with_name("agents.json")
MARKS = "<!-- written by tests/policies/agents_table.py -->", "<!-- end of the agents -->"
SCRIPTS = ("solved with Docker", "solved with namespaces", "unreadable call", "compacted")
IMPOSSIBLE = {("mini-swe-agent", "compacted"): "–"}
"""Scripts that an agent cannot play: mini-swe-agent never compacts."""
PACKAGES = {
    "opencode": "opencode-linux-x64",
    "claude-code": "@anthropic-ai/claude-code-linux-x64",
    "codex": "@openai/codex-linux-x64",
    "qwen-code": "@qwen-code/qwen-code",
    "pi": "@earendil-works/pi-coding-agent",
}
"""The package of npm that has an agent's program."""


def version(agent: str) -> str:
    """The version that the tests play."""
    if agent not in PACKAGES:
        [found] = re.findall(rf"^{agent}==(\S+)$", CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE)
        return str(found)
    text = (Path(sandboxes.__file__).parent / "program_lists" / agent / "package.json").read_text(encoding="utf-8")
    lists: dict[str, dict[str, str]] = {name: one for name, one in json.loads(text).items() if isinstance(one, dict)}
    [wanted] = [one[PACKAGES[agent]] for one in lists.values() if PACKAGES[agent] in one]
    return re.findall(r"\d+\.\d+\.\d+", wanted)[0]


def note(agent: str, script: str, result: Any, player: AgentPlayer) -> None:
    """Check that an episode's tokens are exact, and note what came of it."""
    assert script in SCRIPTS
    sampler: Any = player.streams.policy.sampler
    assert_exact(player.streams, sampler)
    if not os.environ.get(VARIABLE):
        return
    made = {"reward": result.score.reward, "breaks": dict(sorted(player.streams.breaks.items()))}
    with locked("agents"):
        record = read()
        entry = record.get(agent, {})
        scripts = entry.get("scripts", {}) if entry.get("version") == version(agent) else {}
        scripts[script] = made | {"turns": len(sampler.sampled)}
        known = {name: scripts[name] for name in SCRIPTS if name in scripts}
        record[agent] = {"version": version(agent), "scripts": known}
        ordered = {name: record[name] for name in AGENTS if name in record}
        RECORD.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


def read() -> dict[str, dict[str, Any]]:
    """By agent: the version and, by script, what was noted."""
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}


def table(record: dict[str, dict[str, Any]]) -> str:
    """The record in Markdown: the reward of each script and its breaks by reason, and how many turns were exact."""
    lines = [["agent", "version", *SCRIPTS, "exact turns"], ["---"] * (len(SCRIPTS) + 3)]
    for agent in AGENTS:
        scripts = record.get(agent, {}).get("scripts", {})
        cells = [_cell(agent, name, scripts.get(name)) for name in SCRIPTS]
        turns = sum(one["turns"] for one in scripts.values())
        lines.append([agent, version(agent), *cells, f"{turns} of {turns}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(agent: str, script: str, noted: dict[str, Any] | None) -> str:
    if noted is None:
        return IMPOSSIBLE.get((agent, script), "not run")
    reasons = ", ".join(f"{reason} {count}" for reason, count in noted["breaks"].items())
    return f"{noted['reward']:g}" + (f" ({reasons})" if reasons else "")


if __name__ == "__main__":
    DOCS.write_text(with_table(DOCS.read_text(encoding="utf-8"), table(read()), *MARKS), encoding="utf-8")
