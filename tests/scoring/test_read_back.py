"""What tests in Python read back from a design: its inputs and its parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtl_agent_gym.scoring import Scorer
from rtl_agent_gym.scoring.grader import connections

from .conftest import ENV, GOLDEN, HEADER, RUNNER, TARGET, VERILATOR, inside, make_problem

ZERO = HEADER + "assign sum = 0;\nendmodule\n"

HIDES = "module adder(input logic clk, output logic [8:0] sum);\nassign sum = 0;\nendmodule\n"

READS_BACK = """
import cocotb
from cocotb.triggers import Timer

@cocotb.test()
async def test_sum(dut):
    for a, b in ((1, 2), (200, 100)):
        dut.clk.value, dut.a.value, dut.b.value = 0, a, b
        await Timer(5, unit="ns")
        dut.clk.value = 1
        await Timer(5, unit="ns")
        assert dut.sum.value == int(dut.a.value) + int(dut.b.value)
"""


@pytest.mark.docker
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("design", "passes", "refused"),
    [
        (GOLDEN, True, False),
        (GOLDEN.replace("input logic [7:0]", "input var logic [7:0]"), True, False),
        (inside("pullup (clk);\ninitial begin $dumpvars(0, a); $monitor(b); end", GOLDEN), True, False),
        (ZERO, False, False),
        (inside("initial begin force a = 0; force b = 0; end", ZERO), False, True),
        (
            inside("low one(a), two(b);", ZERO) + "module low(input [7:0] x); initial force x = 0; endmodule\n",
            False,
            True,
        ),
        (
            inside("low one(a), two(b);", ZERO) + "module low(output reg [7:0] x); always #1 x = 0; endmodule\n",
            False,
            True,
        ),
        (inside("reg [7:0] z; always begin #1 z = 1; #1 z = 0; end\nassign a = z, b = z;", ZERO), False, True),
        (
            inside("always @(a, b) begin a = 0; b = 0; end", ZERO.replace("input logic [7", "input var logic [7")),
            False,
            True,
        ),
        (
            inside("always @(a, b) begin a = 0; b = 0; end", ZERO.replace("input logic [7", "output logic [7")),
            False,
            True,
        ),
        (inside("wire [7:0] a = clk ? 1 : 2, b = a;", HIDES), False, True),
        (GOLDEN.replace("input logic [7", "output logic [7"), True, False),  # as in the official grading
        ('`line 1 "/src/tb.sv" 0\n' + inside("initial begin force a = 0; force b = 0; end", ZERO), False, True),
    ],
)
async def test_a_design_does_not_write_what_cocotb_reads_back(
    scorer: Scorer, design: str, passes: bool, refused: bool
) -> None:
    score = await scorer.score(make_problem(harness={"src/test_adder.py": READS_BACK}), {TARGET: design})
    assert (score.passed, score.violations) == (passes, []), score.reason
    assert ("writes its input '" in score.reason) == refused, score.reason


READS_WIDTH = """
import random

import cocotb
from cocotb.triggers import Timer

@cocotb.test()
async def test_sum(dut):
    most = 2 ** int(dut.WIDTH.value) - 1
    for _ in range(9):
        a, b = random.randint(0, most), random.randint(0, most)
        dut.clk.value, dut.a.value, dut.b.value = 0, a, b
        await Timer(5, unit="ns")
        dut.clk.value = 1
        await Timer(5, unit="ns")
        assert dut.sum.value == a + b
"""


def _with_parameter(declared: str, design: str, more: str = "") -> str:
    return inside(more, design.replace("module adder ", f"module adder #(parameter {declared}) "))


_NARROW = f"/* verilator lint_off WIDTHTRUNC */\n{_with_parameter('[2:0] WIDTH = 0', ZERO)}"


@pytest.mark.docker
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("simulator", "design", "passes", "refused"),
    [
        ("icarus", _with_parameter("[3:0] WIDTH = 4", GOLDEN), True, False),
        ("icarus", _with_parameter("WIDTH = 0", ZERO), False, False),
        ("icarus", _with_parameter("WIDTH = 8", ZERO, "defparam WIDTH = 0;"), False, True),
        ("icarus", _with_parameter("WIDTH = 8", ZERO, "defparam WIDTH = 8'bx;"), False, True),
        ("icarus", _with_parameter("WIDTH = 8", ZERO, 'defparam WIDTH = "8";'), False, True),
        ("icarus", _NARROW, False, True),
        ("verilator", _NARROW, False, True),
        ("verilator", _with_parameter('string WIDTH = "8"', ZERO), False, True),
        pytest.param("verilator", _with_parameter("int WIDTH = 4", GOLDEN), True, False, marks=pytest.mark.slow),
    ],
)
async def test_a_design_has_the_parameters_that_the_harness_gives_it(
    scorer: Scorer, simulator: str, design: str, passes: bool, refused: bool
) -> None:
    runner = RUNNER.replace("clean=True,", 'clean=True,\n        parameters={"WIDTH": 8},')
    harness = {"src/.env": ENV.replace("icarus", simulator), "src/test_runner.py": runner}
    score = await scorer.score(make_problem(harness=harness | {"src/test_adder.py": READS_WIDTH}), {TARGET: design})
    assert (score.passed, score.violations) == (passes, []), score.reason
    assert ("the parameter 'WIDTH' is not 8, which the harness gives it" in score.reason) == refused, score.reason


def test_numbers_of_parameters_are_compared_as_the_simulator_writes_them(tmp_path: Path) -> None:
    names = ":file_names 4;" + "".join(f'\n    "{name}";' for name in ("N/A", "<interactive>", "-", "/code/rtl/a.sv"))
    for given, written, same in (
        ("8", 'P_0x1 .param/l "W" 0 3 1, +C4<00001000>;', True),
        ("-1", 'P_0x1 .param/l "W" 0 3 1, +C4<11111111>;', True),
        ("13", 'P_0x1 .param/l "W" 0 3 1, +C4<1101>;', True),
        ("4", 'P_0x1 .param/l "W" 0 3 1, C4<0>;', False),
        ("50000001", 'P_0x1 .param/real "W" 0 3 1, Cr<m5f5e1020000000gfc1b>; value=5.00000e+07', True),
        ("4", 'P_0x1 .param/real "W" 0 3 1, Cr<m0gfc1>; value=0.00000', False),
        ("4", 'P_0x1 .param/l "OTHER" 0 3 1, C4<0>;', True),
        ("4", 'P_0x1 .param/str "W" 0 3 1, "x";', False),
        ("4", 'P_0x1 .param/l "W" 0 3 1, C4<xx00>;', False),
    ):
        (tmp_path / "t.vvp").write_text(f'\nS_0x1 .scope module, "t" "t" 3 1;\n{written}\n .timescale 0 0;\n{names}\n')
        for arguments in (["-s", "t", f"-Pt.W={given}", "a.sv"], ["-P", f"t.W={given}"]):
            assert bool(connections.changed_parameters([str(tmp_path / "t.vvp")], arguments)) != same, written
    assert connections.changed_parameters([str(tmp_path / "missing.vvp")], arguments) == []


def test_a_testbench_that_is_left_beside_the_design_has_signals_of_its_own(tmp_path: Path) -> None:
    """A harness that does not name the top module simulates both."""
    bench = 'S_0x1 .scope module, "tb" "tb" 3 1;\n .timescale 0 0;\nv0x2_0 .var "a", 7 0;\n'
    process = "    .scope S_0x1;\nT_0 ;\n    %pushi/vec4 0, 0, 8;\n    %store/vec4 v0x2_0, 0, 8;\n    %end;\n"
    design = """S_0x3 .scope module, "adder" "adder" 3 1;
 .timescale 0 0;
    .port_info 0 /INPUT 8 "a";
o0x5 .functor BUFZ 8, c4<zzzzzzzz>; HiZ drive
v0x4_0 .net "a", 7 0, o0x5;  0 drivers
"""
    names = ":file_names 4;" + "".join(f'\n    "{name}";' for name in ("N/A", "<interactive>", "-", "/code/rtl/a.sv"))
    for scopes, refused in ((design + bench, False), (bench + design, False), (bench, True)):
        (tmp_path / "t.vvp").write_text(f':ivl_version "13.0 (stable)";\n{scopes}{process}{names}\n')
        assert bool(connections.written_inputs(str(tmp_path / "t.vvp"), ["a"])) == refused


_OFF = "/* verilator lint_off ASSIGNIN */\n"

_BUILT = pytest.mark.slow  # Verilator's compiler takes long


@pytest.mark.docker
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("design", "passes"),
    [
        pytest.param(GOLDEN, True, marks=_BUILT),
        pytest.param(ZERO, False, marks=_BUILT),
        pytest.param(GOLDEN.replace("[7:0] a", "[7:0] a = 1"), True, marks=_BUILT),
        pytest.param(GOLDEN.replace("input logic [7", "output logic [7"), True, marks=_BUILT),
        (_OFF + inside("always @(posedge clk) begin a <= 0; b <= 0; end", ZERO), None),
        (_OFF + inside("low one(a), two(b);", ZERO) + "module low(output [7:0] x); assign x = 0; endmodule\n", None),
        (inside("always_comb begin a = 0; b = 0; end", ZERO.replace("input logic [7", "output logic [7")), None),
        (inside("reg [7:0] a, b; always @(posedge clk) begin a <= 0; b <= 0; end", HIDES), None),
    ],
)
async def test_a_design_does_not_write_what_cocotb_reads_back_under_verilator(
    scorer: Scorer, design: str, passes: bool | None
) -> None:
    """None: it is refused, and would pass."""
    problem = make_problem(harness=VERILATOR | {"src/test_adder.py": READS_BACK})
    score = await scorer.score(problem, {TARGET: design})
    assert (score.passed, score.violations) == (bool(passes), []), score.reason
    assert ("is written, which the tests may read back" in score.reason) == (passes is None), score.reason
