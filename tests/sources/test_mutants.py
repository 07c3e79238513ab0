"""Mutants of a design: what each operator changes, what none does, and how they are drawn."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.sources.mutants.derived import with_design
from rtl_agent_gym.sources.mutants.mutant import Mutant, design_mutants, draw_mutants, problem_mutants
from rtl_agent_gym.sources.mutants.operators import OPERATORS

FRAME = """\
module m (input logic clk, rst_n, a, b, input logic [3:0] d, output logic [3:0] q, w);
  // naïve comment
  {}
endmodule
"""
CASES = {
    "constant": ("assign w = {d[0], 3'd2};", {"assign w = {d[0], 3'd3};"}),
    "condition": (
        "always_comb if (a) w = d; else w = (!b) ? q : d;",
        {
            "always_comb if (!a) w = d; else w = (!b) ? q : d;",
            "always_comb if (a) w = d; else w = !(!b) ? q : d;",
        },
    ),
    "off_by_one": (
        "assign w = d < 4'd3 ? d + 1 : d;",
        {
            "assign w = d <= 4'd3 ? d + 1 : d;",
            "assign w = d < 4'd4 ? d + 1 : d;",
            "assign w = d < 4'd3 ? d + 2 : d;",
        },
    ),
    "edge": ("always_ff @(posedge clk) q <= d;", {"always_ff @(negedge clk) q <= d;"}),
    "reset": (
        "always_ff @(posedge clk or negedge rst_n) if (!rst_n) begin q <= 4'd0; end else q <= d;",
        {
            "always_ff @(posedge clk) if (!rst_n) begin q <= 4'd0; end else q <= d;",
            "always_ff @(posedge clk or posedge rst_n) if (!rst_n) begin q <= 4'd0; end else q <= d;",
            "always_ff @(posedge clk or negedge rst_n) if (!rst_n) begin q <= 4'd1; end else q <= d;",
            "always_ff @(posedge clk or negedge rst_n) if (!rst_n) begin  end else q <= d;",
        },
    ),
    "width": (
        "localparam N = 4; logic [N-1:0] x; logic [3:0] y;",
        {
            "localparam N = 4; logic [N-2:0] x; logic [3:0] y;",
            "localparam N = 4; logic [N-1:0] x; logic [2:0] y;",
        },
    ),
    "assignment": ("always_ff @(posedge clk) q <= d;", {"always_ff @(posedge clk) q = d;"}),
    "ports": (
        "sub u (.x(a), .y(), .z(b)); sub v (d, q);",
        {"sub u (.x(b), .y(), .z(a)); sub v (d, q);", "sub u (.x(a), .y(), .z(b)); sub v (q, d);"},
    ),
    "branch": (
        "always_ff @(posedge clk) begin if (a) q <= d; case (d) 4'd1: w <= d; default: w <= q; endcase end",
        {
            "always_ff @(posedge clk) begin  case (d) 4'd1: w <= d; default: w <= q; endcase end",
            "always_ff @(posedge clk) begin if (a) q <= d; case (d)  default: w <= q; endcase end",
        },
    ),
    "stuck": ("assign w = d; assign q = 4'd5;", {"assign w = 0; assign q = 4'd5;"}),
    "operator": (
        "assign w = d + q; assign q[0] = a && b;",
        {"assign w = d - q; assign q[0] = a && b;", "assign w = d + q; assign q[0] = a || b;"},
    ),
    "equality": ("assign q[0] = d == w;", {"assign q[0] = d != w;"}),
}
"""For each operator, a line of a design and every line that the operator makes of it."""

UNTOUCHED = [
    "parameter int P = 3;",
    "initial q = 4'd1 + 2;",
    "logic [d:d] x = 4'd3;",
    "assert property (@(posedge clk) a == b);",
    "`define SUM (d + 4'd1)",
]


def mutants_of(line: str) -> list[Mutant]:
    return design_mutants({"rtl/m.sv": FRAME.replace("{}", line)})


def test_there_is_a_case_of_every_operator() -> None:
    assert CASES.keys() == OPERATORS.keys()
    assert len(OPERATORS) == 12


@pytest.mark.parametrize("name", CASES)
def test_what_an_operator_makes(name: str) -> None:
    line, expected = CASES[name]
    made = [mutant for mutant in mutants_of(line) if mutant.operator == name]
    assert {mutant.after for mutant in made} == {FRAME.replace("{}", one) for one in expected}
    assert {mutant.line for mutant in made} == {3}


@pytest.mark.parametrize(
    ("literal", "other"),
    [
        ("32'hDEAD_BEEF", "32'hDEAD_BEF0"),
        ("8'hA5", "8'hA6"),
        ("8'h0f", "8'h10"),
        ("9'b1_0011_1011", "9'b1_0011_1100"),
        ("1_000_000", "1_000_001"),
    ],
)
def test_a_literal_keeps_its_style(literal: str, other: str) -> None:
    made = [mutant.after for mutant in mutants_of(f"assign w = {{d[0], {literal}}};") if mutant.operator == "constant"]
    assert made == [FRAME.replace("{}", f"assign w = {{d[0], {other}}};")]


def test_a_range_that_ascends_becomes_no_wider() -> None:
    assert [mutant for mutant in mutants_of("logic [1:8] x;") if mutant.operator == "width"] == []


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("first", False), ("burst_en", False), ("i_rst", True), ("aresetn", True), ("wrst_n", True), ("btnReset", True)],
)
def test_what_is_a_reset(name: str, is_one: bool) -> None:
    line = f"always_ff @(posedge clk) if ({name}) q <= 4'd0; else q <= d;"
    made = {mutant.operator for mutant in mutants_of(line) if "4'd1" in mutant.after}
    assert made == ({"reset"} if is_one else {"constant"})


@pytest.mark.parametrize("line", UNTOUCHED)
def test_what_is_no_hardware_stays(line: str) -> None:
    assert mutants_of(line) == []


def test_what_a_macro_or_an_included_file_says_stays() -> None:
    files = {
        "rtl/m.sv": '`include "rtl/c.svh"\nmodule m (input [3:0] d, output [3:0] q);\nassign q = `NEXT;\nendmodule\n',
        "rtl/c.svh": "`define NEXT d + 4'd1\n",
    }
    assert [mutant.after for mutant in design_mutants(files)] == []


def test_only_the_change_differs() -> None:
    problem = load_problems("bundled", ids="cvdp_agentic_rtlgym_gray_counter_0001")[0]
    mutants = problem_mutants(problem)
    assert len(mutants) > 20
    for mutant in mutants:
        assert mutant.before == (problem.golden or {})[mutant.path] != mutant.after
        changed = [line for line in mutant.diff.splitlines() if line[0] in "+-"]
        assert 1 <= len(changed) <= 8
        assert mutant.before.splitlines()[mutant.line - 1] in {line[1:] for line in changed if line[0] == "-"}


def test_no_two_are_equal() -> None:
    for problem in load_problems("bundled", categories=[4, 16]):
        mutants = problem_mutants(problem)
        assert len({mutant.digest for mutant in mutants}) == len(mutants)
        texts = ["".join(mutant.after.split()) for mutant in mutants if mutant.path == mutants[0].path]
        assert all(one != other for one, other in combinations(texts, 2))


def test_a_file_with_an_endless_expression_has_none() -> None:
    long = "module m (input a, output y);\n  assign y = " + " ^ ".join(["a"] * 2000) + ";\nendmodule\n"
    short = "module n (input a, output y);\n  assign y = !a;\nendmodule\n"
    assert {mutant.path for mutant in design_mutants({"rtl/m.sv": long, "rtl/n.sv": short})} == {"rtl/n.sv"}


def test_a_file_that_is_no_verilog_has_none() -> None:
    assert design_mutants({"rtl/m.sv": "module m; assign = ; endmodule"}) == []
    assert design_mutants({"rtl/readme.md": FRAME.replace("{}", "assign w = d + q;")}) == []


def test_the_draw_takes_every_operator_in_turn() -> None:
    [problem] = load_problems("bundled", ids="cvdp_agentic_rtlgym_cache_tags_debug_0001")
    mutants = problem_mutants(problem)
    drawn = draw_mutants(mutants, seed=3)
    assert set(drawn) == set(mutants)
    assert drawn == draw_mutants(mutants, seed=3) != draw_mutants(mutants, seed=4)
    assert set(Counter(mutant.operator for mutant in drawn[:12]).values()) == {1}
    assert max(Counter(mutant.operator for mutant in drawn[:24]).values()) == 2


@pytest.fixture
def withheld() -> Problem:
    return Problem(id="cvdp_agentic_x_0001", category=3, difficulty="easy", prompt="x", targets=("rtl/m.sv",))


def test_a_design_of_the_users_own(tmp_path: Path, withheld: Problem) -> None:
    (tmp_path / "x_0001/rtl").mkdir(parents=True)
    (tmp_path / "y_0001/rtl").mkdir(parents=True)
    (tmp_path / "y_0001/rtl/m.sv").write_text("one\ntwo\n")
    patch = "--- y_0001/rtl/m.sv\n+++ x_0001/rtl/m.sv\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n"
    (tmp_path / "x_0001/rtl/m.sv.patch").write_text(patch)
    assert with_design(withheld, tmp_path).golden == {"rtl/m.sv": "one\nthree\n"}
    (tmp_path / "cvdp_agentic_x_0001/rtl").mkdir(parents=True)
    (tmp_path / "cvdp_agentic_x_0001/rtl/m.sv").write_text("whole\n")
    assert with_design(withheld, tmp_path).golden == {"rtl/m.sv": "whole\n"}
    assert with_design(withheld.model_copy(update={"id": "other"}), tmp_path).golden is None


def test_a_design_that_cannot_be_read(tmp_path: Path, withheld: Problem) -> None:
    with pytest.raises(UsageError, match="no such folder of designs"):
        with_design(withheld, tmp_path / "nowhere")
    (tmp_path / "x_0001/rtl").mkdir(parents=True)
    (tmp_path / "x_0001/rtl/m.sv.patch").write_text("no patch")
    with pytest.raises(UsageError, match=r"m\.sv\.patch: cannot be read as a file of a design"):
        with_design(withheld, tmp_path)
