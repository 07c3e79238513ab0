"""The table of docs/integrations.md: what each framework made of the scripts, as the conformance tests have noted it.

RTL_GYM_RECORD_CONFORMANCE=1 ./scripts/test --nightly -k verdicts_of_a_session    # writes conformance.json
.venv/bin/python -m tests.integrations.table                            # writes the table from it
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.integrations.conformance import EXPECTED, Played
from tests.integrations.ecosystem import REQUIREMENTS, ROOT, locked

VARIABLE = "RTL_GYM_RECORD_CONFORMANCE"
"""The tests write `RECORD` only if this environment variable is set."""
RECORD = Path(__file__).with_name("conformance.json")
DOCS = ROOT / "docs" / "integrations.md"
BEGIN, END = "<!-- written by tests/integrations/table.py -->", "<!-- end of what it writes -->"
CONSTRAINTS = ROOT / "constraints.txt"
PINNED: dict[str, tuple[Path, str]] = {
    "Gymnasium": (CONSTRAINTS, "gymnasium"),
    "tinker-cookbook": (CONSTRAINTS, "tinker-cookbook"),
    "verifiers": (REQUIREMENTS / "verifiers.txt", "verifiers"),
    "TRL": (CONSTRAINTS, "trl"),
    "Harbor": (REQUIREMENTS / "harbor.txt", "harbor"),
    "OpenEnv": (REQUIREMENTS / "openenv.txt", "openenv"),
    "SkyRL-gym": (REQUIREMENTS / "skyrl.txt", "skyrl-gym"),
    "inspect_ai": (REQUIREMENTS / "inspect.txt", "inspect_ai"),
    "verl": (REQUIREMENTS / "verl.txt", "verl"),
    "NeMo Gym": (REQUIREMENTS / "nemo_gym.txt", "nemo-gym"),
}
"""Where the version of each framework is pinned, and under which name."""
IMPOSSIBLE = {("Harbor", "submissions"): "–"}
"""Scripts that a framework cannot play."""
WITH_TOKENS = ("tinker-cookbook", "TRL", "verifiers", "verl")
"""Frameworks that keep tokens."""


def pinned(framework: str) -> str:
    """The version that the tests install."""
    path, package = PINNED[framework]
    (version,) = re.findall(rf"^{re.escape(package)}==(\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return str(version)


@dataclass
class Notes:
    """What a test found of some scripts in a framework."""

    made: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, script: str, played: Played, *, observations: bool, tokens: bool = False) -> None:
        """Note a script that was compared with a `ToolSession`, and whether observations and tokens were, too."""
        self.made[script] = {
            "reward": played.reward,
            "passed": played.passed,
            "observations": observations,
            "tokens": tokens,
        }


COMPARED = ("observations", "tokens")
"""What is compared beside rewards and verdicts, where a framework has it."""


@contextmanager
def recorded(framework: str, scripts: Iterable[str]) -> Iterator[Notes]:
    """What is noted inside replaces the record of these scripts. If an assertion fails, they are in it no longer."""
    _write(framework, dict.fromkeys(scripts))
    notes = Notes()
    yield notes
    if not os.environ.get(VARIABLE):
        known = read().get(framework, {}).get("scripts", {})
        lost = [
            script
            for script, noted in notes.made.items()
            if any(known.get(script, {}).get(what) and not noted[what] for what in COMPARED)
        ]
        assert not lost, "compared when it was recorded, and no longer"
    _write(framework, notes.made)


def _write(framework: str, made: dict[str, Any]) -> None:
    if not os.environ.get(VARIABLE):
        return
    with locked("conformance"):  # tests of several workers write it
        record = read()
        entry = record.setdefault(framework, {})
        if entry.get("version") != pinned(framework):
            entry.clear()
        scripts = {**entry.get("scripts", {}), **made}
        known = {name: scripts[name] for name in EXPECTED if scripts.get(name)}
        record[framework] = {"version": pinned(framework), "scripts": known}
        ordered = {name: record[name] for name in PINNED if name in record}
        RECORD.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


def read() -> dict[str, dict[str, Any]]:
    """By framework: the version and, by script, what was noted."""
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}


def table(record: dict[str, dict[str, Any]]) -> str:
    """The record in Markdown: the reward of each script, and how many of them had what else compared."""
    lines = [["framework", "version", *EXPECTED, "observations", "tokens"]]
    lines.append(["---"] * len(lines[0]))
    for framework in PINNED:
        entry = record.get(framework, {"version": pinned(framework), "scripts": {}})
        scripts = entry["scripts"]
        cells = [_cell(framework, name, scripts.get(name)) for name in EXPECTED]
        compared = [f"{sum(one[what] for one in scripts.values())} of {len(scripts)}" for what in COMPARED]
        if framework not in WITH_TOKENS:
            compared[1] = "none travel"
        elif not any(one["tokens"] for one in scripts.values()):
            compared[1] = "not run"
        lines.append([framework, entry["version"], *cells, *compared])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(framework: str, script: str, noted: dict[str, Any] | None) -> str:
    if noted is None:
        return IMPOSSIBLE.get((framework, script), "not run")
    if noted["reward"] is None:
        return "no reward"
    return f"{noted['reward']:g}{', passed' if noted['passed'] else ''}"


def with_table(text: str, made: str, begin: str = BEGIN, end: str = END) -> str:
    """A text with the table between the marks."""
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    assert after, f"there is no place for the table between {begin} and {end}"
    return f"{before}{begin}\n\n{made}\n\n{end}{after}"


if __name__ == "__main__":
    DOCS.write_text(with_table(DOCS.read_text(encoding="utf-8"), table(read())), encoding="utf-8")
