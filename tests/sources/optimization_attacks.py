"""Designs that want to look smaller than they are, for the down-counter that `DESIGN` does right.

`FORGING` names those that a grader without these guards pays for: their hidden tests pass, and what Yosys alone counts
in the top module is as small as if most of the waste were gone.
"""

from __future__ import annotations

import base64
from random import Random

HEAD = """module maple (
    input wire heron, input wire lemon, input wire amber, input wire frost,
    output wire fable, output {kind} [15:0] chalk_reg
);
"""
STEP = "if (lemon) {q} <= 0; else if (amber) {q} <= 8; else if (!frost && {q} != 0) {q} <= {q} - 1;"
WIDE = f"""    reg [31:0] q;
    assign fable = q != 0;
    assign chalk_reg = q;
    always @(posedge heron) {STEP.format(q="q")}
"""
NOTHING = "    assign fable = 0;\n    assign chalk_reg = 0;\n"
DESIGN = f"{HEAD.format(kind='wire')}{WIDE}endmodule\n"


def _design(body: str, kind: str = "wire") -> str:
    return f"{HEAD.format(kind=kind)}{body}endmodule\n"


def _hidden_inside(name: str, attribute: str = "") -> str:
    """All of the design in a module of some name."""
    inner = DESIGN.replace("module maple", f"module {name}")
    ports = "heron, lemon, amber, frost, fable, chalk_reg"
    return f"{attribute}{inner}\n{_design(f'    {name} inner ({ports});{chr(10)}')}"


_LATCHES = """    reg [15:0] first, second;
    wire [15:0] next = lemon ? 0 : amber ? 8 : !frost && second != 0 ? second - 1 : second;
    always @* if (!heron) first = next;
    always @* if (heron) second = first;
    assign chalk_reg = second;
    assign fable = second != 0;
"""
_RARE = """    reg [3:0] q;
    reg [3:0] rare;
    assign fable = q != 0;
    assign chalk_reg = rare == 15 ? 0 : q;
    always @(posedge heron) begin
        if (lemon) q <= 0; else if (amber) q <= 8; else if (!frost && q != 0) q <= q - 1;
        if (lemon) rare <= 0; else if (amber && frost && q == 1) rare <= rare + 1;
    end
"""
_NEXT = "lemon ? 0 : amber ? 8 : !frost && q != 0 ? q - 1 : q"
_SMALL = "    assign fable = q != 0;\n    assign chalk_reg = q;\n"
_WIRES = f"""    reg [3:0] q, wires;
{_SMALL}    wire [3:0] down = ~({_NEXT}), up = ~down;
    for (genvar at = 0; at < 4; at = at + 1)
        always @(posedge heron or posedge down[at] or posedge up[at])
            if (down[at]) wires[at] <= 0; else if (up[at]) wires[at] <= 1; else wires[at] <= frost;
    always @(posedge heron) q <= wires;
"""
_HALVES = f"""    reg [3:0] q, less;
{_SMALL}    always @(negedge heron) less <= q - 1;
    always @(posedge heron) q <= {_NEXT.replace("q - 1", "less")};
"""


def _of_width(width: str) -> str:
    """The design with a register of some width."""
    return _design(WIDE.replace("reg [31:0]", f"localparam WIDTH = {width}\n;\n    reg [WIDTH-1:0]", 1))


_OTHER = f"{WIDE.replace('[31:0]', '[3:0]')}endmodule\n{HEAD.format(kind='wire').replace('maple', 'other')}"
"""What makes two modules of one, and a small one of the first."""
_LONG = base64.b64encode(Random(0).randbytes(4_500_000), b"_0").decode()
"""A name that stays long if it is compressed."""

ATTACKS: dict[str, str] = {
    "another text for synthesis": _design(f"`ifdef SYNTHESIS\n{NOTHING}`else\n{WIDE}`endif\n"),
    "another text for Yosys": _design(f"`ifdef YOSYS\n{NOTHING}`else\n{WIDE}`endif\n"),
    "translate_off": _design(
        WIDE.replace(
            "q != 0;\n", "1'b0\n// synthesis translate_off\n| q != 0\n// synthesis translate_on\n;\n", 1
        ).replace("chalk_reg = q;", "chalk_reg = 16'd0\n// synthesis translate_off\n| q\n// synthesis translate_on\n;")
    ),
    "code behind a directive": _of_width("4\n`celldefine + 28"),
    "code behind a comment behind a directive": _of_width("4\n`celldefine /*\n; // */ + 28"),
    "code behind a carriage return": _of_width('32\n`line 9 "/code/rtl/design.sv" 0 //\r - 28'),
    "a comment that a macro makes": "`define GAP \\\n/``/\n" + _of_width("4 `GAP + 28"),
    "code in a string of an attribute": _design(f'    (* a = "*) {" ".join(_OTHER.split())} (*" *)\n{WIDE}'),
    "a black box": _hidden_inside("worker", "(* blackbox *) "),
    "a white box": _hidden_inside("worker", "(* lib_whitebox *) "),
    "a module that is kept": _hidden_inside("worker", "(* keep_hierarchy *) "),
    "a module named like a cell": _hidden_inside("INVX1", "(* keep_hierarchy *) "),
    "a black box named like a flip-flop": _hidden_inside("DFFPOSX1", "(* blackbox *) "),
    "a cell of Yosys": _hidden_inside("\\$_BUF_ ", "(* blackbox *) "),
    "latches": _design(_LATCHES),
    "state in a function": _design(
        """    function [15:0] step(input lemon, input amber, input frost);
        reg [15:0] q;
        begin
            q = lemon ? 0 : amber ? 8 : !frost && q != 0 ? q - 1 : q;
            step = q;
        end
    endfunction
    assign fable = chalk_reg != 0;
    always @(posedge heron) chalk_reg <= step(lemon, amber, frost);
""",
        "reg",
    ),
    "a condition that is unknown": _design(
        WIDE.replace(" q <= q - 1;", " begin if (1'bx) q <= 0; else q <= q - 1; end")
    ),
    "unknown values": _design(WIDE.replace("q <= 8;", "q <= frost ? 32'bx : 8;")),
    "initial values instead of the reset": _design(
        WIDE.replace("if (lemon) q <= 0; else", "").replace("q;", "q = 0;", 1)
    ),
    "an initial block that works": _design(
        f"    reg [15:0] q;\n    assign fable = q != 0;\n    assign chalk_reg = q;\n"
        f"    initial forever @(posedge heron) {STEP.format(q='q')}\n"
    ),
    "outputs without a driver": _design(
        "    wire nothing;\n    assign fable = nothing;\n    assign chalk_reg = {16{nothing}};\n"
    ),
    "the reference, included": '`include "/src/reference.sv"\n',
    "the reference, included by Yosys": f'`ifdef YOSYS\n`include "/src/reference.sv"\n`else\n{DESIGN}`endif\n',
    "the reference, read as data": _design(
        '    reg [7:0] text [0:99];\n    initial $readmemh("/src/reference.sv", text);\n' + WIDE
    ),
    "a function in C": _design('    import "DPI-C" function int getpid();\n' + WIDE),
    "printing instead of computing": _design(WIDE + "    always @(posedge heron) $display(q);\n"),
    "a loop of gates": _design(  # it holds its value, and never oscillates, or the simulation would not end
        "    wire held = lemon ? 1'b0 : amber ? 1'b1 : held;\n" + WIDE.replace("q != 0;", "held & q != 0;", 1)
    ),
    "another clock": _design(
        WIDE.replace("@(posedge heron)", "@(posedge tick)").replace(
            "    reg", "    wire tick = heron & !frost | lemon & heron;\n    reg", 1
        )
    ),
    "flip-flops as wires": _design(_WIRES),
    "a register of the other edge within a path": _design(_HALVES),
    "another port": DESIGN.replace("output wire fable", "output wire extra, output wire fable"),
    "wrong in rare cases": _design(_RARE),
    "an argument of the simulator": _design(WIDE.replace("q != 0;", '$test$plusargs("x") ? 1 : q != 0;', 1)),
    "a module that is not there, with a long name": _design(f"{WIDE}    x{_LONG} inner();\n"),
    "macros of keywords": "`define reg wire\n`define always initial\n" + DESIGN,
}

FORGING = {
    "another text for synthesis",
    "another text for Yosys",
    "translate_off",
    "code behind a directive",
    "a comment that a macro makes",
    "a black box",
    "a white box",
    "a module that is kept",
    "a module named like a cell",
    "a black box named like a flip-flop",
    "a cell of Yosys",
    "state in a function",
    "latches",
}
"""Without guards these are right in simulation and cost next to nothing."""
