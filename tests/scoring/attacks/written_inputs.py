"""Designs that write or drive their inputs in every way that the language has, and a testbench that notices.

The testbench drives five kinds of signals: variables, a net, the output of a hidden module, a real number and a memory.
It prints a line when one of them is not what it should be. So whether a design reaches the testbench is measured, and not
derived from what the design says.
"""

# ruff: noqa: E501 — one way a line
from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

TESTBENCH = """\
`timescale 1ns/1ps
module stimulus(output reg [7:0] g); initial begin g = 8'h91; #20 g = 8'ha2; #20 g = 8'hb3; end endmodule
module tb;
    reg [7:0] v = 8'h11, ws = 8'h51, want;
    wire [7:0] w = ws;
    wire [7:0] g, o;
    logic signed [7:0] sv = 8'h12;
    bit [7:0] bv = 8'h13;
    integer i = 17, n;
    real r = 17.0;
    logic [7:0] m [0:3];
    wire [7:0] sum = v + sv + bv;
    stimulus s(.g(g));
    Top t(.v(v), .w(w), .g(g), .sv(sv), .bv(bv), .i(i), .r(r), .m(m), .o(o));
    initial begin
        for (n = 0; n < 4; n = n + 1) m[n] = n;
        #20 v = 8'h22; ws = 8'h62; sv = 8'h23; bv = 8'h24; i = 34; r = 34.0;
        #20 v = 8'h33; ws = 8'h73; sv = 8'h34; bv = 8'h35; i = 51; r = 51.0;
        #20 $finish;
    end
    always begin
        #3 want = $time < 20 ? 8'h11 : $time < 40 ? 8'h22 : 8'h33;
        if (v !== want || w !== want + 8'h40 || g !== want + 8'h80 || sv !== want + 8'h01 || bv !== want + 8'h02
            || sum !== 8'(3 * want + 3) || i !== want || r != want
            || m[0] !== 0 || m[1] !== 1 || m[2] !== 2 || m[3] !== 3) begin $display("REACHED"); $finish; end
    end
endmodule
"""
_TYPES = {
    "v": "logic [7:0]",
    "w": "logic [7:0]",
    "g": "logic [7:0]",
    "sv": "logic signed [7:0]",
    "bv": "bit [7:0]",
    "i": "integer",
    "r": "real",
}


def design(port: str, body: str = "", declared: str = "", before: str = "", memory: str = "") -> str:
    """A design that declares one of its inputs in its own way; all others are as usual."""
    ports = [declared if name == port else f"input {kind} {name}" for name, kind in _TYPES.items()]
    return f"`timescale 1ns/1ps\n{before}module Top({', '.join(ports)}, {memory or 'input logic [7:0] m [0:3]'}, output [7:0] o);\nassign o = 0;\n{body}\nendmodule\n"


STATEMENTS = {
    "a blocking assignment": "P = 77;", "a nonblocking assignment": "P <= 77;", "an operator's assignment": "P += 3;",
    "an increment": "P++;", "a decrement": "--P;", "a bit": "P[0] = 0;", "a part": "P[3:0] = 4'hx;", "an indexed part": "P[k+:2] = 2'b01;",
    "a computed bit": "P[k] <= 1'bx;", "a concatenation": "{q, P} = 16'h0;", "a stream": "{<<{P}} = 8'h0;", "a pattern": "P = '{default: 0};",
    "a procedural assign": "assign P = 8'h0;", "a deassign": "deassign P;", "a force": "force P = 8'h0;", "a release": "release P;",
    "a delayed value": "P = #2 8'h0;", "a delayed nonblocking value": "P <= #1 8'h0;", "a value at an event": "P = @(posedge k) 8'h0;",
    "a loop's index": "for (P = 0; P < 3; P = P + 1) q = 1;", "a loop over its bits": "foreach (P[z]) P[z] = 0;", "a fork": "fork P = 0; join_none",
    "a task's output": "out_of(P);", "a task's inout": "through(P);", "a task that writes it": "writes;", "a function that writes it": "q = written(3);",
    "a path in the design": "Top.P = 0;", "$sscanf": 'n = $sscanf("12", "%h", P);', "$fscanf": 'fd = $fopen("/tmp/n.txt", "r"); n = $fscanf(fd, "%h", P);',
    "$fgets": 'fd = $fopen("/tmp/n.txt", "r"); n = $fgets(P, fd);', "$fread": 'fd = $fopen("/tmp/n.txt", "r"); n = $fread(P, fd);',
    "$ferror": "n = $ferror(1, P);", "$random": "n = $random(P);", "$urandom": "n = $urandom(P);", "$dist_uniform": "n = $dist_uniform(P, 0, 100);",
    "$value$plusargs": 'n = $value$plusargs("A=%h", P);', "$swrite": '$swrite(P, "abc");', "$sformat": '$sformat(P, "abc");', "$cast": "n = $cast(P, 3);",
    "$deposit": "$deposit(P, 0);", "$q_initialize": "$q_initialize(1, 1, 10, P);", "$getpattern": "n = $getpattern(P);", "$countdrivers": "n = $countdrivers(P);",
    "$ivlh_readline": "$ivlh_readline(1, P);", "$readmemh": '$readmemh("/tmp/n.txt", P);',
}  # fmt: skip
"""A statement in an ``initial`` block, by what it is; P is the input."""
_AROUND = """\
integer n, fd; reg [7:0] q; integer k = 1;
task out_of(output [7:0] x); x = 0; endtask
task through(inout [7:0] x); x = 0; endtask
task writes; P = 0; endtask
function [7:0] written(input [7:0] z); begin P = 0; written = z; end endfunction
"""
ITEMS = {
    "always_comb": "always_comb P = 0;", "always_ff": "reg k = 0;\nalways #4 k = ~k;\nalways_ff @(posedge k) P <= 0;", "final": "final P = 0;",
    "a function in a continuous assignment": "wire [7:0] z;\nfunction [7:0] f(input [7:0] x); begin P = 0; f = x; end endfunction\nassign z = f(8'h3);",
    "a continuous assignment": "assign P = 0;", "a strong assignment": "assign (supply0, supply1) P = 0;", "an assignment of a part": "assign P[3:0] = 0;",
    "an assignment of a concatenation": "wire [7:0] q;\nassign {q, P} = 0;", "an assignment in a generate block": "generate if (1) begin : a assign P = 0; end endgenerate",
    "a gate": "buf b(P[0], 1'b0);", "a tristate gate": "bufif1 b(P[0], 1'b0, 1'b1);", "a switch": "nmos b(P[0], 1'b0, 1'b1);", "a switch that goes both ways": "supply0 z;\ntran b(P[0], z);",
    "a pull": "pullup (supply1) b(P[0]);", "a supply": "supply0 z;\nassign P[0] = z;", "a primitive": "own b(P[0], w[1]);",
    "a part below, its input": "below b(P);", "a part below, a bit of its input": "one_below b(P[0]);", "a part below, its output": "drives b(P);",
    "a part below, its register": "registers b(P);", "a part below, its inout": "shares b(P);", "a part below, its forced input": "forces b(P);",
    "a part below, by a path": "by_path b();", "parts below in an array": "one_below b[7:0](P);", "two levels below": "deep b(P);",
}  # fmt: skip
"""An item of the module."""
_BELOW = """\
primitive own(output x, input y); table 0 : 0; 1 : 0; endtable endprimitive
module below(input var logic [7:0] x); initial #5 x = 0; endmodule
module one_below(input var logic x); initial #5 x = 0; endmodule
module drives(output [7:0] x); assign x = 0; endmodule
module registers(output reg [7:0] x); initial #5 x = 0; endmodule
module shares(inout [7:0] x); assign x = 0; endmodule
module forces(input [7:0] x); initial #5 force x = 0; endmodule
module by_path; initial #5 Top.P = 0; endmodule
module deep(input [7:0] x); below b(x); endmodule
"""
DECLARATIONS = {
    "a variable": "input var T P", "a register of Verilog-95": "", "a variable with a value": "input var T P = 0",
    "a packed struct": "input var struct packed {logic [3:0] hi; logic [3:0] lo;} P", "an enumeration": "input var enum logic [7:0] {ZERO, ONE} P",
    "packed arrays": "input var logic [1:0][3:0] P", "a two-state variable": "input var bit [7:0] P",
    "supply0": "input supply0 [7:0] P", "tri0": "input tri0 [7:0] P", "wand": "input wand [7:0] P", "wor": "input wor [7:0] P", "uwire": "input uwire [7:0] P",
    "an output": "output [7:0] P", "an output register": "output reg [7:0] P", "a reference": "ref logic [7:0] P",
}  # fmt: skip


def ways(ports: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Designs that write or drive one of these inputs, by what they do. Not all compile, and not all reach anything."""
    for port in ports:
        var = f"input var {_TYPES[port]} {port}"
        for name, statement in STATEMENTS.items():
            body = re.sub(r"\bP\b", port, f"{_AROUND}initial begin #5 {statement} end")
            yield f"{port}: {name}", design(port, body, var)
        for name, item in ITEMS.items():
            for kind, declared in (("variable", var), ("net", f"input {_TYPES[port]} {port}")):
                below = re.sub(
                    r"\bP\b",
                    port,
                    _BELOW
                    if "by_path" in item
                    else _BELOW.replace("module by_path", "module unused_path").replace("Top.P = 0", ";"),
                )
                yield f"{port}: {name} of a {kind}", design(port, re.sub(r"\bP\b", port, item), declared, below)
        for name, declared in DECLARATIONS.items():
            declared = declared.replace("T P", f"{_TYPES[port]} P").replace("P", port)
            for kind, body in (
                ("written", f"initial #5 {port} = 0;"),
                ("driven", f"assign {port} = 0;"),
                ("only declared", ""),
            ):
                if name == "a register of Verilog-95":
                    kinds = ", ".join(name for name in _TYPES if name not in "ir")
                    text = f"`timescale 1ns/1ps\nmodule Top(v, w, g, sv, bv, i, r, m, o);\ninput [7:0] {kinds};\ninput integer i;\ninput real r;\ninput [7:0] m [0:3];\noutput [7:0] o;\nreg [7:0] {port};\nassign o = 0;\n{body}\nendmodule\n"
                    yield f"{port}: {name}, {kind}", text
                else:
                    yield f"{port}: {name}, {kind}", design(port, body, declared)


def joined() -> Iterator[tuple[str, str]]:
    """Designs in which two ports are one signal, in the module's header and one level below, or a port has another name
    outside than inside. Icarus has no such ports that are memories, so they are for a testbench without one.
    """
    kinds = ("v", "w", "g", "sv", "bv", "o")
    for first, second in itertools.combinations(kinds, 2):
        names = {name: "x" if name in (first, second) else name for name in (*_TYPES, "o")}
        head = ", ".join(f".{name}({names[name]})" for name in names)
        rest = ", ".join(name for name in kinds if name not in (first, second, "o"))
        output = "" if second == "o" else "output [7:0] o;\nassign o = 0;\n"
        text = f"`timescale 1ns/1ps\nmodule Top({head});\ninput [7:0] x, {rest};\ninput integer i;\ninput real r;\n{output}endmodule\n"
        yield f"{first} and {second}", text
        if second != "o":
            below = "module one(.p(z), .q(z));\ninput [7:0] z;\nendmodule\n"
            yield f"{first} and {second}, below", design("", f"one b(.p({first}), .q({second}));", before=below)
    for port in ("v", "w", "g"):
        for name, declared in {
            "an output": "output [7:0] z;\nassign z = 'x;",
            "a register": "output reg [7:0] z;\ninitial z = 'x;",
            "a vertical tab": "input [7:0] \\z\v ;\nassign \\z\v = 'x;",
        }.items():
            names = {one: one if one != port else "\\z\v " if "tab" in name else "z" for one in (*_TYPES, "o")}
            head = ", ".join(f".{one}({names[one]})" for one in names)
            rest = ", ".join(one for one in kinds if one not in (port, "o"))
            yield (
                f"{port}: {name} under another name",
                f"`timescale 1ns/1ps\nmodule Top({head});\ninput [7:0] {rest};\ninput integer i;\ninput real r;\noutput [7:0] o;\nassign o = 0;\n{declared}\nendmodule\n",
            )


def memories() -> Iterator[tuple[str, str]]:
    """Designs that write an input that is a memory."""
    for name, statement in {
        "a word": "m[0] = 9;",
        "a computed word": "m[k] <= 9;",
        "a part of a word": "m[1][0] = 0;",
        "all": "m = '{9, 9, 9, 9};",
        "$readmemh": '$readmemh("/tmp/n.txt", m);',
        "$fread": 'fd = $fopen("/tmp/n.txt", "r"); n = $fread(m, fd);',
    }.items():
        yield (
            f"m: {name}",
            design(
                "", f"integer k = 1, fd, n;\ninitial begin #5 {statement} end", memory="input var logic [7:0] m [0:3]"
            ),
        )


READERS = {
    "expressions": "reg [7:0] q;\nalways @* q = P + 1;", "messages": 'always @(P) begin $display("%h", P); $strobe(P); end\ninitial $monitor("%h", P);',
    "functions": "integer n;\nfunction [7:0] f(input [7:0] x); begin x = x + 1; f = x; end endfunction\nalways @* n = f(P) + $clog2(P) + $countones(P);",
    "an index": "reg [7:0] t [0:255];\nreg [7:0] q;\nalways @* q = t[P];", "a part below": "reads b(P);", "waveforms": "initial $dumpvars(0, P);",
    "copies": "reg [7:0] q;\nalways @* begin q = P; q = q + 1; end", "a loop's bound": "integer n, k;\nalways @* begin n = 0; for (k = 0; k < P; k = k + 1) n = n + 1; end",
    "a text": "reg [8*9:1] q;\nalways @* $sformat(q, \"x\");\nstring s;\nalways @(P) s = $sformatf(\"%h\", P);",
}  # fmt: skip
"""What an honest design does with an input that it declares as a variable."""


def honest() -> Iterator[tuple[str, str]]:
    """Designs that only read an input that they declare as a variable."""
    below = "module reads(input var logic [7:0] x);\nreg [7:0] q;\nalways @* q = x;\nendmodule\n"
    for name, body in READERS.items():
        yield f"v: {name}", design("v", body.replace("P", "v"), "input var logic [7:0] v", below)
