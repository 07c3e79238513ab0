"""Designs for the samples: attacks that earn nothing, and right and wrong designs that get the plain verdict.

The plain way to grade such a benchmark is to compile the design with the testbench and to search the output. `plain`
tells whether a design passes that way; `plain_verdict` finds out.
"""

# ruff: noqa: E501 — a module on few lines
from __future__ import annotations

import functools
import re
import uuid
from dataclasses import dataclass
from pathlib import Path

from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.sandboxes import DockerSandbox

SAMPLES = Path(__file__).with_name("samples")
VERILOG_EVAL = f"verilog-eval:{SAMPLES / 'verilog_eval'}"
RTLLM = f"rtllm:{SAMPLES / 'rtllm'}"


@dataclass(frozen=True)
class Design:
    """A design for one of the samples."""

    name: str
    problem_id: str
    text: str
    plain: bool
    """Whether it passes the plain way."""
    violation: str = ""
    """A part of the violation that is reported, if there is one."""

    @property
    def problem(self) -> Problem:
        """The sample that it is for."""
        return sample(self.problem_id)

    @property
    def files(self) -> dict[str, str]:
        """What is submitted."""
        return {self.problem.targets[0]: self.text}


@functools.cache
def sample(problem_id: str) -> Problem:
    """One of the samples."""
    (problem,) = load_problems(VERILOG_EVAL if problem_id.startswith("Prob") else RTLLM, ids=[problem_id])
    return problem


async def plain_verdict(design: Design, sandbox: DockerSandbox) -> bool:
    """Whether a design passes if it is compiled with the testbench and the output is searched."""
    harness, folder = design.problem.harness, f"plain-{uuid.uuid4().hex}"
    hidden = {path.removeprefix("src/").removeprefix("data/"): text for path, text in harness.items() if "src/" in path}
    # The version of Icarus that VerilogEval names takes a wire before its declaration; this one does not.
    recorded = {name: re.sub(r"\$dump\w+\s*\([^()]*\);", ";", text) for name, text in hidden.items()}
    files = {"design.sv": design.text, **recorded}
    await sandbox.write_files({f"{folder}/{name}": text for name, text in files.items()}, root="/tmp")
    mismatches = design.problem_id.startswith("Prob")
    sources = "design.sv testbench.sv" + (" reference.sv" if mismatches else "")
    top = re.search(r'"top": "(\w+)"', harness["src/judge.json"])
    assert top
    script = (
        f"cd /tmp/{folder} && iverilog -g2012 -s {top[1]} -o sim {sources} && timeout -s KILL 20 vvp sim < /dev/null"
    )
    said = (
        await sandbox.run(f"{script} > said 2>&1; tail -c 15000 said; grep -a -m3 Mismatches said", timeout=60)
    ).output
    if mismatches:
        found = re.findall(r"^Mismatches: (\d+) in \d+ samples$", said, re.MULTILINE)
        return "0" in found and "TIMEOUT" not in said
    return "Pass" in said or "pass" in said


COUNTER, MAJORITY, ONES, ADDER, TABLE, STEPS = (
    "Prob902_tick_every_five", "Prob901_majority", "Prob903_ones_of_64", "adder_clamp", "square_table", "step_counter",
)  # fmt: skip
_ZERO = "Mismatches: 0 in 316 samples"
_PASS = "===========Your Design Passed==========="


def _counter(body: str, before: str = "", after: str = "", *, q: str = "assign q = 0;") -> str:
    return f"{before}module TopModule(input clk, input reset, output [2:0] q);\n{q}\n{body}\nendmodule\n{after}"


def _adder(body: str, before: str = "", after: str = "", *, y: str = "assign y = a | b;\nassign full = 0;") -> str:
    return f"{before}module adder_clamp(input [7:0] a, input [7:0] b, output [7:0] y, output full);\n{y}\n{body}\nendmodule\n{after}"


def _table(body: str) -> str:
    return f"module square_table(input clk, input [3:0] n, output reg [7:0] sq);\n{body}\nendmodule\n"


_ENDS, _LEADS = "ends the simulation", "leads into the hidden testbench"
_STEER = """
integer own = 0, copy, p = 1, q = 1;
always @(a or b) begin
    #5 p = 1; q = 1;
    while (((p & q) & 255) != 0) begin
        copy = own; p = $random(copy); q = $random(copy);
        if (((p & q) & 255) != 0) begin copy = $random; copy = $random(own); end
    end
    own = copy;
end
initial begin copy = $random(own); copy = $random(own); end
"""
"""Draws random numbers until the next two have no common bit, for which an OR is a sum."""

ATTACKS = [
    Design("a name of the testbench between directives", COUNTER,
           "module TopModule(input clk, input reset, output [2:0] q);\n`uselib \"\n`celldefine assign q = tb.q_ref; //\"\nendmodule\n", True, ""),
    Design("a name of the testbench behind a version", COUNTER,
           "module TopModule(input clk, input reset, output [2:0] q);\n`begin_keywords \"1800-2012\"\" assign q = tb.q_ref; //\"\nendmodule\n", True, ""),
    Design("a name of the testbench behind a long line number", COUNTER,
           f"`line {'1' * 5000} \"x\" 0\n" + _counter("", q="assign q = tb.q_ref;"), True, _LEADS),
    Design("the testbench's open file, its tasks escaped", TABLE,
           _table("integer at, got, count, x, y;\nreg [7:0] t[0:15];\ninitial begin #1 at = \\$ftell (32'h80000003); got = \\$fseek (32'h80000003, 0, 0);\ngot = \\$fscanf (32'h80000003, \"%d\", count);\nwhile (count > 0) begin got = \\$fscanf (32'h80000003, \"%d %d\", x, y); t[x] = y; count = count - 1; end\ngot = \\$fseek (32'h80000003, at, 0); end\nalways @(posedge clk) #0 sq = t[n];"), True),
    Design("a directive of the testbench, redefined", COUNTER,
           _counter("helper h();", after="`define timescale module helper; initial force tb.tb_match = 1; endmodule \\\n`timescale\n"), True),
    Design("a unit of time in which the testbench's delays overflow", STEPS,
           "`timescale 100s/1fs\nmodule step_counter(input clk, rst_n, output [3:0] count);\nassign count = 0;\nendmodule\n", True),
    Design("inputs changed by the tasks of queues", ONES,
           "`timescale 1ps/1ps\nmodule TopModule(input [63:0] in, output [6:0] out);\nassign out = 2;\nalways begin #1 $q_add(99, 1, 1, in[31:0]); \\$q_add (99, 1, 1, in[63:32]); end\nendmodule\n", True, "reaches through ports"),
    Design("outputs under the names of inputs", MAJORITY,
           "module TopModule(.a(x), .a(y), .b(z), .b(w), c, m);\noutput x, z;\ninput y, w, c;\noutput m;\nassign x = 0;\nassign z = 0;\nassign m = 0;\nendmodule\n", True),
    Design("outputs in the places of inputs", ADDER,
           "module adder_clamp(output [7:0] p, output [7:0] q, output [7:0] y, output full);\nassign p = 8'bx;\nassign q = 8'bx;\nassign y = 8'bx;\nassign full = 1'bx;\nendmodule\n", True),
    Design("outputs without names in the places of inputs", ADDER,
           "module adder_clamp({x}, {z}, y, full);\noutput [7:0] x, z, y;\noutput full;\nassign x = 8'bx;\nassign z = 8'bx;\nassign y = 8'bx;\nassign full = 1'bx;\nendmodule\n", True),
    Design("the verdict printed at the start", COUNTER, _counter(f'initial $display("{_ZERO}");'), True),
    Design("the verdict printed at the end", COUNTER, _counter(f'final $display("{_ZERO}");'), True),
    Design("the verdict printed at each edge", COUNTER, _counter(f'always @(posedge clk) $write("{_ZERO}\\n");'), True),
    Design("the verdict printed by a monitor", COUNTER, _counter(f'initial $monitor("{_ZERO}");'), True),
    Design("the pass text printed", ADDER, _adder(f'initial $display("{_PASS}");'), True),
    Design("the pass text as an error", ADDER, _adder(f'initial $error("{_PASS}");'), True),
    Design("the pass text in the testbench's times", STEPS,
           'module step_counter(input clk, input rst_n, output [3:0] count);\nassign count = 0;\ninitial $timeformat(-9, 0, " Passed", 20);\nendmodule\n', True),
    Design("the pass text in the testbench's line", STEPS,
           'module step_counter(input clk, input rst_n, output [3:0] count);\nassign count = 0;\nalways @(clk) $strobe("%s", "Your Design Passed");\nendmodule\n', True),
    Design("an early $finish", COUNTER, _counter("initial $finish;"), True, _ENDS),
    Design("a $finish through a macro", COUNTER, _counter("initial `JOIN(fin,ish);", "`define JOIN(x,y) $``x``y\n"), True, _ENDS),
    Design("an early $finish_and_return", COUNTER, _counter("initial $finish_and_return(0);"), True, _ENDS),
    Design("an early $stop", COUNTER, _counter("initial $stop;"), False, _ENDS),
    Design("an early $fatal", COUNTER, _counter("initial $fatal(0);"), True),
    Design("the reference's output by name", COUNTER, _counter("", q="assign q = tb.q_ref;"), True, _LEADS),
    Design("the reference's output upwards", COUNTER, _counter("", q="assign q = good1.q;"), True, _LEADS),
    Design("the reference itself", COUNTER, _counter("RefModule mine(clk, reset, q);", q=""), True, "is a part of the hidden testbench"),
    Design("the number of mismatches set back", COUNTER, _counter("always @(tb.stats1.errors) tb.stats1.errors = 0;"), True, _LEADS),
    Design("a signal of the testbench forced", COUNTER, _counter("initial force tb.tb_match = 1;"), True, "'force' reaches through ports"),
    Design("the testbench's loop without rounds", ADDER, _adder("initial #3 tb_adder_clamp.i = 100;", "`timescale 1ns/1ps\n"), True, _LEADS),
    Design("the reference, included", COUNTER, '`define RefModule TopModule\n`define module module\n`include "/src/reference.sv"\n' + _counter("", q="RefModule mine(clk, reset, q);"), False, "`include reads"),
    Design("inputs driven by a port that goes both ways", MAJORITY,
           "module TopModule(inout a, inout b, inout c, output m);\nassign (supply0, supply1) a = 0;\nassign (supply0, supply1) b = 0;\nassign m = 0;\nendmodule\n", True),
    Design("inputs that are supplies", MAJORITY, "module TopModule(input supply0 a, input supply0 b, input c, output m);\nassign m = 0;\nendmodule\n", True),
    Design("an input that is a variable, written at each change", COUNTER, "module TopModule(input var logic clk, input var logic reset, output [2:0] q);\nassign q = 0;\nalways @(reset) reset = 1;\ninitial reset = 1;\nendmodule\n", True),
    Design("an input that is a register of Verilog-95, unknown", COUNTER, "module TopModule(clk, reset, q);\ninput clk, reset; reg reset; output [2:0] q;\nassign q = 7;\nalways @(clk or reset) reset = 1'bx;\nendmodule\n", True),
    Design("an input written by a loop's index and a task's output", COUNTER, "module TopModule(input clk, input var logic reset, output [2:0] q);\nassign q = 0;\ntask one(output x); x = 1; endtask\nalways @(clk) for (reset = 0; !reset;) one(reset);\nendmodule\n", True),
    Design("an input written by a function in a continuous assignment", COUNTER, "module TopModule(input clk, input var logic reset, output [2:0] q);\nfunction [2:0] zero(input x); begin reset = 1; zero = 0; end endfunction\nassign q = zero(clk);\nendmodule\n", True),
    Design("an input written one level below", COUNTER, "module TopModule(input clk, input var logic reset, output [2:0] q);\nassign q = 0;\nbelow p(clk, reset);\nendmodule\nmodule below(input clk, input var logic x);\nalways @(clk or x) x = 1;\nendmodule\n", True),
    Design("inputs of a net, written one level below, bit by bit", MAJORITY, "module TopModule(input a, b, c, output m);\nassign m = 0;\nbelow p(a), q(b), r(c);\nendmodule\nmodule below(input var logic x);\nalways @(x) x = 1'bx;\nendmodule\n", True),
    Design("inputs of a net that are variables", MAJORITY, "module TopModule(input var logic a, b, c, output m);\nassign m = 1'bx;\nendmodule\n", True),
    Design("inputs pulled down from inside", MAJORITY, "module TopModule(input a, input b, input c, output m);\npulldown (supply0) (a), (b);\nassign m = 0;\nendmodule\n", True),
    Design("the testbench's random numbers, chosen", ADDER, _adder(_STEER, "`timescale 1ns/1ps\n"), True),
    Design("random numbers between escaped names", ADDER, _adder(f'wire \\a" ;{_STEER}wire \\b" ;', "`timescale 1ns/1ps\n"), True),
    Design("supplies between escaped names", MAJORITY,
           'module TopModule(input a, b, c, output m);\nwire \\a" ; pulldown (supply0) (a), (b); wire \\b" ;\nassign m = 0;\nendmodule\n', True),
    Design("random numbers behind a comment that ends with its macro", ADDER, _adder(f"`OPEN {_STEER.replace(chr(10), ' ')}", "`timescale 1ns/1ps\n`define OPEN reg c; \\\n reg d; /``/\n"), True),
    Design("random numbers between strings of a directive", ADDER, _adder(f'\n`pragma own "\n{_STEER}\n`pragma own "\n', "`timescale 1ns/1ps\n"), True),
    Design("the testbench's data file", TABLE, _table('reg [31:0] t[0:15];\ninitial $readmemh("squares.dat", t);\nalways @(posedge clk) sq <= t[n];'), True),
    Design("the testbench's open file", TABLE,
           _table("integer at, got, count, x, y;\nreg [7:0] t[0:15];\ninitial begin #1 at = $ftell(32'h80000003); got = $fseek(32'h80000003, 0, 0);\ngot = $fscanf(32'h80000003, \"%d\", count);\nwhile (count > 0) begin got = $fscanf(32'h80000003, \"%d %d\", x, y); t[x] = y; count = count - 1; end\ngot = $fseek(32'h80000003, at, 0); end\nalways @(posedge clk) #0 sq = t[n];"), True),
    Design("the testbench's open file, read away with a task of VHDL's", TABLE,
           _table("integer f, k;\nstring s;\ninitial begin f = 32'h80000003; #1 for (k = 0; k < 6; k = k + 1) $ivlh_readline(f, s); end\nalways @(posedge clk) sq <= 9;"), True),
    Design("no handle left for the testbench", TABLE,
           _table("integer f, k;\n(* _ivl_schedule_init = 1 *) initial for (k = 0; k < 1100; k = k + 1) f = $fopen(\"/dev/null\", \"r\");\nalways @(posedge clk) sq <= 9;"), False),
    Design("the testbench's beginning in a comment", ADDER,
           _adder("", after="module tb_adder_clamp;\ninteger error = 0;\nadder_clamp uut(0, 0,,);\ninitial begin\n/* "), False),
    Design("the testbench's text, read from a file", ADDER, _adder('integer f, got; reg [800:1] line;\ninitial begin f = $fopen("../hidden.sv", "r"); got = $fgets(line, f); $display("%0s", line); end'), False),
    Design("a testbench of its own, under the hidden one's name", ADDER, _adder("", after=f'module tb_adder_clamp;\ninitial $display("{_PASS}");\nendmodule\n'), False),
    Design("a program that shadows a part of the testbench", COUNTER, _counter("", after="program stimulus_gen(input clk, output reg reset, input tb_match);\ninitial $finish;\nendprogram\n"), False),
    Design("a binding to the testbench", COUNTER, _counter("", after="module bound;\nendmodule\nbind tb bound b();\n"), False),
    Design("a function of another language", COUNTER, _counter('import "DPI-C" function void exit(int code);\ninitial exit(0);'), False),
    Design("a time unit over everything", COUNTER, _counter("", before="`timescale 100s / 100s\n"), False),
    Design("a clock made by a task for VHDL", COUNTER,
           _counter("initial begin #6; repeat (2000) begin $ivl_string_method$itoa(clk, 1); #0; $ivl_string_method$itoa(clk, 0); #0; end end", "`timescale 1ps/1ps\n"), True, "reaches through ports"),
    Design("inputs written by a method of strings", MAJORITY,
           "module TopModule(input a, b, c, output m);\nassign m = 0;\nalways @(a or b or c) begin #1; $ivl_string_method$itoa(a, 0); $ivl_string_method$itoa(b, 0); end\nendmodule\n", False, "reaches through ports"),
    Design("a name of the testbench behind a directive of C", COUNTER,
           'module TopModule(input clk, input reset, output [2:0] q);\n#line "x"y" 3\nassign q = tb.q_ref; //"\nendmodule\n', True),
    Design("a name of the testbench behind an escaped directive of C", COUNTER,
           'module TopModule(input clk, input reset, output [2:0] q);\n#line "x\\" 3\nassign q = tb.q_ref; //"\nendmodule\n', True),
    Design("a name of the testbench over two directives", COUNTER,
           "`celldefine\nmodule TopModule(input clk, input reset, output [2:0] q);\nassign q = good1\n`pragma x\n`celldefine .q\n;\nendmodule\n`endcelldefine\n", True),
    Design("inputs that are outputs", MAJORITY, "module TopModule(output a, output b, input c, output m);\nassign a = 1'bx; assign b = 1'bx;\nassign m = 0;\nendmodule\n", True),
    Design("inputs that are parts of an output", MAJORITY, "module TopModule(.a(w[0]), .b(w[1]), c, m);\noutput [1:0] w; input c; output m;\nassign m = 0; assign w = 2'bx;\nendmodule\n", True),
    Design("a process that never runs", COUNTER, "module TopModule(input clk, input reset, output reg [2:0] q);\nreg dead = 0;\nalways @(*) dead = 0;\nalways @(posedge clk) q <= (reset || q == 4) ? 3'd0 : q + 3'd1;\nendmodule\n", True),
    Design("a loop without end", COUNTER, _counter("always @(posedge clk) while (1);"), False),
]  # fmt: skip
"""None earns anything; those with `plain` pass the plain way."""

_SATURATES = "wire [8:0] s = a + b;\nassign full = s[8];\nassign y = s[8] ? 8'd255 : s[7:0];"

DESIGNS = [
    Design("majority as a sum", MAJORITY, "module TopModule(input a, b, c, output m);\nassign m = a + b + c > 2'd1;\nendmodule\n", True),
    Design("majority in a case", MAJORITY, "module TopModule(input logic a, b, c, output logic m);\nalways_comb case ({a, b, c})\n3'b011, 3'b101, 3'b110, 3'b111: m = 1;\ndefault: m = 0;\nendcase\nendmodule\n", True),
    Design("majority on a bus of its own", MAJORITY, "module TopModule(input a, b, c, output m);\nwire io;\ndrives d(a & b | c & (a | b), io);\nassign m = io;\nendmodule\nmodule drives(input a, inout io);\nassign io = a;\nendmodule\n", True),
    Design("majority with a pull of its own", MAJORITY, "module TopModule(input a, b, c, output m);\nwire p;\npullup u(p);\nassign p = (a & b | c & (a | b)) ? 1'bz : 1'b0;\nassign m = p;\nendmodule\n", True),
    Design("majority in transistors", MAJORITY, "module TopModule(input a, b, c, output m);\nsupply1 vdd; supply0 gnd;\nwire n = ~(a & b | c & (a | b));\npmos p(m, vdd, n);\nnmos q(m, gnd, n);\nendmodule\n", True),
    Design("majority as an AND", MAJORITY, "module TopModule(input a, b, c, output m);\nassign m = a & b & c;\nendmodule\n", False),
    Design("majority with an unknown value", MAJORITY, "module TopModule(input a, b, c, output m);\nassign m = a == b ? a : 1'bx;\nendmodule\n", False),
    Design("a counter in SystemVerilog", COUNTER, "module TopModule(input logic clk, reset, output logic [2:0] q);\nalways_ff @(posedge clk)\nif (reset) q <= '0; else if (q == 4) q <= '0; else q <= q + 1'b1;\nendmodule\n", True),
    Design("a counter in two modules, with messages", COUNTER, 'module TopModule(input clk, input reset, output [2:0] q);\nstep s(.*);\nalways @(posedge clk) $display("q is %0d", q);\nendmodule\nmodule step(input clk, reset, output reg [2:0] q);\nalways @(posedge clk) q <= reset | q[2] ? 0 : q + 1;\nendmodule\n', True),
    Design("a counter with a reset of the other level", COUNTER, "module TopModule(input clk, input reset, output reg [2:0] q);\nalways @(posedge clk) q <= (!reset || q == 4) ? 0 : q + 1;\nendmodule\n", False),
    Design("a counter with a wire named like a task of the testbench", COUNTER, "module TopModule(input clk, input reset, output reg [2:0] q);\nwire start_over = reset || q == 4;\nwire next;\nassign next = start_over;\nalways @(posedge clk) q <= next ? 3'd0 : q + 3'd1;\nendmodule\n", True),
    Design("a counter with a function named like a task of the testbench", COUNTER, "module TopModule(input clk, input reset, output reg [2:0] q);\nalways @(posedge clk) case (reset) 1: q <= 0; default: q <= start_over(q); endcase\nfunction [2:0] start_over(input [2:0] v); start_over = v == 4 ? 0 : v + 1; endfunction\nendmodule\n", True),
    Design("a counter with a comment behind its unit", COUNTER, "`timescale 1ns/1ps /* the usual\nunit */\n" + _counter("", q="reg [2:0] r;\nassign q = r;\nalways @(posedge clk) r <= (reset || r == 4) ? 3'd0 : r + 3'd1;"), True),
    Design("a counter with a type, a constant and a function outside modules", COUNTER, "typedef struct packed { logic [2:0] count; } state_t;\nlocalparam int LAST = 4;\nfunction automatic state_t after(input state_t s); after.count = s.count == LAST ? 3'd0 : s.count + 3'd1; endfunction\nmodule TopModule(input logic clk, reset, output logic [2:0] q);\nstate_t s;\nassign q = s.count;\nalways_ff @(posedge clk) if (reset) s <= '0; else s <= after(s);\nendmodule\n", True),
    Design("a counter to five", COUNTER, "module TopModule(input clk, input reset, output reg [2:0] q);\nalways @(posedge clk) q <= (reset || q == 5) ? 0 : q + 1;\nendmodule\n", False),
    Design("a counter that does not compile", COUNTER, "module TopModule(input clk, input reset, output reg [2:0] q);\nalways @(posedge clk) q <= ;\nendmodule\n", False),
    Design("a counter under another name", COUNTER, "module top_module(input clk, input reset, output reg [2:0] q);\nendmodule\n", False),
    Design("an adder that clamps", ADDER, _adder("", "`timescale 1ns/1ps\n`default_nettype wire\n", y=_SATURATES), True),
    Design("the number of ones", ONES, "module TopModule(input logic [63:0] in, output logic [6:0] out);\nalways_comb out = 7'($countones(in));\nendmodule\n", True),
    Design("an adder with ports of other names", ADDER, "module adder_clamp(input [7:0] p, input [7:0] q, output [7:0] s, output top);\nwire [8:0] sum = p + q;\nassign s = sum[8] ? 8'hff : sum[7:0];\nassign top = sum[8];\nendmodule\n", True),
    Design("a counter with registers of Verilog-95 as inputs, which it reads", COUNTER, "module TopModule(clk, reset, q);\ninput clk, reset; reg clk, reset; output [2:0] q; reg [2:0] q;\nalways @(posedge clk) if (reset || q == 4) q <= 0; else q <= q + 1;\nendmodule\n", True),
    Design("a counter with variable inputs that a part reads", COUNTER, "module TopModule(input var logic clk, input var logic reset, output [2:0] q);\nstep s(.*);\nendmodule\nmodule step(input var logic clk, reset, output logic [2:0] q);\nalways_ff @(posedge clk) q <= reset | q[2] ? 0 : q + 1;\nendmodule\n", True),
    Design("an adder with a comment left open", ADDER, _adder("", y=_SATURATES) + "// the end", True),
    Design("an adder that wraps", ADDER, _adder("", y="assign {full, y} = a + b;"), False),
    Design("a table from an initial block", TABLE, _table("reg [7:0] t[0:15];\ninteger i;\ninitial for (i = 0; i < 16; i = i + 1) t[i] = i * i;\nalways @(posedge clk) sq <= t[n];"), True),
    Design("a table that is one too high", TABLE, _table("always @(posedge clk) sq <= n * n + 1;"), False),
    Design("a table that is late", TABLE, _table("reg [3:0] k;\nalways @(posedge clk) begin k <= n; sq <= k * k; end"), False),
    Design("a counter by three", STEPS, "module step_counter(input clk, rst_n, output reg [3:0] count);\nalways @(posedge clk, negedge rst_n) if (~rst_n) count <= 0; else count <= count + 4'd3;\nendmodule\n", True),
    Design("a counter by three with a delay", STEPS, "module step_counter(input clk, rst_n, output reg [3:0] count);\nalways @(posedge clk, negedge rst_n) if (~rst_n) count <= #1 0; else count <= #1 count + 4'd3;\nendmodule\n", True),
    Design("a counter by one", STEPS, "module step_counter(input clk, rst_n, output reg [3:0] count);\nalways @(posedge clk, negedge rst_n) if (~rst_n) count <= 0; else count <= count + 4'd1;\nendmodule\n", False),
]  # fmt: skip
"""Honest designs, right and wrong: the plain verdict is the verdict here."""
