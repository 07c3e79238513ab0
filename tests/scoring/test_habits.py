"""What honest agents do beside their design costs nothing: testbenches, waveforms, debug logs, computed names."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from rtl_agent_gym.problems import Problem
from rtl_agent_gym.scoring import Score, Scorer

from .conftest import GOLDEN, TARGET, make_problem
from .test_compatibility import RIGHT, design, row_id

pytestmark = pytest.mark.docker

LEFT: dict[str, str | bytes] = {
    "verif/conftest.py": "import pytest\n",
    "verif/pytest.ini": "[pytest]\naddopts = --collect-only\n",
    "verif/pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--collect-only'\n",
    "verif/cocotb_tb.py": "import cocotb\n",
    "verif/x.so": b"\x7fELF",
    "verif/tb.sv": "module tb; initial $finish; endmodule\n",
    "docs/.env": "SIM=none\n",
    "rtl/run.sh\r": "iverilog\r\n",
}
"""Files that an agent leaves beside its design."""
TABLES = {"docs/table_0.hex": "de ad be ef\n"}
WAVES = ("waves", "x.fsdb", "x.vcd.gz", "dump.vcd")
HABITS = """
integer habits_log, habits_more;
initial begin
    $dumpfile("{waves}");
    $dumpvars(0);
    habits_log = $fopen("debug.log", "w");
    habits_more = $fopen($sformatf("trace_%0d.txt", 1));
    if (habits_log == 0 || habits_more == 0) $fatal(1, "no log");
    $fdisplay(habits_log, "begun at %0t", $time);
    $fdisplay(habits_more, "begun at %0t", $time);
    $fclose(habits_log);
    $fclose(habits_more);
end
"""
READING = """
integer habits_read, habits_count;
reg [7:0] habits_table [0:3];
initial begin
    $readmemh($sformatf("/code/docs/table_%0d.hex", 0), habits_table);
    if (habits_table[3] !== 8'hef) $fatal(1, "no table");
    $writememh("memory.hex", habits_table);
    habits_read = $fopen($sformatf("/code/docs/%s", "table_0.hex"), "r");
    habits_count = $fgetc(habits_read);
    if (habits_count != "d") $fatal(1, "no table");
    $fclose(habits_read);
end
"""
"""Reads a file of `TABLES`, which counts only in agentic problems."""


def with_habits(files: Mapping[str, str], waves: str, problem: Problem) -> dict[str, str | bytes]:
    """A design with the habits in the last module of each source, and the files that go with them."""
    habits = HABITS.replace("{waves}", waves) + (READING if problem.agentic else "")
    changed: dict[str, str | bytes] = {**LEFT, **TABLES}
    for path, text in files.items():
        ends = list(re.finditer(r"^[ \t]*endmodule\b", text, re.MULTILINE)) if path.endswith((".v", ".sv")) else []
        at = ends[-1].start() if ends else len(text)
        changed[path] = text[:at] + (habits if ends else "") + text[at:]
    return changed


def assert_unharmed(score: Score) -> None:
    assert (score.passed, score.violations) == (True, []), (score.reason, score.violations)
    said = "\n".join(score.left_out)
    assert "$fopen opens 'debug.log' for writing; what a design writes goes nowhere" in said
    for path in LEFT.keys() - {"verif/tb.sv"}:
        assert f"{path!a}" in said or f"{path}: " in said


@pytest.mark.sampled(2)
@pytest.mark.parametrize("waves", WAVES)
async def test_habits_cost_nothing(scorer: Scorer, waves: str) -> None:
    problem = make_problem()
    score = await scorer.score(problem, with_habits({TARGET: GOLDEN}, waves, problem))
    assert_unharmed(score)
    assert score.reward == pytest.approx(1.4)
    assert "all 3 tests passed; left out: docs/.env, " in score.reason


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", RIGHT)
async def test_a_right_design_passes_with_habits(scorer: Scorer, rows: dict[str, Problem], name: str) -> None:
    problem, waves = rows[row_id(name)], WAVES[RIGHT.index(name) % len(WAVES)]
    assert_unharmed(await scorer.score(problem, with_habits(design(name), waves, problem)))
