"""What a row needs of the layer above cocotb 2: without that part of it, the row's right design fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.problems.cvdp_notes import all_notes
from rtl_agent_gym.scoring import Scorer

from .test_compatibility import EXAMPLES, FIRST, ROWS, design

pytestmark = pytest.mark.docker

RUNNER = "src/test_runner.py"
"""The file of a harness that builds; the others run in the simulator."""

BUILDING = {
    "cocotb.runner": ("import sys", "sys.modules['cocotb.runner'] = None"),
    "define without value": (
        "import cocotb_tools.runner as _runner",
        "_runner.Icarus._get_define_options = lambda self, defines: "
        "[f'-D{name}={_runner._as_sv_literal(value)}' for name, value in defines.items()]",
    ),
}
SIMULATING = {
    **{
        f"Logic.{name}": (
            "from cocotb.types import Logic as _Logic",
            f"vars(_Logic).get({name!r}) and delattr(_Logic, {name!r})",
        )
        for name in ("to_unsigned", "integer", "binstr")
    },
    "TestFailure": ("import cocotb.result as _result", "vars(_result).pop('TestFailure', None)"),
}
"""By need: the import that brings the part, and what takes it away again."""

NEEDS = [(note.id, need) for note in all_notes().values() for need in note.needs]


@pytest.fixture(scope="module")
def rows(cvdp_data: Path) -> dict[str, Problem]:
    return {problem.id: problem for file in (ROWS, EXAMPLES) for problem in load_problems(cvdp_data / file)}


def beginning_with(problem: Problem, need: str, lines: int) -> Problem:
    """The row, whose files that could use the part begin with so many lines about it."""
    text = "".join(f"{line}\n" for line in (BUILDING | SIMULATING)[need][:lines])
    harness = {
        path: text + old if path.endswith(".py") and (path == RUNNER) == (need in BUILDING) else old
        for path, old in problem.harness.items()
    }
    assert harness != problem.harness
    return problem.model_copy(update={"harness": harness})


def test_all_parts_are_needed_by_a_row() -> None:
    assert {need for _, need in NEEDS} == set(BUILDING | SIMULATING)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("row", "need"), NEEDS)
async def test_without_it_the_right_design_fails(scorer: Scorer, rows: dict[str, Problem], row: str, need: str) -> None:
    files = design(row.removeprefix("cvdp_agentic_"))
    score = await scorer.score(beginning_with(rows[row], need, 2), files)
    assert not score.passed
    assert score.compile == 1.0
    if row in FIRST:  # the import alone changes nothing
        assert (await scorer.score(beginning_with(rows[row], need, 1), files)).passed
