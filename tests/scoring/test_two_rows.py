"""Who is to blame for two rows that strong models fail, the tests or the models: designs with and without a line."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import pytest

from rtl_agent_gym.problems import Problem
from rtl_agent_gym.sandboxes import SandboxProvider
from rtl_agent_gym.scoring.compose import HarnessImages, read_services
from rtl_agent_gym.scoring.harness import run_harness
from rtl_agent_gym.scoring.submission import sift

from .test_compatibility import design, row_id

pytestmark = pytest.mark.docker

BROADCASTER, MONTE_CARLO = "axis_broadcaster_0001", "monte_carlo_0006"
TOP = {BROADCASTER: "rtl/axis_broadcast.sv", MONTE_CARLO: "rtl/monte_carlo_dsp_monitor_top.sv"}
LINE = "`timescale 1ns/1ps\n"
REFUSED = "Bad `period`"
FAULT = "            transfer_count <= transfer_count + 1;\n\n            if (valid_in) begin\n"
REPAIR = "            if (valid_in) begin\n                transfer_count <= transfer_count + 1;\n"


Run = Callable[[str, Mapping[str, str]], Awaitable[tuple[bool, str]]]


@pytest.fixture
def run(shared_provider: SandboxProvider, rows: dict[str, Problem]) -> Run:
    """Grades a row's design: whether it passes, and what the tests print."""

    async def graded(row: str, files: Mapping[str, str]) -> tuple[bool, str]:
        services, submission = read_services(rows[row_id(row)]), sift(rows[row_id(row)], files)
        done = await run_harness(submission, services, shared_provider, HarnessImages(), timeout=300, lint=False)
        return all(one["code"] == 0 for one in done.services), "".join(one["log"] for one in done.services)

    return graded


def as_shipped(problem: Problem) -> dict[str, str]:
    return {path: text for path, text in problem.context.items() if path.startswith("rtl/")}


def with_line(row: str, files: dict[str, str]) -> dict[str, str]:
    return files | {TOP[row]: LINE + files[TOP[row]]}


@pytest.mark.slow  # the test of a repaired design below shows it for one row
@pytest.mark.parametrize("shipped", [False, True])
@pytest.mark.parametrize("row", [BROADCASTER, MONTE_CARLO])
async def test_without_the_line_no_design_is_looked_at(
    run: Run, rows: dict[str, Problem], row: str, shipped: bool
) -> None:
    files = as_shipped(rows[row_id(row)])
    if not shipped:
        right = design(row)
        assert right[TOP[row]].startswith(LINE)
        files = right | {TOP[row]: right[TOP[row]].removeprefix(LINE)}
    passed, log = await run(row, files)
    assert not passed
    assert REFUSED in log


@pytest.mark.slow  # four more runs
@pytest.mark.parametrize(
    ("row", "why"), [(BROADCASTER, "m_axis_tdata"), (MONTE_CARLO, "Transfers exceed input attempts")]
)
async def test_with_the_line_the_shipped_one_fails_for_its_fault(
    run: Run, rows: dict[str, Problem], row: str, why: str
) -> None:
    passed, log = await run(row, with_line(row, as_shipped(rows[row_id(row)])))
    assert not passed
    assert REFUSED not in log
    assert why in log


async def test_with_the_line_monte_carlo_needs_one_more(run: Run, rows: dict[str, Problem]) -> None:
    files = as_shipped(rows[row_id(MONTE_CARLO)])
    stage = files["rtl/dsp_output_stage.sv"]
    assert stage.count(FAULT) == 1
    repaired = files | {"rtl/dsp_output_stage.sv": stage.replace(FAULT, REPAIR)}
    assert (await run(MONTE_CARLO, with_line(MONTE_CARLO, repaired)))[0]
    passed, log = await run(MONTE_CARLO, repaired)
    assert not passed
    assert REFUSED in log


@pytest.mark.slow  # the same design as in test_compatibility.py, and one without its buffer
async def test_with_the_line_the_broadcaster_needs_a_buffer(run: Run) -> None:
    right = design(BROADCASTER)
    assert (await run(BROADCASTER, right))[0]
    text = right[TOP[BROADCASTER]]
    keeps = "            spare_valid <= 1;\n"
    assert text.count(keeps) == 1
    passed, log = await run(BROADCASTER, {TOP[BROADCASTER]: text.replace(keeps, "")})
    assert not passed
    assert REFUSED not in log
