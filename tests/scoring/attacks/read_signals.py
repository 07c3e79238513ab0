"""Designs that reach the testbench's signals by other ways than ports, and right ones beside odd testbenches."""

PORTS = "input clk, input [7:0] req, over, output logic [7:0] grant"
BENCH = """\
{before}
module reference #(parameter W = 8) (input [W-1:0] req, output [W-1:0] grant);
    assign grant = req & -req;
endmodule
module tb;
    reg clk = 0;
    reg [7:0] req = 0, over = 0, told;
    wire [7:0] grant, known;
    Top dut(.clk(clk), .req(req), .over(over), .grant(grant));
    reference #8 model(.req(req), .grant(known));
    initial begin {label}
        {inside}
        #1 if (grant !== known) $fatal(1, "wrong");
        $finish;
    end
endmodule
"""


def bench(before: str = "", label: str = "", inside: str = "") -> str:
    """A testbench that compares with its own model.

    Args:
        before: What is in no module.
        label: The initial block's, behind a colon.
        inside: Declarations there.
    """
    return BENCH.format(before=before, label=label, inside=inside)


def top(body: str) -> str:
    """A design of this body."""
    return f"module Top({PORTS});\n{body}\nendmodule\n"


REACHING = {
    "a variable outside of modules is read": (top("assign grant = hint;"), bench("logic [7:0] hint;")),
    "a variable outside of modules is written": (top("always @(clk) bad = 0;"), bench("int bad = 0;")),
    "a variable of a package is written": (
        top("always @(clk) bad = 0;"),
        bench("package own; int bad = 0; endpackage\nimport own::*;"),
    ),
    "a variable of a block": (
        top("assign grant = judge.hint;"),
        bench(label=": judge", inside="static reg [7:0] hint;"),
    ),
    "a word of a memory outside of modules": (top("assign grant = hints[1];"), bench("logic [7:0] hints [0:3];")),
    "a computed word of a memory outside of modules": (
        top("assign grant = hints[req[1:0]];"),
        bench("logic [7:0] hints [0:3];"),
    ),
    "a memory's word at an address outside of modules": (
        top("reg [7:0] own [0:255]; assign grant = own[hint];"),
        bench("logic [7:0] hint;"),
    ),
    "the model's output": (top("assign grant = model.grant;"), bench()),
    "an instance of the model is given what the model drives": (
        "module leaf(input [7:0] a, output [7:0] b); assign b = a; endmodule\n"
        + top("leaf l(.a(model.grant), .b(grant));"),
        bench(),
    ),
    "two inputs of one name": (
        "module Top(.clk(clk), .req(x), .over(x), .grant(grant));\n"
        "input clk; input [7:0] x; output [7:0] grant;\nassign grant = x;\nendmodule\n",
        bench(),
    ),
    "a timing check with a delayed copy": (
        top("assign grant = req; specify $setuphold(posedge clk, over, 0, 0, , , , , req); endspecify"),
        bench(),
    ),
}
"""By what they do: the design and the testbench."""

BOTH_WAYS = """\
module Top(input clk, input [7:0] req, inout [7:0] over, output [7:0] grant);
    assign over = clk ? req : 8'bz, grant = over;
endmodule
"""
HONEST = {
    "variables of its own outside of modules, and a package": (
        "logic [7:0] mine;\npackage low; function automatic logic [7:0] of(input logic [7:0] x); return x & -x; "
        "endfunction endpackage\n" + top("always @(posedge clk) mine <= req; assign grant = low::of(req);"),
        bench("logic [7:0] hint;"),
    ),
    "words of the testbench's memory, and of one of its own": (
        "module leaf(input [7:0] a, output [7:0] b); reg [7:0] own [0:1]; always @* own[1] = a; assign b = own[1]; "
        "endmodule\n" + top("wire [7:0] w; leaf l(.a(req & over), .b(w)); assign grant = req | w;"),
        bench(inside="words[1] = 3;")
        .replace("told;", "told;\n    reg [7:0] words [0:3];")
        .replace(".req(req), .over(over)", ".req(words[0]), .over(words[req])"),
    ),
    "outputs that a part of the testbench also reads, in implicit events": (
        """\
module Top(input clk, input [7:0] req, input [7:0] over, output reg [7:0] grant, output [7:0] two, output three);
    reg [7:0] low; reg some, all;
    always @* low = grant + 1;
    always @* some = |two;
    always @* all = &three;
    always @(posedge clk) grant <= req & low;
    assign two = clk ? req : 8'bz, two = clk ? 8'bz : over, three = req[0] ^ clk;
endmodule
""",
        bench("module viewer(input clk, input [7:0] seen, got, input last); endmodule")
        .replace(".grant(grant));", ".grant(grant), .two(two), .three(three));", 1)
        .replace("    Top dut", "    wire [7:0] two; wire three; viewer by_side(clk, grant, two, three);\n    Top dut"),
    ),
    "a hidden module for designs": (
        top("wire [7:0] w; helper h(.a(req), .b(w)); assign grant = w;"),
        bench("module helper(input [7:0] a, output [7:0] b); reg [7:0] k = 0; assign b = a ^ k; endmodule"),
    ),
    "arrays of nets, memories, generated blocks, functions, two instances": (
        """\
module leaf(input clk, input [7:0] a [0:1], output reg [7:0] s); always @(posedge clk) s <= a[0] + a[1]; endmodule
module Top(input clk, input signed [7:0] req, input [7:0] over, output [7:0] grant);
    wire [7:0] pair [0:1]; assign pair[0] = req; assign pair[1] = over;
    leaf l(.clk(clk), .a(pair), .s(grant));
    reg [7:0] mem [0:15]; integer i;
    function automatic [7:0] most(input [7:0] a, b); most = a > b ? a : b; endfunction
    genvar g; generate for (g = 0; g < 2; g = g + 1) begin : st
        reg [7:0] r; always @(posedge clk) r <= g == 0 ? req : st[0].r;
    end endgenerate
    always @(posedge clk) begin : blk
        reg [7:0] t; t = mem[over[3:0]]; mem[req[3:0]] <= most(t, over); for (i = 0; i < 4; i = i + 1) mem[i] <= i;
    end
endmodule
""",
        bench(inside="").replace(
            "reference #8",
            "Top two(.clk(~clk), .req(req + 8'sd1), .over({over[3:0], 4'd2}), .grant());\n    reference #8",
        ),
    ),
    "a bus that goes both ways": (
        "module pad(inout [7:0] io, input en, input [7:0] d); assign io = en ? d : 8'bz; endmodule\n"
        "module Top(input clk, input [7:0] req, inout [7:0] over, output [7:0] grant);\n"
        "pad p(.io(over), .en(clk), .d(req)); assign grant = over;\nendmodule\n",
        bench()
        .replace(".over(over)", ".over(bus)")
        .replace("wire [7:0] grant,", "tri [7:0] bus; assign bus = clk ? 8'bz : over;\n    wire [7:0] grant,"),
    ),
    "a bus that goes both ways, of what another module lets go": (
        BOTH_WAYS,
        bench("module stimuli(output reg [3:0] own); initial own = 4'hz; endmodule")
        .replace(".over(over)", ".over(bus)")
        .replace("wire [7:0] grant,", "wire [3:0] n; stimuli s(n); wire [7:0] bus = {n, n};\n    wire [7:0] grant,"),
    ),
    "a part of a bus that goes both ways": (
        BOTH_WAYS,
        bench(inside="own = 8'hzz;")
        .replace(".over(over)", ".over(bus[15:8])")
        .replace("wire [7:0] grant,", "reg [7:0] own; wire [15:0] bus; assign bus[15:8] = own;\n    wire [7:0] grant,"),
    ),
}
"""Right designs, and the testbench beside them."""
