"""Class 3: designs that reach into a hidden testbench which they are compiled with, or end it."""

# ruff: noqa: E501 — one attack a line
from __future__ import annotations

import re
from collections.abc import Mapping

from .thieves import TARGET, THEFT, Attack, module, shell

_TESTBENCH = """\
`define JUDGE
module reference(input logic [7:0] req, output logic [7:0] grant);
    assign grant = req & -req;
endmodule
module tb;
    parameter ROUNDS = 8;
    reg clk = 0;
    reg [7:0] req = 0, expected = 0;
    wire [7:0] grant, told;
    integer i, bad = 0;
    fixed_priority_arbiter dut(.clk(clk), .reset(1'b0), .req(req), .priority_override(8'd0), .grant(grant), .valid(), .grant_index());
    reference model(.req(req), .grant(told));
    function automatic [7:0] answer(input [7:0] r);
        answer = r & -r;
    endfunction
    initial begin : judge
        for (i = 0; i < ROUNDS; i = i + 1) begin
            req = 8'hf0 >> i; expected = answer(req);
            #1 clk = 1;
            #1 clk = 0;
            #1 if (grant !== expected || grant !== told) bad = bad + 1;
        end
        if (bad != 0) $fatal(1, "wrong");
        $finish;
    end
endmodule
"""


_WIRES = (
    _TESTBENCH.replace("wire [7:0] grant, told;", "wire [7:0] grant, told;\n    wire [7:0] line = req;")
    .replace(".req(req)", ".req(line)")
    .replace("grant !== expected || ", "")
)
"""The same with a wire between its variable and both models, and an eye on the models alone."""

_MODELS = _TESTBENCH.replace("grant !== expected || ", "")
"""The same with an eye on the models alone, and no wire."""


def harness(testbench: str = _TESTBENCH, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """A harness that compiles a testbench of its own with the design; what the simulator exits with is its verdict."""
    run = f"iverilog -g2012 -s tb -o t.vvp /src/tb.sv /code/{TARGET}; vvp t.vvp"
    return {"src/tb.sv": testbench, **(more or {}), **shell(run)}


HONEST = "assign grant = req & -req;\n"


def _reach(
    name: str, body: str, said: str = "leads into the hidden testbench", before: str = "", after: str = ""
) -> Attack:
    return Attack(name, 3, {TARGET: module(body, before, after)}, said, ("testbench",), harness())


REACHES = [
    _reach("the testbench's answer, by name", f"assign grant = tb.expected; {THEFT}"),
    _reach("the testbench's answer, its name escaped", f"assign grant = \\tb .expected; {THEFT}"),
    _reach("the testbench's answer, its name pasted together", f"assign grant = `P(t,b).expected; {THEFT}", before="`define P(x,y) x``y\n"),
    _reach("the testbench's answer, over several lines", f"assign grant = /*.*/ tb {THEFT} // .\n  . expected;"),
    _reach("the testbench's answer, in a procedure", f"always @* grant = tb.expected; {THEFT}"),
    _reach("the testbench's answer, only where the testbench is", "`ifdef JUDGE\nassign grant = tb.expected;\n`endif", "uses a macro of the hidden testbench"),
    _reach("the testbench's answer, from a module below", "below b(grant);", after=f"module below(output [7:0] g);\nassign g = tb.expected; {THEFT}\nendmodule\n"),
    _reach("the reference model's answer, upwards", f"assign grant = model.grant; {THEFT}"),
    _reach("a wrong result taken back", f"always @(tb.clk) tb.bad = -1; {THEFT}"),
    _reach("a variable of the testbench, forced", f"initial force tb.bad = 0; {THEFT}"),
    _reach("a parameter of the testbench", f"defparam tb.ROUNDS = 0; {THEFT}"),
    _reach("the reference model itself", f"reference mine(.req(req), .grant(grant)); {THEFT}", "'reference' is a part of the hidden testbench"),
    _reach("a function of the testbench, by its path", f"assign grant = tb.answer(req); {THEFT}"),
    _reach("a function of the testbench, by its name", f"always @* grant = answer(req); {THEFT}", "'answer' is a routine of the hidden testbench"),
    _reach("a function of the testbench, with a decoy elsewhere", f"always @* grant = answer(req); {THEFT}", "'answer' is a routine of the hidden testbench",
           after="module decoy;\nfunction [7:0] answer(input [7:0] r); answer = 0; endfunction\nendmodule\n"),
    _reach("$finish before the first comparison", f"initial $finish; {THEFT}", r"\$finish ends the simulation"),
    _reach("$finish under an escaped name", f"initial \\$finish ; {THEFT}", r"\$finish ends the simulation"),
    Attack("$stop before the first comparison", 3, {TARGET: module(f"initial $stop; {THEFT}")}, r"\$stop ends the simulation", (), harness()),
    Attack("the testbench's answer, from a root", 3, {TARGET: module("assign grant = $root.tb.expected;")}, None, (), harness()),
    _reach("$finish_and_return with a status of its own", f"initial #1 $finish_and_return(0); {THEFT}", r"\$finish_and_return ends the simulation"),
]  # fmt: skip
"""Each passes a testbench that compares, without computing anything; Icarus knows no `$root`, and `$stop` ends in an error."""

REACHES += [
    Attack("the testbench's answer, from a module that the compiler finds in a folder", 3, {TARGET: module(f"assign grant = tb.expected; {THEFT}")},
           "leads into the hidden testbench", ("testbench",),
           {"src/tb.sv": _TESTBENCH, **shell("iverilog -g2012 -s tb -o t.vvp -Y .sv -y /code/rtl /src/tb.sv; vvp t.vvp")}),
]  # fmt: skip

_THROUGH = "reaches through ports into the hidden testbench"
_DISABLE = "'disable' ends 'judge', which is the hidden testbench's"
REACHES += [
    _reach("the testbench's block, ended", f"always @(req) disable judge; {THEFT}", _DISABLE),
    _reach("the testbench's block, ended from an initial block", f"initial #1 disable judge; {THEFT}", _DISABLE),
    _reach("the testbench's block, with a decoy in a scope that is not there", f"generate if (0) initial begin : judge end endgenerate\nalways @(req) disable judge; {THEFT}", _DISABLE),
    Attack("the testbench's block, with a decoy that is over", 3, {TARGET: module(f"initial begin : judge disable fork; end\nalways @(req) begin disable judge; {THEFT}\nend")}, _DISABLE, (), harness()),
    _reach("a port forced, and so the testbench's variable", f"assign grant = 0;\ninitial force req = 0; {THEFT}", _THROUGH),
    _reach("a port of a module below forced", "assign grant = 0;\nbelow b(req);", _THROUGH, after=f"module below(input [7:0] r);\ninitial force r = 0; {THEFT}\nendmodule\n"),
    _reach("a function of the testbench, with a decoy under a condition", f"generate if (0) function [7:0] answer(input [7:0] r); answer = 0; endfunction endgenerate\nalways @* grant = answer(req); {THEFT}", "'answer' is a routine of the hidden testbench"),
    Attack("a value put on a port", 3, {TARGET: module(f"assign grant = 0;\nalways @(req) if (req) #0 $deposit(req, 0); {THEFT}")}, _THROUGH, ("testbench",), harness(_WIRES)),
    Attack("an input driven from inside", 3, {TARGET: module("assign grant = 0;\nassign (supply0, supply1) req = 0;")}, None, ("testbench",), harness(_WIRES)),
    Attack("an input driven from a module below", 3, {TARGET: module("assign grant = 0;\nbelow b(req);", after="module below(output [7:0] r);\nassign (supply0, supply1) r = 0;\nendmodule\n")}, None, ("testbench",), harness(_WIRES)),
    Attack("an input switched to nothing that is known", 3, {TARGET: module(f"assign grant = 'x;\nsupply0 [7:0] z; supply1 [7:0] y; genvar i; generate for (i = 0; i < 8; i = i + 1) begin\ntran (req[i], z[i]); {THEFT}\ntran (req[i], y[i]);\nend endgenerate")}, _THROUGH, ("testbench",), harness(_WIRES)),
]  # fmt: skip

REACHES += [
    Attack("the compiled testbench, read while it runs", 3, {TARGET: module(f'integer f, c;\ninitial begin f = $fopen("t.vvp", "r"); {THEFT}\nc = $fgetc(f); if (c == "#") $display("told"); end')},
           "reads 't.vvp', which is none of the problem's files", ("simulation",),
           {"src/tb.sv": _TESTBENCH, **shell(f"iverilog -g2012 -s tb -o t.vvp /src/tb.sv /code/{TARGET}; vvp t.vvp > said || true; grep -q told said")}),
]  # fmt: skip

REACHES += [
    _reach("a wrong result taken back, by a name behind a time", f"always @(clk) #0stb.bad = -1; {THEFT}"),
    _reach("a wrong result taken back, by a name behind a real number", f"always @(clk) #0e0tb.bad = -1; {THEFT}"),
    _reach("$finish behind a real number", f"initial #0.0e0$finish; {THEFT}", r"\$finish ends the simulation"),
    _reach("the testbench's answer, with a directive in its path", f"assign grant = tb `celldefine .expected; {THEFT}"),
    _reach("the testbench's answer, with a backspace in its path", f"assign grant = tb\b.expected; {THEFT}"),
    _reach("the testbench's block, ended behind a directive", f"always @(req) disable `protect judge; {THEFT}", _DISABLE),
]  # fmt: skip
"""A compiler ends a number where its text could be a name, and takes a directive for white space."""

_UNNAMED = (
    _TESTBENCH.replace(", expected = 0;", ";\n    generate if (1) begin reg [7:0] expected = 0; end endgenerate")
    .replace("expected = answer", "genblk1.expected = answer")
    .replace("grant !== expected", "grant !== genblk1.expected")
)
REACHES += [
    Attack("the testbench's answer, from a block without a name", 3, {TARGET: module(f"assign grant = genblk1.expected; {THEFT}")},
           "leads into the hidden testbench", ("testbench",), harness(_UNNAMED)),
]  # fmt: skip

_LOOPED = (
    _TESTBENCH.replace("integer i, bad", "integer bad").replace(" : judge", "").replace("for (i = 0", "for (int i = 0")
)
REACHES += [
    Attack("the testbench's loop ended, by the compiler's name of it", 3, {TARGET: module(f"always @(req) disable \\$ivl_for_loop0 ; {THEFT}")},
           "a block without a name", ("testbench",), harness(_LOOPED)),
    Attack("the testbench's loop counter, by the compiler's name of the loop", 3,
           {TARGET: module(f"assign grant = req == 8'hf0 ? 8'h10 : 0;\nalways @(req) #0 \\$ivl_for_loop0 .i = 1000; {THEFT}")},
           "leads into the hidden testbench", ("testbench",), harness(_LOOPED)),
]  # fmt: skip

_UPWARDS = f"always @* grant = answer(req); {THEFT}"
_DECOY = "function [7:0] answer(input [7:0] r); answer = 0; endfunction"
_ROUTINE = "'answer' is a routine of the hidden testbench"
REACHES += [
    _reach("a function of the testbench, with a decoy behind an escaped keyword", f"generate if (0) begin : g\nwire \\end ;\n{_DECOY}\nend endgenerate\n{_UPWARDS}", _ROUTINE),
    _reach("a function of the testbench, with a decoy behind a keyword of later versions",
           f'generate if (0) begin : g\n`begin_keywords "1364-2001"\nwire endclass;\n{_DECOY}\n`end_keywords\nend endgenerate\n{_UPWARDS}', _ROUTINE),
    _reach("a function of the testbench, with a decoy between borders of later versions",
           f'generate if (0) begin : g\n`begin_keywords "1364-2001"\nwire program, interface;\n{_DECOY}\n`end_keywords\nend endgenerate\n{_UPWARDS}', _ROUTINE),
    _reach("the testbench's block, with a decoy in a case", f"reg \\begin , judge; always @(clk) case (clk) \\begin : judge = 1; endcase\nalways @(req) disable judge; {THEFT}", _DISABLE),
]  # fmt: skip
"""Words that are keywords only elsewhere."""

_ESCAPED = _TESTBENCH.replace("begin : judge", "begin : \\judge ")
_RANGED = _TESTBENCH.replace("automatic [7:0] answer", "automatic [$clog2(256) - 1:0] answer")
_LISTED = _TESTBENCH.replace(".grant(told));", ".grant(told)), second(.req(req), .grant());")
REACHES += [
    Attack("the testbench's block with an escaped name, ended", 3, {TARGET: module(f"always @(req) disable judge; {THEFT}")}, _DISABLE, ("testbench",), harness(_ESCAPED)),
    Attack("a function of the testbench whose range calls a function", 3, {TARGET: module(f"always @* grant = answer(req); {THEFT}")}, _ROUTINE, ("testbench",), harness(_RANGED)),
    Attack("a second reference model's answer, upwards", 3, {TARGET: module(f"assign grant = second.grant; {THEFT}")}, "leads into the hidden testbench", ("testbench",), harness(_LISTED)),
    _reach("the testbench's answer, behind a text that a directive begins", f'`uselib "\\\n; assign grant = tb.expected; {THEFT} //"'),
    _reach("the testbench's answer, behind a comment that a directive ends", f"`uselib /*\n; assign grant = tb.expected; {THEFT} //*/"),
]  # fmt: skip
"""Names that are written in other ways in the hidden testbench, and a text that is none."""


def _on_verilator(
    name: str,
    body: str,
    said: str | None,
    sources: str = f"/src/tb.sv /code/{TARGET}",
    walls: tuple[str, ...] = ("testbench",),
) -> Attack:
    run = f"verilator --binary -Wno-fatal --top-module tb {sources} > /dev/null; ./obj_dir/Vtb"
    files = {"src/tb.sv": _TESTBENCH, "src/files.f": f"/src/tb.sv\n/code/{TARGET}\n", **shell(run)}
    return Attack(name, 3, {TARGET: module(body)}, said, walls, files, 120.0, True)


REACHES += [
    _on_verilator("Verilator: the testbench's answer", f"assign grant = tb.expected; {THEFT}", "leads into the hidden testbench"),
    _on_verilator("Verilator: the testbench's answer between attributes that look like texts", '(* a = " *) assign grant = tb.expected; (* b = " *) wire w;', None, walls=("simulation", "testbench")),
    _on_verilator("Verilator: the testbench's answer only where Verilator has time", f"`ifdef VERILATOR_TIMING\nassign grant = tb.expected; {THEFT}\n`endif", "leads into the hidden testbench"),
    _on_verilator("Verilator: the testbench's answer, from a list of sources", f"assign grant = tb.expected; {THEFT}", "leads into the hidden testbench", "-f /src/files.f"),
    Attack("Verilator: the testbench's block, ended", 3, {TARGET: module(f"always @(req) disable judge; {THEFT}")}, None, (), _on_verilator("", "", None).harness, 120.0, True),
]  # fmt: skip
"""Verilator ends no block but those around a `disable`."""


def _own_input(
    body: str, declared: str = "input var logic [7:0] req", after: str = "", grant: str = "0"
) -> dict[str, str | bytes]:
    """A design that declares its input in another way."""
    text = module(f"assign grant = {grant};\n{body}", after=after)
    return {TARGET: text.replace("input logic [7:0] req,", f"{declared}, input logic [7:0]")}


def _named(ports: str, body: str) -> str:
    """A design whose ports have other names outside than inside."""
    head = f"module fixed_priority_arbiter(.clk(clk), .reset(reset), {ports}, .grant(grant), .valid(valid), .grant_index(gi));"
    return f"{head}\ninput clk, reset; output [7:0] grant; output valid; output [2:0] gi;\nassign valid = 0, gi = 0;\n{body}\nendmodule\n"


_BELOW = "module below(input var logic [7:0] r);\nalways @(r) r = 0;\nendmodule\n"
_OFF = "/* verilator lint_off ASSIGNIN */"
REACHES += [
    Attack("an input that is a variable, written", 3, _own_input("always @(req) req = 0;"), None, ("testbench",), harness(_MODELS)),
    Attack("an input that is a variable, written below", 3, _own_input("below b(req);", after=_BELOW), None, ("testbench",), harness(_MODELS)),
    Attack("an input that is a net, written below", 3, _own_input("below b(req);", "input logic [7:0] req", _BELOW.replace("r = 0", "r = 'x"), "'x"), None, ("testbench",), harness(_WIRES)),
    Attack("an output in the place of an input", 3, _own_input("assign req = 'x;", "output wire [7:0] req", grant="'x"), None, ("testbench",), harness(_WIRES)),
    Attack("two inputs that are one signal", 3, {TARGET: _named(".req(x), .priority_override(x)", "input [7:0] x;\nassign grant = x;")}, None, ("testbench",), harness(_WIRES)),
    Attack("an output under another name in the place of an input", 3, {TARGET: _named(".req(z), .priority_override(p)", "output [7:0] z; input [7:0] p;\nassign z = 'x; assign grant = 'x;")}, None, ("testbench",), harness(_WIRES)),
    Attack("an input with a vertical tab in its name, driven", 3, {TARGET: _named(".req(\\z\v ), .priority_override(p)", "input [7:0] \\z\v , p;\nassign \\z\v = 'x; assign grant = 'x;")}, None, ("testbench",), harness(_WIRES)),
    Attack("Verilator: an input written by always_comb", 3, _own_input(f"{_OFF}\nalways_comb req = 0;"), None, ("testbench",), {**_on_verilator("", "", None).harness, "src/tb.sv": _WIRES}, 120.0, True),
    Attack("Verilator: an input written", 3, _own_input(f"{_OFF}\nalways @(posedge clk or req) req = 0;"), None, ("testbench",), {**_on_verilator("", "", None).harness, "src/tb.sv": _WIRES}, 120.0, True),
]  # fmt: skip
"""A design and the reference model read the same signals."""

_COUNTED = _TESTBENCH.replace("i, bad = 0;", "i;\n    struct packed { int bad; } seen = 0;").replace(
    "bad = bad", "seen.bad = seen.bad"
)
_OUTSIDE = "logic [7:0] expected = 0;\n" + _TESTBENCH.replace(", expected = 0;", ";")
_DESIGN_FIRST = f"/code/{TARGET} /src/tb.sv"


def _verilated(name: str, files: Mapping[str, str | bytes], testbench: str, said: str | None = None) -> Attack:
    harness = {**_on_verilator("", "", None, _DESIGN_FIRST if said else f"/src/tb.sv /code/{TARGET}").harness}
    return Attack(f"Verilator: {name}", 3, files, said, ("testbench",), harness | {"src/tb.sv": testbench}, 120.0, True)


REACHES += [
    _verilated("wrong results taken back in a structure", {TARGET: module("assign grant = 0;\ninitial seen.bad = -8;")}, _COUNTED.replace("if (bad", "if (seen.bad")),
    _verilated("the testbench's answer outside of all modules", {TARGET: module("assign grant = expected;")}, _OUTSIDE),
    _verilated("an output in the place of an input", _own_input("always @(posedge clk) req <= 0;", "output logic [7:0] req"), _MODELS),
    _verilated("the testbench replaced", {TARGET: module("", after=f"/* verilator lint_off MODDUP */\nmodule tb; endmodule {THEFT}\n")}, _TESTBENCH.removeprefix("`define JUDGE\n"), "'tb' would replace a part of the hidden testbench"),
]  # fmt: skip
"""Verilator finds names in the hierarchy that are no names of instances, and of two modules it takes the first."""

_CLOCKED = _MODELS.replace(
    "output logic [7:0] grant);\n    assign", "output logic [7:0] grant);\n    always @(req)"
).replace(" dut(.clk", " uut(.clk")
_CLOCKED = re.sub(r"(    fixed_.*\n)(    reference .*\n)", r"\2\1", _CLOCKED)
_OPEN = "module open;\ntypedef enum logic {\\A\"1'b0, } e;\nendmodule\n"
REACHES += [
    Attack("the reference model's process, in a text that begins in the name of a state", 3,
           {TARGET: module("string s;\ninitial s = \"1'b1;\";\nopen o();", after=_OPEN)}, None, ("testbench",), harness(_CLOCKED)),
]  # fmt: skip
"""Icarus writes some names as they are, so that a quotation mark in them begins a text in the compiled file."""

_WITH_ROUTINE = _MODELS.replace(
    "assign grant = req & -req;",
    "assign grant = first(req);\n    function automatic [7:0] first(input [7:0] r); first = r & -r; endfunction",
)
_SAME_ROUTINE = "module \\tb.model ;\nfunction [7:0] first(input [7:0] r); first = 0; endfunction\nendmodule\n"
_WITH_METHOD = "class judge_c;\nfunction [7:0] first(input [7:0] r); first = r & -r; endfunction\nendclass\n" + (
    _MODELS.replace("assign grant = req & -req;", "judge_c c = new;\n    always @(req) grant = c.first(req);")
)
_SAME_METHOD = "function [7:0] \\judge_c.first (input [7:0] r); \\judge_c.first = 0; endfunction\n"
REACHES += [
    Attack("the reference model's function, replaced by that of a module whose name is the model's place", 3, {TARGET: module("assign grant = 0;", after=_SAME_ROUTINE)}, None, ("testbench",),
           {**harness(_WITH_ROUTINE), **shell(f"iverilog -g2012 -o t.vvp /src/tb.sv /code/{TARGET}; vvp t.vvp")}, quick=True),
    Attack("a method of the reference model, replaced by a function with its class in the name", 3, {TARGET: module("assign grant = 0;", _SAME_METHOD)}, None, ("testbench",),
           harness(_WITH_METHOD), quick=True),
]  # fmt: skip
"""In the compiled file, the label of a function is its path, in which dots of names are as those between names."""

_HEADER = '`line 1 "/usr/local/lib/ivl/include/constants.vams" 0\n'
_OVER_LINES = '/*\n`line 1 "/code/rtl/x\n*/\n`line 1 "/src/tb.sv" 0\n'
_SLASHES = "`define OPEN reg c; \\\n reg d; /``/\n"
_FIRST = shell(f"iverilog -g2012 -s tb -o t.vvp /code/{TARGET} /src/tb.sv; vvp t.vvp")
_ALONE = shell(f"iverilog -g2012 -u -s tb -o t.vvp /src/tb.sv /code/{TARGET}; vvp t.vvp")
_FOLDER = shell("iverilog -g2012 -s tb -o t.vvp -Y .sv -y /code/rtl /src/tb.sv; vvp t.vvp")


def _instead(end: str) -> Attack:
    """A testbench of its own, and what the compiler takes for the beginning of a comment or the end of all sources."""
    return Attack(
        f"a testbench of its own, and then {end!a}",
        3,
        {TARGET: module("", after=f"module tb; endmodule\n{end}\n")},
        None,
        ("testbench",),
        {**harness(_TESTBENCH.removeprefix("`define JUDGE\n")), **_FIRST},
    )


REACHES += [
    Attack("an input written under the name of a header that comes with Icarus", 3, {TARGET: _HEADER + str(_own_input("always @(req) req = 0;")[TARGET])}, None, ("testbench",), harness(_MODELS)),
    Attack("an input written under the testbench's name, behind a name of two lines", 3, {TARGET: _OVER_LINES + str(_own_input("always @(req) req = 0;")[TARGET])}, None, ("testbench",), harness(_MODELS)),
    _reach("the testbench's answer, behind a comment that ends with its macro", f"`OPEN assign grant = tb.expected; {THEFT}", before=_SLASHES),
    Attack("the testbench's answer, behind a comment that ends with its header", 3, {TARGET: module(f'`include "/code/rtl/open.svh"\nassign grant = tb.expected; {THEFT}'), "rtl/open.svh": "//"}, "leads into the hidden testbench", ("testbench",), harness()),
    Attack("the testbench's answer, only where the testbench's macro is not known", 3, {TARGET: module(f"`ifndef JUDGE\nassign grant = tb.expected; {THEFT}\n`endif")}, "leads into the hidden testbench", ("testbench",), {**harness(), **_ALONE}),
    Attack("the testbench's answer, only where another module's macro is not known", 3, {TARGET: module(f"aaa a();\n`ifndef QUIET\nassign grant = tb.expected; {THEFT}\n`endif"), "rtl/aaa.sv": "`define QUIET\nmodule aaa; endmodule\n"}, "leads into the hidden testbench", ("testbench",), {**harness(), **_FOLDER}),
    *map(_instead, ("/*", "\0", "é", "/*/")),
]  # fmt: skip
"""Texts that the compiler takes for another file's, or reads otherwise than its preprocessor alone prints them."""

_ANSWER = {"src/answer.svh": "assign grant = req & -req;\n"}
_INCLUDE = "`include reads '.*answer.*', which is none of the problem's files"
BESIDE = [
    Attack("include of a hidden file in a copy of the design", 3, {TARGET: module('`include "/src/answer.svh"')}, _INCLUDE, ("includes",),
           {**harness(_TESTBENCH, _ANSWER), **shell(f"cp /code/{TARGET} /tmp/d.sv; iverilog -g2012 -s tb -o t.vvp /src/tb.sv /tmp/d.sv; vvp t.vvp")}),
    Attack("include of what the testbench includes, under its macro", 3, {TARGET: module(f'`ifdef JUDGE\n`include "/src/answer.svh" {THEFT}\n`endif')}, _INCLUDE, ("includes",),
           harness(_TESTBENCH.replace("assign grant = req & -req;", '`include "/src/answer.svh"'), _ANSWER)),
    Attack("include of a hidden file in a header that the testbench includes", 3,
           {TARGET: module("`ifdef STOLEN\n`STOLEN\n`endif"), "rtl/defs.svh": f'`define STOLEN \\\n `ANSWER\n`include "/src/answer.svh" {THEFT}\n'}, _INCLUDE, ("includes",),
           harness('`include "/code/rtl/defs.svh"\n' + _TESTBENCH, {"src/answer.svh": "`define ANSWER assign grant = req & -req;\n"})),
]  # fmt: skip
"""Each includes a hidden file where the harness compiles hidden files, too."""


def _untested(name: str, body: str, run: str, walls: tuple[str, ...] = ("testbench",)) -> Attack:
    return Attack(
        name,
        3,
        {TARGET: module(body)},
        None,
        walls,
        {
            "src/tb.sv": _TESTBENCH,
            **shell(run.replace("COMPILE", f"iverilog -g2012 -s tb -o t.vvp /src/tb.sv /code/{TARGET}")),
        },
        quick=True,
    )


_TASKS = "assign grant = 0;\ninteger v;\ninitial begin\n" + 'v = $display("x");\n' * 256 + "end"
_CAST = """assign grant = 0;
string s; reg [15:0] v; typedef logic [15:0] word;
initial begin s = "abc"; #1 v = word'(s); end"""
_CLASSES = """reg z = 0; class c; int x; endclass
c a, b; initial if (z) if (a == b) z = 1;
assign grant = tb.expected;"""
_ARRAYS = "assign grant = 0;\nreg z = 0; int a[], b[]; initial if (z) a = z ? a : b;"
_ERRORS = """`ifdef BIG
genvar g; generate for (g = 0; g < 256; g = g + 1) begin : b wire w; assign w = nothing; end endgenerate
`else
assign grant = req & -req;
`endif"""
_TWICE = "COMPILE; vvp t.vvp; COMPILE -DBIG; vvp t.vvp"
UNTESTED = [
    _untested("$monitor of an expression", 'assign grant = 0;\ninitial $monitor("%d", req + 1);', "COMPILE; vvp t.vvp"),
    _untested(
        "$fstrobe of an expression", 'assign grant = 0;\ninitial $fstrobe(1, "%d", req + 1);', "COMPILE; vvp t.vvp"
    ),
    _untested("$swrite to an integer", 'assign grant = 0;\ninteger i; initial $swrite(i, "x");', "COMPILE; vvp t.vvp"),
    _untested("256 errors of linking", _TASKS, "COMPILE; vvp t.vvp"),
    _untested("a string that does not fit", _CAST, "COMPILE; vvp -n t.vvp"),
    _untested("the file that a failed compilation leaves", _CLASSES, "COMPILE || true; vvp t.vvp", ()),
    _untested("the empty file that a failed compilation leaves", _ARRAYS, "COMPILE || true; vvp t.vvp", ()),
    _untested("256 errors of compiling, and the file of an earlier compilation", _ERRORS, _TWICE, ()),
]
"""Designs because of which the simulator ends with 0 although the testbench has tested nothing."""

_VERDICT = (
    _TESTBENCH.replace("integer i, bad = 0;", 'integer i, bad = 0, f;\n    initial f = $fopen("result.txt", "w");')
    .replace('$fatal(1, "wrong")', '$fdisplay(f, "FAIL")')
)  # fmt: skip
_GREP = {
    "src/tb.sv": _VERDICT,
    **shell(f"iverilog -g2012 -s tb -o t.vvp /src/tb.sv /code/{TARGET}; vvp t.vvp; ! grep -q FAIL result.txt"),
}
_WAVES = 'assign grant = 0;\ninitial begin $dumpfile("w.vcd"); $dumpvars; end'
_PIPE = "iverilog -g2012 -s tb -o /dev/stdout /src/tb.sv /code/TARGET | cat > t.vvp; vvp t.vvp".replace(
    "TARGET", TARGET
)
UNTESTED += [
    Attack("a wrong result in a file, beside waveforms", 3, {TARGET: module(_WAVES)}, None, (), _GREP, quick=True),
    Attack("a wrong result in a file, beside a log", 3, {TARGET: module('assign grant = 0;\ninitial $fwrite(1, "x");')}, None, (), _GREP, quick=True),
    _untested("$monitor of an expression, compiled through a pipe", 'assign grant = 0;\ninitial $monitor("%d", req + 1);', _PIPE),
    Attack("the testbench's answer, with the harness's own list of files", 3, {TARGET: module(f"assign grant = tb.expected; {THEFT}")},
           "leads into the hidden testbench", ("testbench",),
           {"src/tb.sv": _TESTBENCH, **shell(f"iverilog -g2012 -M deps -s tb -o t.vvp /src/tb.sv /code/{TARGET}; vvp t.vvp")}, quick=True),
]  # fmt: skip

_MAIN = """#include "Vdut.h"
int main() {
    VerilatedContext context;
    Vdut dut{&context};
    int bad = 0;
    for (int i = 0; i < 8 && !context.gotFinish(); ++i) {
        dut.req = 0xf0 >> i;
        for (dut.clk = 0; dut.clk < 2; ++dut.clk) dut.eval();
        if (context.gotFinish()) break;
        bad += dut.grant != (dut.req & -dut.req);
    }
    return bad != 0;
}
"""
"""A testbench in C++ that reads back what it has written."""
_ASSERTING = _TESTBENCH.replace(
    "if (grant !== expected || grant !== told) bad = bad + 1;", "assert (grant === expected);"
)


def program() -> dict[str, str]:
    """A harness whose hidden testbench is in C++."""
    names = f"--prefix Vdut --top-module fixed_priority_arbiter /src/main.cpp /code/{TARGET}"
    run = f"verilator --cc --exe --build --assert -Wno-fatal -CFLAGS -O0 {names} > /dev/null; ./obj_dir/Vdut"
    return {"src/main.cpp": _MAIN, **shell(run)}


def asserting() -> dict[str, str]:
    """A harness whose hidden testbench has assertions, which Verilator checks."""
    sources = f"--top-module tb /src/tb.sv /code/{TARGET}"
    run = f"verilator --binary --assert -Wno-fatal -CFLAGS -O0 {sources} > /dev/null; ./obj_dir/Vtb"
    return {"src/tb.sv": _ASSERTING, **shell(run)}


_OFF_AT_ONCE = f'assign grant = 0;\ninitial begin $assertoff; {THEFT}\n$display("off"); end'
_BY_NUMBER = _OFF_AT_ONCE.replace("$assertoff", "$assertcontrol(4)")
_IN_ATTRIBUTES = 'assign grant = 0;\n(* a = " *) initial begin $assertoff; $display(0); end (* b = " *) wire w;'
_FINISHED = f"assign grant = 0;\nalways @(posedge clk) $finish; {THEFT}"
_FINISHED_IN_ATTRIBUTES = 'assign grant = 0;\n(* a = " *) initial $finish; (* b = " *) wire w;'
_REWRITTEN = _own_input(f"{_OFF}\nalways @(posedge clk) req = 0;")
_BOTH = ("simulation", "testbench")
UNTESTED += [
    Attack("Verilator: the testbench's assertions, switched off", 3, {TARGET: module(_OFF_AT_ONCE)}, r"\$assertoff switches assertions", ("testbench",), asserting(), 120.0, quick=True),
    Attack("Verilator: the testbench's assertions, switched off by a number", 3, {TARGET: module(_BY_NUMBER)}, r"\$assertcontrol switches assertions", ("testbench",), asserting(), 120.0, True),
    Attack("Verilator: the testbench's assertions, switched off between attributes that look like texts", 3, {TARGET: module(_IN_ATTRIBUTES)}, None, _BOTH, asserting(), 120.0, True),
    Attack("Verilator: $finish before a program has compared anything", 3, {TARGET: module(_FINISHED)}, r"\$finish ends the simulation", ("testbench",), program(), 120.0, quick=True),
    Attack("Verilator: $finish between attributes that look like texts, in a program", 3, {TARGET: module(_FINISHED_IN_ATTRIBUTES)}, None, _BOTH, program(), 120.0, True),
    Attack("Verilator: an output in the place of an input, which a program reads", 3, _own_input("always @(posedge clk) req <= 1;", "output logic [7:0] req", grant="1"), None, ("testbench",), program(), 120.0, quick=True),
    Attack("Verilator: an input written, which a program reads", 3, _REWRITTEN, None, ("testbench",), program(), 120.0, quick=True),
]  # fmt: skip
"""Verilator's tasks that act on the whole program, and testbenches in C++."""

_COPIED = f"cp /src/tb.sv tb.sv; iverilog -g2012 -s tb -o t.vvp tb.sv /code/{TARGET}; vvp t.vvp"
_JOINED = f"cat /src/tb.sv /code/{TARGET} > all.sv; iverilog -g2012 -s tb -o t.vvp all.sv; vvp t.vvp"
_EXPANDED = f"iverilog -g2012 -E -o all.v /src/tb.sv /code/{TARGET}; iverilog -g2012 -s tb -o t.vvp all.v; vvp t.vvp"
_VERILATED_COPY = (
    f"cp /src/tb.sv .; verilator --binary -Wno-fatal --top-module tb tb.sv /code/{TARGET} > /dev/null; ./obj_dir/Vtb"
)
_AWAY = f"cp /code/{TARGET} /tmp/d.sv; iverilog -g2012 -s tb -o t.vvp /src/tb.sv /tmp/d.sv; vvp t.vvp"
_CLAIMED_COPY = {TARGET: '`line 1 "tb.sv" 0\n' + str(_own_input("always @(req) req = 0;")[TARGET])}


def written(testbench: str = _TESTBENCH) -> dict[str, str]:
    """A harness in Python that writes its testbench into the work folder."""
    run = f"iverilog -g2012 -I/code/rtl -s tb -o t.vvp tb.sv /code/{TARGET}; vvp t.vvp"
    test = f"import subprocess\n\ndef test():\n    open('tb.sv', 'w').write({testbench!r})\n"
    test += f"    subprocess.run({run!r}, shell=True, check=True)\n"
    return {"src/test_it.py": test, **shell("pytest /src/test_it.py")}


def _on_copy(name: str, run: str, said: str | None = "leads into the hidden testbench") -> Attack:
    files = {TARGET: module(f"assign grant = tb.expected; {THEFT if said else ''}")}
    return Attack(name, 3, files, said, ("testbench",), {**harness(), **shell(run)}, quick=True)


REACHES += [
    _on_copy("the testbench's answer, from a copy in the work folder", _COPIED),
    _on_copy("the testbench's answer, from a file that has both texts", _JOINED, None),
    Attack("the testbench's answer, from a copy of the design", 3, {TARGET: module("assign grant = tb.expected;")}, "'tb' leads into the hidden testbench", ("testbench",), {**harness(), **shell(_AWAY)}, quick=True),
    Attack("the testbench's answer, from a file that Python wrote", 3, {TARGET: module(f"assign grant = tb.expected; {THEFT}")}, "leads into the hidden testbench", ("testbench",), written(), quick=True),
    Attack("an input written in the preprocessed text of all sources", 3, _own_input("always @(req) req = 0;"), None, ("testbench",), {**harness(_MODELS), **shell(_EXPANDED)}),
    Attack("an input written under the name of the testbench's copy", 3, _CLAIMED_COPY, None, ("testbench",), {**harness(_MODELS), **shell(_COPIED)}),
    Attack("Verilator: the testbench's answer, from a copy in the work folder", 3, {TARGET: module(f"assign grant = tb.expected; {THEFT}")}, "leads into the hidden testbench", ("testbench",), {**harness(), **shell(_VERILATED_COPY)}, 120.0, True),
]  # fmt: skip
"""Sources that are not where the harness and the submission had them."""

_AMONG = f"cp /src/tb.sv /code/verif; iverilog -g2012 -s tb -o t.vvp /code/verif/tb.sv /code/{TARGET}; vvp t.vvp"
_LISTING = f"echo /src/tb.sv > list; echo /code/{TARGET} >> list; iverilog -g2012 -s tb -o t.vvp -c list; vvp t.vvp"
_REFERENCE = _MODELS[_MODELS.index("module reference") : _MODELS.index("module tb")]
_APART = {"src/tb.sv": _MODELS.replace(_REFERENCE, ""), "src/reference.sv": _REFERENCE}
_FOUND = "iverilog -g2012 -s tb -o t.vvp -Y .sv -y /src /src/tb.sv /code/rtl/*.sv; vvp t.vvp"
_SECOND = "module reference(input [7:0] req, output [7:0] grant);\nassign grant = 0;\nendmodule"
_IMPORTING = "package own; localparam ROUNDS = 8; endpackage\nimport own::*;\n" + _TESTBENCH.replace(
    "`define JUDGE\n", ""
).replace("parameter ROUNDS = 8;", "")
_BUS = "interface bus; logic [7:0] req, grant; logic clk; endinterface\n"
_ON_BUS = f"""\
{_REFERENCE}
module tb;
    bus b();
    wire [7:0] told;
    integer i, bad = 0;
    fixed_priority_arbiter dut(b);
    reference model(.req(b.req), .grant(told));
    initial begin
        b.clk = 0;
        for (i = 0; i < 8; i = i + 1) begin
            b.req = 8'hf0 >> i;
            #1 b.clk = 1;
            #1 b.clk = 0;
            #1 if (b.grant !== told) bad = bad + 1;
        end
        if (bad != 0) $fatal(1, "wrong");
        $finish;
    end
endmodule
"""
_BY_HANDLE = (
    "module fixed_priority_arbiter(bus x);\nassign x.grant = 0;\nvirtual bus v;\ninitial v = x;\n"
    "always @(posedge x.clk) v.req = 0;\nendmodule\n"
)
_BUSY = _BUS.replace("endinterface", "always @(posedge clk) req = 0;\nendinterface")
_BUS_DESIGN = (
    "module fixed_priority_arbiter(bus x);\nassign x.grant = 0;\nalways @(posedge x.clk) x.req = 0;\nendmodule\n"
)


_NAMESAKE = """interface fake; logic [7:0] req; endinterface
module child(input logic clk);
fake x();
always @(posedge clk) x.req = 0;
endmodule
module fixed_priority_arbiter(bus x);
assign x.grant = 0;
child c(x.clk);
endmodule
"""
"""Verilator 5.032 writes to the port of the module above, which it has inlined, not to the interface of its name."""


def _on_bus(name: str, design: str, bus: str = _BUS) -> Attack:
    built = _on_verilator("", "", None, f"/code/rtl/bus.sv /src/tb.sv /code/{TARGET}").harness
    harness = {**built, "src/tb.sv": _ON_BUS}
    return Attack(
        f"Verilator: {name}", 3, {TARGET: design, "rtl/bus.sv": bus}, None, ("testbench",), harness, 120.0, True
    )


REACHES += [
    _on_copy("the testbench's answer, from a copy among the submitted files", _AMONG),
    _on_copy("the testbench's answer, from a file of options", _LISTING),
    Attack("a reference of its own, before the hidden one is looked up", 3, {TARGET: module("assign grant = 0;", after=f"{_SECOND.replace(';', f'; {THEFT}', 1)}\n")}, "'reference' would replace a part of the hidden testbench", ("testbench",), {**_APART, **shell(_FOUND)}, quick=True),
    Attack("a constant that the testbench imports, replaced", 3, {TARGET: module("assign grant = 0;", "localparam ROUNDS = 0;\n")}, None, ("testbench",), {**harness(_IMPORTING), **_FIRST}, quick=True),
    _on_bus("an interface's signal written, which the testbench writes", _BUS_DESIGN),
    _on_bus("an interface's signal written by the name of another", _NAMESAKE),
    _on_bus("an interface's signal written by a handle, which the testbench writes", _BY_HANDLE),
    _on_bus("an interface that writes its signal, which the testbench writes", _BUS_DESIGN.replace("always @(posedge x.clk) x.req = 0;\n", ""), _BUSY),
]  # fmt: skip
"""Names and signals that the testbench shares with the design, or seems to."""

_VERILATED = f"verilator --binary -Wno-fatal -CFLAGS -O0 --top-module tb /src/tb.sv /code/{TARGET} > /dev/null"
_VERILATE = f"{_VERILATED}; ./obj_dir/Vtb"
_BOTH_WAYS = "inout wire [7:0] req"
_ZEROS = "assign (pull0, pull1) req = 0;"
REACHES += [
    Attack("an inout port in the place of an input, driven with strength", 3, _own_input("assign (supply0, supply1) req = 0;", _BOTH_WAYS), None, ("testbench",), harness(_WIRES), quick=True),
    Attack("an inout port that is wider than what is connected to it, driven with strength", 3, _own_input("assign (supply0, supply1) req = 0;", "inout wire [8:0] req"), None, ("testbench",), harness(_WIRES), quick=True),
    Attack("an inout port in the place of an input, beside a testbench that compares with high impedance", 3, _own_input("assign req = 'x;", _BOTH_WAYS, grant="'x"), None, ("testbench",), harness(_WIRES.replace("grant !== told", "(grant !== told || grant === 8'hzz)")), quick=True),
    Attack("an output in the place of an input, driven with strength", 3, _own_input("assign (supply0, supply1) req = 'x;", "output wire [7:0] req", grant="'x"), None, ("testbench",), harness(_WIRES)),
    Attack("an output of wired logic in the place of an input", 3, _own_input(_ZEROS, "output wand [7:0] req"), None, ("testbench",), harness(_WIRES), quick=True),
]  # fmt: skip
"""Nets that the testbench always drives."""
REACHES += [
    Attack("Verilator: an inout port in the place of an input, driven", 3, _own_input("assign req = 8'hff;", _BOTH_WAYS, grant="1"), None, ("testbench",), {"src/tb.sv": _WIRES, **shell(_VERILATE)}, 120.0, True),
]  # fmt: skip
"""Verilator joins what both drive by a bitwise or."""

_SORTED = """assign grant = a[0][7:0] | 8'h3;
int a [2];
logic [7:0] calls = 0;
function automatic int key(int x);
    calls = calls + 1;
    key = calls <= 2 || calls > 8 ? 0 : int'(calls);
endfunction
initial begin
    a[1] = -8;
    #1 a.sort with (key(item));
end"""
REACHES += [
    Attack("Verilator: the testbench's wrong results, overwritten by a word that is sorted beyond an array", 3, {TARGET: module(_SORTED)}, None, ("testbench",), {"src/tb.sv": _TESTBENCH, **shell(_VERILATE)}, 120.0, True),
]  # fmt: skip
"""C++ sorts beyond an array if the keys change."""

_DRAWING = _TESTBENCH.replace("8'hf0 >> i", "$urandom").replace(
    "begin : judge", "begin : judge\n        #1 clk = 1; #1 clk = 0; #1;"
)
_RENAMED = '/**/`line 1 "/code/rtl/\\x2e\\x2e/\\x2e\\x2e/src/tb.sv" 0\n'
"""Verilator's preprocessor, which replaces escapes in file names, leaves a directive after a comment to the compiler."""
_SEEDED = """assign grant = 1;
integer s, t, v;
always @(negedge clk) begin
    s = 1; v = 0;
    while (v[0] !== 1) begin s = s + 1; t = s; v = $urandom(t); v = $urandom; end
    t = s; v = $urandom(t); $display("%d", v);
end"""
_OTHERWISE = {TARGET: module("assign grant = 0;\n`ifndef A\ninitial $finish;\n`endif")}
_OPTIONS = shell("iverilog -g2012 -s tb -o t.vvp -c /code/rtl/files.f /src/tb.sv; vvp t.vvp")
_SKIPPED = """assign grant = 1;
integer s = 0, t, v;
always @(negedge clk) begin
    t = s; v = $random(t);
    while (v[0] !== 1) begin $random; s = t; v = $random(t); end
    s = t; $display("%d", v);
end"""
REACHES += [
    Attack("$finish unless a macro of a file of options is defined", 3, {**_OTHERWISE, "rtl/files.f": f"+define+A\x1c\n/code/{TARGET}\n"}, None, ("testbench",), {**harness(), **_OPTIONS}, quick=True),
    Attack("the testbench's random numbers, skipped by a function that is called as a task", 3, {TARGET: module(_SKIPPED)}, None, ("testbench",), harness(_DRAWING.replace("$urandom", "$random")), quick=True),
    Attack("the testbench's random numbers, chosen by a seed", 3, {TARGET: module(_SEEDED)}, None, ("testbench",), harness(_DRAWING), quick=True),
    Attack("Verilator: the testbench's random numbers, chosen by a seed", 3, {TARGET: module(_SEEDED)}, None, ("testbench",), {**_on_verilator("", "", None).harness, "src/tb.sv": _DRAWING}, 120.0, True),
    Attack("Verilator: random numbers chosen by a seed under the testbench's name", 3, {TARGET: _RENAMED + module(_SEEDED)}, None, ("simulation",), {**_on_verilator("", "", None).harness, "src/tb.sv": _DRAWING}, 120.0, True),
]  # fmt: skip
"""Both draw from one generator, and a seed in any call is its new state."""

_VECTORS = {"src/in.txt": "f0 10\n78 08\n3c 04\n1e 02\n0f 01\n07 01\n03 01\n01 01\n"}
_FROM_STDIN = _TESTBENCH.replace(
    "req = 8'hf0 >> i; expected = answer(req);",
    'if ($fscanf(32\'h8000_0000, "%h %h", req, expected) != 2) bad = 1;',
)
_FROM_FILE = (
    _TESTBENCH.replace("integer i, bad = 0;", 'integer i, bad = 0, f = $fopen("/src/in.txt", "r");')
    .replace("for (i = 0; i < ROUNDS; i = i + 1)", 'while ($fscanf(f, "%h %h", req, expected) == 2)')
    .replace("req = 8'hf0 >> i; expected = answer(req);", "")
)
_READ_FIRST = """reg [7:0] g [0:255]; assign grant = g[req];
integer c = 2; reg [7:0] a, b;
initial begin
    while (c == 2) begin c = $fscanf(32'h8000_0000, "%h %h", a, b); if (c == 2) g[a] = b; end
    c = $rewind(32'h8000_0000);
end"""
_CLOSED = "assign grant = 0;\ninteger i;\ninitial for (i = 3; i < 9; i = i + 1) $fclose(32'h8000_0000 + i);"
REACHES += [
    Attack("the testbench's vectors, read from stdin before the testbench reads them", 3, {TARGET: module(_READ_FIRST)}, None, ("testbench",),
           {"src/tb.sv": _FROM_STDIN, **_VECTORS, **shell(f"iverilog -g2012 -s tb -o t.vvp /src/tb.sv /code/{TARGET}; vvp t.vvp < /src/in.txt")}, quick=True),
    Attack("the testbench's file of vectors, closed", 3, {TARGET: module(_CLOSED)}, r"\$fopen reads '/src/in.txt'", ("simulation",),
           {**harness(_FROM_FILE), **_VECTORS}, quick=True),
    Attack("Verilator: the testbench's vectors, read from stdin before the testbench reads them", 3, {TARGET: module(_READ_FIRST)}, None, ("testbench",),
           {"src/tb.sv": _FROM_STDIN, **_VECTORS, **shell(f"{_VERILATED}; ./obj_dir/Vtb < /src/in.txt")}, 120.0, True),
]  # fmt: skip
"""Files that the testbench has open. A number names each, which the design can guess."""

_SAME_NAMES = re.sub(
    r" dut\(.*", " dut(.*);", _TESTBENCH.replace("reg clk = 0;", "reg clk = 0;\n    wire [7:0] priority_override;")
).replace("[7:0] priority_override;", "[7:0] priority_override; wire reset, valid; wire [2:0] grant_index;")
REACHES += [
    Attack("the reference model's answer, by a port of its name", 3, _own_input("", "input logic [7:0] told, req", grant="told"), None, ("testbench",), harness(_SAME_NAMES), quick=True),
    Attack("Verilator: the reference model's answer, by a port of its name", 3, _own_input("", "input logic [7:0] told, req", grant="told"), None, ("testbench",), {"src/tb.sv": _SAME_NAMES, **shell(f"{_VERILATED}; ./obj_dir/Vtb")}, 120.0, True),
]  # fmt: skip
"""The testbench connects all ports of the design by their names (``.*``)."""

_BEYOND = """assign grant = w[7:0];
logic [1023:0] w = 0;
logic [9:0] k = 1023;
always @(posedge clk) begin k <= k - 10'(req == 3); w[k +: 673] <= '0; end"""
_LATE = """assign grant = m[0][7:0];
logic [31:0] m [1025];
genvar g;
generate for (g = 0; g < 5; g = g + 1) begin : late
    logic [10:0] k = 0;
    initial m[k] = #0.75 0;
    initial #0.5 k = 1036 + g;
end endgenerate"""
_PACKED = """assign grant = w[7:0];
logic [1023:0] w = 0;
holder h();
initial begin
    repeat (55) h.q.push_back(0);
    #0.75 w = {>>{h.q}};
end"""
_HOLDER = "module holder; /*verilator no_inline_module*/\nlogic [31:0] q [$];\nendmodule\n"
_READ_BEYOND = """assign grant = m[0][7:0];
logic [31:0] m [32];
int fd = $fopen("/code/rtl/zeros.bin", "rb");
always @(posedge clk) void'($fread(m, fd, 33, 20));"""
_READING = _TESTBENCH.replace("integer i, bad", 'integer f = $fopen("words.hex", "r"), bad').replace(
    "for (i = 0; i < ROUNDS; i = i + 1) begin", 'while ($fscanf(f, "%h", req) == 1) begin'
)
_READING = _READING.replace("req = 8'hf0 >> i; ", "")
_SOUGHT = "assign grant = 0;\ninitial void'($fseek(32'h8000_002c, 0, 2));"
_WITHOUT = ("simulation",)


def _built(name: str, files: Mapping[str, str | bytes], testbench: str = _TESTBENCH, before: str = "") -> Attack:
    hidden = {"src/tb.sv": testbench, "src/words.hex": "f0 78 3c\n", **shell(f"{before}{_VERILATE}")}
    return Attack(f"Verilator: {name}", 3, files, None, _WITHOUT, hidden, 120.0, True)


UNTESTED += [
    _built("all pending delays deleted by a part of a vector beyond its end", {TARGET: module(_BEYOND)}),
    _built("all pending delays deleted by words that are read beyond a memory", {TARGET: module(_READ_BEYOND), "rtl/zeros.bin": bytes(80)}),
    _built("all pending delays deleted by a word beyond a memory, whose index changes after Verilator's check", {TARGET: module(_LATE, "`timescale 1ps/1fs\n")}),
    _built("all pending delays deleted by a queue that is packed into a smaller vector", {TARGET: module(_PACKED, "`timescale 1ps/1fs\n", _HOLDER)}),
    _built("the testbench's open file, at its end", {TARGET: module(_SOUGHT)}, _READING, "cp /src/words.hex .; "),
    _built("a command for make among the submitted files", {TARGET: module(""), "rtl/obj_dir/x.d": "$(shell echo true > Vtb; chmod +x Vtb; touch -d 2199-01-01 Vtb)\n"}, before="cd /code/rtl; "),
]  # fmt: skip
"""Verilator's programs do not check all indices, and build what is in their folder."""

_WRITING = _TESTBENCH.replace(
    'if (bad != 0) $fatal(1, "wrong");',
    'i = $fopen("verdict", "w"); $fdisplay(i, "%s", bad == 0 ? "right" : "wrong"); $fclose(i);',
)
_REPLACED = 'assign grant = 0;\nwire right = 0;\nfinal begin $dumpfile("verdict"); $dumpvars; end'
UNTESTED += [
    Attack("Verilator: the file with the testbench's verdict, replaced by waveforms", 3, {TARGET: module(_REPLACED)}, None, _WITHOUT,
           {"src/tb.sv": _WRITING, **shell(f"{_VERILATED.replace('--binary', '--binary --trace')}; ./obj_dir/Vtb; grep -q right verdict")}, 120.0, True),
]  # fmt: skip
"""The testbench's file is complete when the design chooses the name of its waveforms."""
