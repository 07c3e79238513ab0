"""Mutants under the real harness, and compared with the reference by Yosys."""

# ruff: noqa: E501 — a module on few lines
from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.evaluation import EvaluationConfig, evaluate
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.sandboxes import DockerSandboxes
from rtl_agent_gym.scoring import Scorer
from rtl_agent_gym.scoring.score import Score
from rtl_agent_gym.sources.mutants.derived import Candidate
from rtl_agent_gym.sources.mutants.equivalence import beyond_yosys, compare, other_parameters
from rtl_agent_gym.sources.mutants.grading import Count, measure_strength, mutant_grader
from rtl_agent_gym.sources.mutants.mutant import VerdictStore, design_key, problem_mutants

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

COMPOSE = (
    "services:\n  direct:\n    image: __OSS_SIM_IMAGE__\n    env_file: ./src/.env\n    command: pytest /src/t.py\n"
)
ENV = "VERILOG_SOURCES = /code/rtl/m.sv\nTOPLEVEL = m\nMODULE = t\n"
DESIGN = """\
module m (input logic clk, rst_n, go, input logic [1:0] d, output logic [1:0] q, output logic done);
  logic [1:0] state;
  assign done = state == 2'd2;
  always_ff @(posedge clk or negedge rst_n)
    if (!rst_n) begin
      state <= 2'd0;
      q <= 2'd0;
    end else if (go) begin
      q <= (q == 2'd3) ? '0 : d;
      case (state)
        2'd0: state <= 2'd1;
        2'd1: state <= 2'd2;
        2'd2: state <= 2'd0;
        default: state <= 2'd2;
      endcase
    end
endmodule
"""
CHANGES = {
    "blocking": ("q <= 2'd0;", "q = 2'd0;", "proved"),
    "commuted": ("state == 2'd2", "2'd2 == state", "proved"),
    "unreachable": ("default: state <= 2'd2;", "default: state <= 2'd1;", "bounded"),
    "ones": ("'0 : d", "'1 : d", "differs"),
    "edge": ("posedge clk", "negedge clk", "differs"),
    "reset value": ("      q <= 2'd0;\n", "      q <= 2'd1;\n", "differs"),
    "no reset": ("      q <= 2'd0;\n", "", "differs"),
    "no synthesis": ("assign done", "class c; endclass\n  assign done", "unknown"),
}
"""Changes of `DESIGN`, and what Yosys must find. An x that hides differences, or clocks that are not compared, would
make ``ones`` and ``edge`` equivalent."""


@pytest.fixture
def problem() -> Problem:
    harness = {"docker-compose.yml": COMPOSE, "src/.env": ENV, "src/t.py": ""}
    return Problem(id="x_0001", category=3, difficulty="easy", prompt="x", targets=("rtl/m.sv",), harness=harness)


SLOW = {"commuted", "reset value", "no reset"}
"""What other changes show too."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.slow] * (one in SLOW)) for one in CHANGES])
async def test_what_yosys_finds(name: str, problem: Problem, provider: DockerSandboxes) -> None:
    before, after, expected = CHANGES[name]
    assert DESIGN.count(before) == 1
    changed = DESIGN.replace(before, after)
    finding = await compare(problem, {"rtl/m.sv": DESIGN}, {"rtl/m.sv": changed}, provider)
    assert finding.equivalence == expected, finding
    assert (finding.steps > 0) == (expected == "bounded")
    assert bool(finding.why) == (expected == "unknown")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param("go & d", "d & go", "proved", id="equivalent", marks=pytest.mark.slow),
        pytest.param("r <= go", "r <= !go", "differs", id="of the second"),
        pytest.param("go & d", "go | d", "differs", id="of the first", marks=pytest.mark.slow),
    ],
)
async def test_every_top_module_is_compared(
    before: str, after: str, expected: str, problem: Problem, provider: DockerSandboxes
) -> None:
    """The tests of two services run on a module each."""
    first = "module m (input logic go, d, output logic y);\n  assign y = go & d;\nendmodule\n"
    second = "module n (input logic clk, go, output logic r);\n  always_ff @(posedge clk) r <= go;\nendmodule\n"
    service = COMPOSE.removeprefix("services:\n").replace("direct:", "other:").replace(".env", "other.env")
    harness = {
        "docker-compose.yml": COMPOSE + service,
        "src/.env": ENV,
        "src/other.env": ENV.replace("TOPLEVEL = m", "TOPLEVEL = n"),
        "src/t.py": "",
    }
    design = first + second
    assert design.count(before) == 1
    two = problem.model_copy(update={"harness": harness})
    finding = await compare(two, {"rtl/m.sv": design}, {"rtl/m.sv": design.replace(before, after)}, provider)
    assert finding.equivalence == expected, finding


OTHERS = {
    "an option that the defaults leave out": (
        "module m #(parameter LATE = 0) (input logic clk, d, output logic q);\n  if (LATE) always_ff @(posedge clk) q <= d;\n"
        "  else assign q = d;\nendmodule\n",
        ("q <= d", "q <= !d"),
        "LATE = 1",
    ),
    "high impedance": (
        "module m (input logic oe, output wire q);\n  assign q = oe ? 1'b0 : 1'bz;\nendmodule\n",
        ("1'bz", "1'b0"),
        "'bz",
    ),
    "text for simulation": (
        "module m (input logic a, b, output logic q);\n`ifdef SYNTHESIS\n  assign q = a;\n`else\n  assign q = a & b;\n`endif\nendmodule\n",
        ("a & b", "a | b"),
        "SYNTHESIS",
    ),
    "a promise to synthesis": (
        "module m (input logic [1:0] s, output logic q);\n  always_comb begin q = s[0];\n    unique case (s) 2'd0: q = 1; 2'd1: q = 0; endcase end\nendmodule\n",
        ("q = s[0]", "q = 0"),
        "unique",
    ),
    "a list of levels": (
        "module m (input logic a, clear, output logic q);\n  always @(a or clear) q = a & clear;\nendmodule\n",
        ("(a or clear)", "(a)"),
        "(a",
    ),
    "a delay": (
        "module m (input logic d, output logic q);\n  always_comb begin q = d; #1 q = ~d; end\nendmodule\n",
        ("q = d;", "q = 0;"),
        "#1",
    ),
}
"""Designs, changes that simulation sees and the proof does not, and a part of the reason that is given."""


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.slow] * (n > 0)) for n, one in enumerate(OTHERS)]
)
async def test_what_only_yosys_takes_for_equal_is_not_proved(
    name: str, problem: Problem, provider: DockerSandboxes
) -> None:
    design, (before, after), reason = OTHERS[name]
    assert design.count(before) == 1
    finding = await compare(problem, {"rtl/m.sv": design}, {"rtl/m.sv": design.replace(before, after)}, provider)
    assert finding.equivalence == "unknown"
    assert reason in finding.why


def test_what_yosys_and_simulators_read_alike() -> None:
    for text in (
        DESIGN,
        "always @(*) q = a;",
        "casez (a) 4'b1??0: q = 1; endcase",
        "fifo #(.DEPTH(4)) f (.q(q));",
        "always @* q = a;",
    ):
        assert beyond_yosys([text]) == ""


def test_every_parameter_of_a_list_gets_another_value() -> None:
    head = "#(parameter W = 4, KIND = 0, D = $clog2(W * (W + 1)), localparam L = 3, parameter bit P = 1'b1)"
    text = f"module m {head} (input a = 0);\n  parameter N = 7, LAST = 9;\nendmodule\n"
    assert other_parameters([text], "m") == [("W", 5), ("KIND", 1), ("P", 0), ("N", 8), ("LAST", 10)]


async def test_a_harness_that_names_no_top(problem: Problem) -> None:
    blind = problem.model_copy(update={"harness": {**problem.harness, "src/.env": "MODULE = t\n"}})
    finding = await compare(blind, {"rtl/m.sv": DESIGN}, {"rtl/m.sv": DESIGN}, AsyncMock())
    assert (finding.equivalence, finding.why) == ("unknown", "the hidden tests name no top module or no sources")


def test_the_strength_leaves_out_what_no_test_can_see() -> None:
    assert Count(killed=6, survived=2, proved=5, invalid=7).rate == 0.75
    assert Count(proved=1, invalid=1).rate is None


def mutant_like(problem: Problem, change: str) -> Candidate:
    """A mutant whose diff contains a text."""
    mutant = next(mutant for mutant in problem_mutants(problem) if change in mutant.diff)
    return Candidate(problem, design_key(problem), mutant)


async def test_a_verdict_is_graded_once_and_kept(tmp_path: Path, arbiter: Problem) -> None:
    candidate = mutant_like(arbiter, "negedge clk")
    store = VerdictStore(tmp_path, shipped=False)
    async with mutant_grader(store=store) as grader:
        verdict = (await grader.grade(candidate)).verdict
    assert (verdict.outcome, verdict.operator) == ("killed", "edge")
    assert verdict.failed
    assert "tests failed" in verdict.symptom
    assert verdict.image.startswith("sha256:")
    assert VerdictStore(tmp_path, shipped=False).get(verdict.key) == verdict


async def test_nothing_is_said_of_mutants_if_the_reference_fails(tmp_path: Path, arbiter: Problem) -> None:
    golden = {path: text.replace("posedge", "negedge") for path, text in (arbiter.golden or {}).items()}
    wrong = arbiter.model_copy(update={"golden": golden})
    async with mutant_grader(store=VerdictStore(tmp_path, shipped=False)) as grader:
        with pytest.raises(UsageError, match="reject the reference solution"):
            await measure_strength(wrong, grader)
        graded = await grader.grade(mutant_like(wrong, "posedge"))
        with pytest.raises(UsageError, match="no reference solution"):
            await grader.require_reference(arbiter.model_copy(update={"golden": None}))
    assert graded.verdict.outcome == "invalid"


@pytest.mark.slow
async def test_the_time_of_a_mutant_depends_on_a_run_of_the_reference(
    tmp_path: Path, arbiter: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not on how long it takes to find the reference's grading in the cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    score, scores = Scorer.score, list[Score]()

    async def noted(self: Scorer, *arguments: Any, **options: Any) -> Score:
        scores.append(await score(self, *arguments, **options))
        return scores[-1]

    monkeypatch.setattr(Scorer, "score", noted)
    async with mutant_grader(store=VerdictStore(tmp_path, shipped=False)) as grader:
        assert (await grader.require_reference(arbiter)).passed
    async with mutant_grader(store=VerdictStore(tmp_path, shipped=False)) as grader:
        assert (await grader.require_reference(arbiter)).cached
        assert await grader.reference_seconds(arbiter) == scores[-1].seconds
    assert [score.cached for score in scores] == [False, True, False]


@pytest.mark.slow  # a minute of gradings
@pytest.mark.timeout(1800)
async def test_the_strength_of_a_problem(tmp_path: Path, arbiter: Problem) -> None:
    async with mutant_grader(store=VerdictStore(tmp_path, shipped=False), cache=False) as grader:
        strength = await measure_strength(arbiter, grader, limit=12)
    assert sum(strength.total.model_dump().values()) == 12
    assert (strength.total.rate or 0) > 0.8
    assert len(strength.survivors) == strength.total.survived + strength.total.proved
    assert len(strength.operators) > 8


@pytest.mark.slow  # as many episodes as problems
@pytest.mark.timeout(7200)
async def test_the_reference_repairs_every_mutant(tmp_path: Path) -> None:
    count = 200
    source = f"bundled+mutants?count={count}"
    found = await evaluate(EvaluationConfig(problems=source, policy="golden", folder=tmp_path / "eval", concurrency=4))
    assert (found.summary.finished, found.summary.passed) == (count, count)
