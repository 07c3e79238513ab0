"""Class 1: designs that write or read files."""

# ruff: noqa: E501 — one attack a line
from __future__ import annotations

from collections.abc import Mapping

from .thieves import FORGED, HEADER, LEFT, RESULTS, SECRET, TARGET, THEFT, TOLD, Attack, module, shell

_BOTH = ("simulation", "witness")
_WRITES = r"\$fopen opens '.*result\.xml' for writing"


def _forge(
    name: str,
    text: str,
    said: str = _WRITES,
    files: Mapping[str, str | bytes] | None = None,
    harness: Mapping[str, str] | None = None,
) -> Attack:
    return Attack(name, 1, {TARGET: text, **(files or {})}, said, _BOTH, harness or {})


def _final(open_: str = f'$fopen("{RESULTS}", "w")', write: str = f'$fwrite(f, "{FORGED}");') -> str:
    return f"integer f;\nfinal begin\nf = {open_}; {THEFT}\n{write}\n$fclose(f);\nend"


_STEAL_BODY = f'f = $fopen("{RESULTS}", "w"); {THEFT}\n$fdisplay(f, "%s", "{FORGED}");\n$fclose(f);\n'
_WITH_PARAMETER = {
    "src/test_runner.py": (
        "import os\nfrom cocotb_tools.runner import get_runner\n\n\ndef test_fixed_priority_arbiter():\n"
        "    top = os.environ['TOPLEVEL']\n    runner = get_runner('icarus')\n"
        "    runner.build(sources=os.environ['VERILOG_SOURCES'].split(), hdl_toplevel=top, always=True, clean=True,\n"
        "                 parameters={'STEAL': 1}, timescale=('1ns', '1ps'))\n"
        "    runner.test(hdl_toplevel=top, test_module=os.environ['MODULE'])\n"
    )
}

FORGERIES = [
    _forge("final block", module(_final())),
    _forge("final block, file relative to the simulation", module(_final('$fopen("' + RESULTS.split("/")[-1] + '", "w")'))),
    _forge("a path with detours", module(_final(f'$fopen("/code/rtl/..//rundir/./sim_build/{RESULTS.split("/")[-1]}", "w")'))),
    _forge("mode wb+", module(_final(f'$fopen("{RESULTS}", "wb+")'))),
    _forge("no mode: a multi-channel descriptor", module(_final(f'$fopen("{RESULTS}")'))),
    _forge("a mode that is computed", module("reg [7:0] m;\n" + _final(f'$fopen("{RESULTS}", m)').replace("f = $", 'm = "w"; f = $'))),
    _forge("$fdisplay, character by character", module(_final(write=f'begin string s; s = "{FORGED}"; for (int i = 0; i < s.len(); i++) $fwrite(f, "%c", s[i]); end'))),
    _forge("a function", module(f"function automatic void steal(); integer f;\n{_STEAL_BODY}endfunction\nfinal steal();")),
    _forge("a task", module(f"task steal; integer f; begin\n{_STEAL_BODY}end endtask\nfinal begin : \\$display \n steal; end")),
    _forge("generate under a parameter that is off by default", module(f"generate if (STEAL) begin : g integer f; final begin\n{_STEAL_BODY}end end endgenerate"), harness=_WITH_PARAMETER),
    _forge("generate, 3rd of 4 instances", module(f"genvar i; generate for (i = 0; i < 4; i = i + 1) begin : g if (i == 2) begin integer f; final begin\n{_STEAL_BODY}end end end endgenerate")),
    _forge("an included file", module('`include "/code/rtl/helper.svh"'), files={"rtl/helper.svh": _final()}),
    _forge("an included file that is called documentation", module('`include "/code/docs/notes.md"'), files={"docs/notes.md": _final()}),
    _forge("a macro that pastes the name", module(_final(f'`DO(fo,pen)("{RESULTS}", "w")'), before="`define DO(a,b) $``a``b\n")),
    _forge("a macro that pastes both halves of the path", module(_final('$fopen({`A, `B}, "w")'), before=f'`define A "{RESULTS[:20]}"\n`define B "{RESULTS[20:]}"\n'), said=r"\$fopen opens '.*' for writing"),
    _forge("a macro over several lines", module("integer f;\n`STEAL " + THEFT, before=f'`define STEAL final begin f = $fopen("{RESULTS}", "w"); \\\n  $fwrite(f, "{FORGED}"); \\\n  $fclose(f); end\n')),
    _forge("a path put together at run time", module(f'reg [8*80:1] n; reg [7:0] chr = "w";\n{_final("$fopen(n, chr)").replace("f = $", f"""n = {{"{RESULTS[:9]}", "{RESULTS[9:]}"}}; f = $""")}')),
    _forge("a path from $sformatf", module("string n;\n" + _final('$fopen(n, "w")').replace("f = $", f'n = $sformatf("%s%s", "{RESULTS[:12]}", "{RESULTS[12:]}"); f = $'))),
    _forge("octal escapes in the path", module(_final('$fopen("' + "".join(f"\\{ord(c):03o}" for c in RESULTS) + '", "w")'))),
    _forge("a package", module("import thief::*;\nfinal steal();", before=f"package thief;\nfunction automatic void steal(); integer f;\n{_STEAL_BODY}endfunction\nendpackage\n")),
    _forge("the compilation unit's scope", module("final steal();", before=f"function automatic void steal(); integer f;\n{_STEAL_BODY}endfunction\n")),
    _forge("a class", module("thief t;\ninitial t = new;\nfinal t.steal();", before=f"class thief;\nfunction void steal(); integer f;\n{_STEAL_BODY}endfunction\nendclass\n")),
    _forge("a module below, in the same file", module("deep d();", after=f"module deep; deeper d(); endmodule\nmodule deeper;\n{_final()}\nendmodule\n")),
    _forge("conditional compilation", module("`ifdef __ICARUS__\n" + _final() + "\n`endif")),
    _forge("a line directive that blames the hidden tests", f'`line 40 "/src/test_fixed_priority_arbiter.py" 0\n{HEADER}{_final().replace(THEFT, "")}\nendmodule\n', said=r"\$fopen opens"),
    _forge("names of tasks that are escaped", module(f'integer f;\nfinal begin\nf = \\$fopen ("{RESULTS}", "w"); {THEFT}\n\\$fwrite (f, "{FORGED}");\n\\$fclose (f);\nend')),
    _forge("a program block", module("thief t();", after=f"program thief;\n{_final()}\nendprogram\n")),
    _forge("a line directive that a macro pastes", module(f'integer f;\nfinal begin\n`L(li,ne)\nf = $fopen("{RESULTS}", "w"); {THEFT}\n$fwrite(f, "{FORGED}");\nend', before='`define L(a,b) `a``b 40 "/src/x.py" 0\n')),
    _forge("$fopenw", module(_final(f'$fopenw("{RESULTS}")')), said=r"\$fopenw opens"),
]  # fmt: skip
"""Each writes a forged results file after the checker has written its own."""


def _left(name: str, text: str) -> Attack:
    return Attack(name, 1, {TARGET: text}, None, ("simulation",), LEFT)


WRITERS = [
    _left("$writememh", module(f'reg [7:0] m [0:1];\ninitial $writememh("stolen.txt", m); {THEFT}')),
    _left("$writememb of a computed name", module(f'reg [7:0] m [0:1]; string s;\ninitial begin s = "stolen.txt"; $writememb(s, m); {THEFT}\nend')),
    _left("$fopen for appending", module(f'integer f;\ninitial f = $fopen("stolen.txt", "a"); {THEFT}')),
    _left("$fopena", module(f'integer f;\ninitial f = $fopena("stolen.txt"); {THEFT}')),
    _left("waveforms under another name", module(f'initial begin\n$dumpfile("stolen.txt"); {THEFT}\n$dumpvars; #1 $finish; end')),
    _left("waveforms under a computed name, let through by a folder that is not there", module('string s;\ninitial begin if ($test$plusargs("never")) $dumpfile("/not/there.vcd"); s = "stolen.txt";\n$dumpfile(s); ' + THEFT + "\n$dumpvars; #1 $finish; end")),
    _left("waveforms, let through by a decoy in a folder that is not there", module('initial begin if ($test$plusargs("never")) $dumpfile("/none/x.vcd");\n$dumpfile("stolen.txt"); ' + THEFT + "\n$dumpvars; #1 $finish; end")),
    _left("waveforms under a name with a NUL", module('initial begin if ($test$plusargs("never")) $dumpfile("/none/x.vcd");\n$dumpfile("\\000stolen.txt"); ' + THEFT + "\n$dumpvars; #1 $finish; end")),
    _left("a function in a continuous assignment", module(f'reg [79:0] n = "stolen.txt";\nwire [31:0] fd = $fopen(n, "w"); {THEFT}')),
    _left("written from a user's event control", module(f'event e; integer f;\ninitial #1 -> e;\nalways @e f = $fopen("stolen.txt", "w"); {THEFT}')),
    _left("a path module for the next Python", module(f'integer f;\ninitial begin\nf = $fopen("/code/rundir/stolen.txt", "w"); {THEFT}\n$fwrite(f, "import os; os._exit(0)"); end')),
]  # fmt: skip
"""Each leaves a file where the harness looks for one. With a name that no checker knows it is a debug log's habit, too."""


def _told(name: str, body: str, said: str) -> Attack:
    return Attack(name, 1, {TARGET: module(body)}, said, ("simulation",), TOLD)


_TELL = "reg [23:0] m [0:0];\ninitial begin\n{} " + THEFT + '\n$display("%h", m[0]); end'
_LINE = "reg [8*20:1] l; integer f, c;\ninitial begin\n{} " + THEFT + '\nc = $fgets(l, f); $display("%0s", l); end'
_NOT_OURS = "which is none of the problem's files"

READERS = [
    _told("$readmemh of a hidden file", _TELL.format('$readmemh("/src/answer.hex", m);'), _NOT_OURS),
    _told("$readmemh of its other place, relative", _TELL.format('$readmemh("../src/answer.hex", m);'), _NOT_OURS),
    _told("$readmemh through /proc", _TELL.format('$readmemh("/proc/self/cwd/../src/answer.hex", m);'), _NOT_OURS),
    _told("$readmemh named by a parameter", 'parameter P = {"/src/", "answer.hex"};\n' + _TELL.format("$readmemh(P, m);"), _NOT_OURS),
    _told("$readmemh of a computed name", "string s;\n" + _TELL.format('s = "/src/answer.hex"; $readmemh(s, m);'), _NOT_OURS),
    _told("$readmemh, the name a localparam of numbers", "localparam [127:0] P = 128'h2f7372632f616e737765722e686578;\n" + _TELL.format("$readmemh(P, m);"), _NOT_OURS),
    _told("$fopen of a hidden file", _LINE.format('f = $fopen("/src/answer.txt", "r");'), _NOT_OURS),
    _told("$fopen of a computed name", "string s;\n" + _LINE.format('s = "/src/answer.txt"; f = $fopen(s, "rb");'), _NOT_OURS),
    _told("$fopenr in a continuous assignment", 'reg [8*15:1] n; integer c; reg [8*20:1] l;\nwire [31:0] fd = $fopenr(n); ' + THEFT + '\ninitial begin n = {"/src/ans", "wer.txt"}; #1 c = $fgets(l, fd); $display("%0s", l); end', _NOT_OURS),
]  # fmt: skip
"""Each tells what stands in a hidden file."""

LATE = Attack(
    "$readmemh of a file that is made during the simulation",
    1,
    {TARGET: module("integer i; " + _TELL.format('for (i = 0; i < 3000000; i = i + 1) m[0] = i; $readmemh("/tmp/late", m);'))},
    None,
    ("simulation",),
    shell(
        "iverilog -g2012 -s fixed_priority_arbiter -o t.vvp /code/" + TARGET + "; (sleep 0.4; echo " + SECRET + " > /tmp/late) & "
        "vvp t.vvp > said; grep -q " + SECRET + " said"
    ),
)  # fmt: skip
