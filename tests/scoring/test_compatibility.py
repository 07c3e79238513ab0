"""Right designs of our own against rows that were written for cocotb 1, run for real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cvdp_statements import files_below

from rtl_agent_gym.problems import Problem
from rtl_agent_gym.problems.notes import all_notes, note_of
from rtl_agent_gym.scoring import RewardWeights, Scorer

pytestmark = pytest.mark.docker

DESIGNS = Path(__file__).parent / "designs"
NEEDS = {
    "cvdp_agentic_multiplexer_0001": "cocotb.runner",
    "cvdp_agentic_signed_comparator_0001": "cocotb.runner",
    "cvdp_agentic_swizzler_0001": "cocotb.runner",
    "cvdp_agentic_cont_adder_0001": "cocotb.runner",
    "cvdp_agentic_queue_0001": "TestFailure in cocotb.result",
    "cvdp_agentic_dual_port_memory_0004": "Logic.to_unsigned",
    "cvdp_agentic_arithmetic_progression_generator_0001": "Logic.to_unsigned",
    "cvdp_agentic_elevator_control_0004": "a define whose value is None",
}


IMPOSSIBLE = Path(__file__).parent / "impossible"
RIGHT = sorted(path.name for path in DESIGNS.iterdir())
"""Rows that have a right design here, without the prefix that most ids share."""


def row_id(name: str) -> str:
    """The id of a row from its short name."""
    return name if name.startswith("cvdp_") else f"cvdp_agentic_{name}"


def design(name: str, where: Path = DESIGNS) -> dict[str, str]:
    """The files of a design."""
    return files_below(where / name)


FIRST = set({need: name for name, need in reversed(NEEDS.items())}.values())
"""One row of each need. The other rows are slow."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FIRST else [pytest.mark.slow]) for name in NEEDS]
)
async def test_what_was_written_for_cocotb_1_runs(scorer: Scorer, rows: dict[str, Problem], name: str) -> None:
    score = await scorer.score(rows[name], design(name.removeprefix("cvdp_agentic_")))
    assert score.passed, (score.reason, score.tests)
    assert score.violations == []
    assert (score.syntax, score.interface, score.compile) == (1.0, 1.0, 1.0)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name in RIGHT if row_id(name) not in NEEDS])
async def test_a_right_design_passes(scorer: Scorer, rows: dict[str, Problem], name: str) -> None:
    problem = rows[row_id(name)]
    files = design(name)
    assert set(files) == set(problem.targets)
    score = await scorer.score(problem, files)
    assert score.passed, (score.reason, score.tests)
    assert score.violations == []
    assert score.compile == 1.0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(path.name for path in IMPOSSIBLE.iterdir()))
async def test_no_design_passes_and_only_the_tests_are_to_blame(
    scorer: Scorer, rows: dict[str, Problem], name: str
) -> None:
    problem = rows[row_id(name)]
    proof = json.loads((IMPOSSIBLE / name / "proof.json").read_text())
    files = {path: text for path, text in design(name, IMPOSSIBLE).items() if path != "proof.json"}
    for submission in (files, dict(problem.context)):
        score = await scorer.score(problem, submission)
        assert not score.passed
        assert score.tests_passed == 0
        assert score.compile == 1.0
    text = problem.harness[proof["file"]]
    assert proof["from"] in text
    mended = {**problem.harness, proof["file"]: text.replace(proof["from"], proof["to"])}
    assert (await scorer.score(problem.model_copy(update={"harness": mended}), files)).passed


@pytest.mark.slow  # test_frontend.py has the same for the bundled problems
async def test_a_right_design_has_the_interface_that_was_asked_for(rows: dict[str, Problem]) -> None:
    async with Scorer(weights=RewardWeights.preset("proxy")) as scorer:
        for name in RIGHT:
            score = await scorer.score(rows[row_id(name)], design(name))
            assert (name, score.interface, score.syntax, score.format) == (name, 1.0, 1.0, 1.0), score.reason
            assert score.violations == []


def test_the_notes_say_which_rows_a_right_design_passes(rows: dict[str, Problem]) -> None:
    notes = {name: note_of(problem) for name, problem in rows.items()}
    passing = {name for name, note in notes.items() if note is not None and note.right == "passes"}
    assert passing == {row_id(name) for name in RIGHT}
    hopeless = {name for name, note in notes.items() if note is not None and note.right == "impossible"}
    assert hopeless == {f"cvdp_agentic_{path.name}" for path in IMPOSSIBLE.iterdir()}
    assert len(passing | hopeless) == len(rows)


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

NOTED = [(note.id, need) for note in all_notes().values() if note.release != "v1.1.0" for need in note.needs]
"""Rows and what their notes say that they need, one need each."""
ONE_ROW = {need: row for row, need in reversed(NOTED)}


def beginning_with(problem: Problem, need: str, lines: int) -> Problem:
    """The row, with the first `lines` lines of a need put in front of each file that could use the part."""
    text = "".join(f"{line}\n" for line in (BUILDING | SIMULATING)[need][:lines])
    harness = {
        path: text + old if path.endswith(".py") and (path == RUNNER) == (need in BUILDING) else old
        for path, old in problem.harness.items()
    }
    assert harness != problem.harness
    return problem.model_copy(update={"harness": harness})


def test_all_parts_are_needed_by_a_row() -> None:
    assert {need for _, need in NOTED} == set(BUILDING | SIMULATING)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("row", "need"), NOTED)
async def test_without_a_part_that_a_row_needs_its_right_design_fails(
    scorer: Scorer, rows: dict[str, Problem], row: str, need: str
) -> None:
    files = design(row.removeprefix("cvdp_agentic_"))
    score = await scorer.score(beginning_with(rows[row], need, 2), files)
    assert not score.passed
    assert score.compile == 1.0
    if ONE_ROW[need] == row:  # the import alone changes nothing
        assert (await scorer.score(beginning_with(rows[row], need, 1), files)).passed
