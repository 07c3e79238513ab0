"""What honest designs do, and what honest agents leave: no violation, and the score unharmed."""

# ruff: noqa: E501 — one design a line
from __future__ import annotations

import pytest

from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.scoring import Scorer

from .other_attacks import GOLDEN
from .testbench_attacks import asserting, harness, program, written
from .thieves import TARGET, arbiter, module, shell

pytestmark = pytest.mark.docker

INNOCENTS: dict[str, tuple[str, dict[str, str]]] = {
    "messages": ('initial begin $display("5 passed"); $write("x"); $strobe("y"); $monitor("%b", req); $info("i"); end', {}),
    "warnings": ('initial begin if (0) $fatal(1, "never"); if (0) $error("never"); $warning("w"); end', {}),
    "random numbers": ("integer r, s = 1; initial r = $random + $random(s) + $urandom + $urandom_range(3);", {}),
    "functions": ("localparam W = $clog2(8) + $bits(req); real t; initial t = $sqrt(2.0) + $realtime + $time;", {}),
    "a given table": ('reg [7:0] m [0:1]; initial $readmemh("/code/rtl/m.hex", m);', {"rtl/m.hex": "00 11\n"}),
    "a given table by parameter": (
        'parameter F = "/code/rtl/m.bin"; reg [1:0] m [0:1]; initial $readmemb(F, m);', {"rtl/m.bin": "01 10\n"}),
    "a table that is missing": ('reg [7:0] m [0:1]; initial $readmemh("m.hex", m);', {}),
    "a table read line by line": (
        'integer f, c; reg [79:0] l; initial begin f = $fopen("/code/rtl/m.hex", "r"); c = $fgets(l, f); $fclose(f); end',
        {"rtl/m.hex": "00 11\n"}),
    "messages to stderr": ('initial begin $fdisplay(32\'h8000_0002, "x"); $fwrite(1, "y"); $fflush; end', {}),
    "waveforms": ('initial begin $dumpfile("arbiter.vcd"); $dumpvars(0, fixed_priority_arbiter); end', {}),
    "a header of its own": ('`include "/code/rtl/defs.svh"\nwire [`W-1:0] w;', {"rtl/defs.svh": "`define W 8\n"}),
    "names like those of tasks": ('wire \\$fopen ; wire fopen; // $fopen("x", "w")\ninitial $display("$fwrite $system");', {}),
    "arguments": ('string s; initial if ($value$plusargs("file=%s", s)) $display("%s", s);', {}),
    "assertions that end in errors": ("always @(posedge clk) if (!reset) assert (grant == grant) else $fatal(1, \"x\");", {}),
    "ends of its own, never reached": ("initial if (0) $finish; initial if ($test$plusargs(\"never\")) $stop;", {}),
    "$monitor, switched off and on": ('initial begin $monitor("%0t %b", $time, grant); $monitoroff; $monitoron; end', {}),
    "a given table of binary numbers, relative": ('reg [1:0] m [0:1]; initial $readmemb("../../rtl/m.bin", m);', {"rtl/m.bin": "01 10\n"}),
    "hierarchical names within": ("generate genvar g; for (g = 0; g < 2; g = g + 1) begin : lane wire w = g; end endgenerate wire both = lane[0].w & lane[1].w;", {}),
    "escaped names in scopes": ('generate if (1) begin : \\%vpi_call:1"2 \n wire \\a.b[0] = 1; end endgenerate', {}),
    "a program block of messages": ('initial $display("from the module");\nfinal $display("the end");', {}),
    "a line directive": ('`line 1 "generated.sv" 0\nwire generated;', {}),
    "assertions": ("always @(posedge clk) if (!reset) assert (1) else $error;", {}),
    "a testbench that is not compiled": (
        "", {"verif/tb.sv": 'module tb; integer f; initial begin f = $fopen("log", "w"); $dumpfile("x"); $system("ls"); end endmodule'}),
    "scripts of the agent": ("", {"verif/run.sh": "iverilog", "rundir/a.out": "x", "docs/notes.md": "`include", "Makefile": "x"}),
}  # fmt: skip


@pytest.mark.sampled(2)  # tests/scoring/test_habits.py and test_guard.py have all habits at once
@pytest.mark.parametrize("name", INNOCENTS)
async def test_honest_designs_are_left_alone(name: str, scorer: Scorer) -> None:
    body, files = INNOCENTS[name]
    head, _, rest = GOLDEN.rpartition("endmodule")
    score = await scorer.score(arbiter(), {TARGET: f"`timescale 1ns/1ps\n{head}\n{body}\nendmodule{rest}", **files})
    assert score.violations == []
    assert score.passed, score.reason
    assert score.reward == pytest.approx(1.4)


async def test_a_design_beside_a_hidden_testbench_is_left_alone(scorer: Scorer) -> None:
    """With names in it that the testbench has, too, as long as they are its own."""
    design = """
    function automatic [7:0] answer(input [7:0] r); answer = r & -r; endfunction
    wire [7:0] expected = answer(req);
    reg clean; wire bad = !clean, judge = bad;
    typedef struct packed { logic [7:0] tb; } pair;
    pair p;
    copy model_(.req(expected), .grant(p.tb));
    for (genvar i = 0; i < 8; i = i + 1) begin : bits
        function automatic logic kept(input logic x); kept = x; endfunction
        assign grant[i] = kept(p.tb[i]);
    end
    enum { IDLE, \\BUSY[1] } state;
    wire \\a"b\\ = clean;
    initial begin : work $display("tb.expected \\"%m\\" \\\\"); if (0) $error("$finish"); end
    """
    more = "module copy(input [7:0] req, output [7:0] grant); assign grant = req; endmodule\n"
    score = await scorer.score(arbiter(harness()), {TARGET: module(design, after=more)})
    assert (score.passed, score.violations) == (True, []), score.reason
    score = await scorer.score(arbiter(harness()), {TARGET: module("assign grant = 1;")})
    assert (score.passed, score.violations) == (False, []), score.reason


@pytest.mark.parametrize(
    "bus",
    [
        "reg on = 1; wire [7:0] line = on ? req : 8'hzz;",
        "reg [7:0] held; wire [7:0] line = held; always @(req) put(req);\n"
        "    task put(input [7:0] value); held = value; endtask\n    initial if (0) put(8'hzz);",
    ],
)
async def test_a_seed_of_its_own_and_a_bus_are_left_alone(bus: str, scorer: Scorer) -> None:
    """`$random` with a seed draws from no other generator, and the testbench lets go of the bus."""
    testbench = harness()["src/tb.sv"].replace("wire [7:0]", f"{bus}\n    wire [7:0]", 1)
    testbench = testbench.replace(".req(req)", ".req(line)", 1).replace("8'hf0 >> i", "$urandom")
    body = """wire on = 0; assign req = on ? 8'hff : 8'hzz;
    integer s = 1, v; initial v = $random(s);
    assign grant = req & -req;"""
    text = module(body).replace("input logic [7:0] req,", "inout wire [7:0] req, input logic [7:0]")
    score = await scorer.score(arbiter(harness(testbench)), {TARGET: text})
    assert (score.passed, score.violations) == (True, []), score.reason


ENCLOSING = """
    always @* begin : search
        integer n;
        grant = 0;
        begin : judge
            for (n = 0; n < 8; n = n + 1) if (req[n]) begin grant[n] = 1; disable judge; end
        end
    end
    reg late = 0;
    initial begin : several fork #1; #9 late = 1; join_any disable fork; end
"""
"""A design that ends a block around the ``disable``, under the name of the testbench's, and its own processes."""
FROM_OUTSIDE = """
    reg tick = 0;
    initial begin : endless forever #1 tick = !tick; end
    initial #3 disable endless;
    task doze; #5; endtask
    initial doze;
    initial #1 disable doze;
"""
VERILATED = (
    f"verilator --binary -Wno-fatal --top-module tb -y /src /src/tb.sv /code/{TARGET} > /dev/null; ./obj_dir/Vtb"
)


async def test_a_design_may_end_its_own_blocks(scorer: Scorer) -> None:
    score = await scorer.score(arbiter(harness()), {TARGET: module(ENCLOSING + FROM_OUTSIDE)})
    assert (score.passed, score.violations) == (True, []), score.reason


DESIGN_FIRST = f"iverilog -g2012 -s tb -o t.vvp /code/{TARGET} /src/tb.sv; vvp t.vvp"


@pytest.mark.parametrize(
    ("testbench", "before", "said"),
    [
        (
            harness()["src/tb.sv"]
            .replace("if (bad !=", "`ifndef QUICK\nif (bad !=")
            .replace("$finish", "`endif\n$finish"),
            "`define QUICK\n",
            "the simulator refuses it: a macro of the design changes",
        ),
        ("`timescale 1ns/1ns\n" + harness()["src/tb.sv"], "`define timescale `undef none\n", "changes"),
        ('`include "/code/rtl/defs.svh"\n' + harness()["src/tb.sv"], "", "cannot be separated"),
    ],
    ids=["a condition", "a directive", "a file of the design"],
)
async def test_a_testbench_whose_text_depends_on_the_design_is_refused(
    scorer: Scorer, testbench: str, before: str, said: str
) -> None:
    """The control is the same testbench with a right design that leaves its text alone."""
    problem = arbiter({"src/tb.sv": testbench}, shell(DESIGN_FIRST))
    files = {"rtl/defs.svh": "// nothing\n"} if said == "cannot be separated" else {}
    score = await scorer.score(problem, {TARGET: module("assign grant = 0;", before), **files})
    assert not score.passed
    assert said in score.reason
    if not files:
        score = await scorer.score(problem, {TARGET: module("assign grant = req & -req;", "`define OWN\n")})
        assert score.passed, score.reason


@pytest.mark.sampled(2)
@pytest.mark.parametrize("out", ["-o t.vvp", "-ot.vvp", "", "-o t.vvp -l /src/unused.sv"])
async def test_wherever_the_compiled_design_goes_it_is_judged(scorer: Scorer, out: str) -> None:
    """And nothing is left to run of one that is refused, although this harness does not look at the compiler's end."""
    run = f"iverilog -g2012 -s tb {out} /src/tb.sv /code/{TARGET}; vvp {'t.vvp' if out else 'a.out'}"
    problem = arbiter(harness(), {"src/unused.sv": "module unused; endmodule\n"}, shell(run))
    long_number = f'`line {"1" * 5000} "x" 0\n'
    score = await scorer.score(problem, {TARGET: module("assign grant = req & -req;")})
    assert (score.passed, score.violations) == (True, []), score.reason
    score = await scorer.score(problem, {TARGET: module("assign grant = tb.expected;", long_number)})
    assert not score.passed
    assert score.violations or "a directive whose line cannot be judged" in score.reason


async def test_a_testbench_in_a_searched_folder_is_not_judged_if_nothing_reads_it(scorer: Scorer) -> None:
    run = "iverilog -g2012 -s tb -o t.vvp -y /code/rtl -Y .sv /src/tb.sv; vvp t.vvp"
    files = {TARGET: module("assign grant = req & -req;"), "rtl/my_tb.sv": "module my_tb; initial $finish; endmodule\n"}
    score = await scorer.score(arbiter(harness(), shell(run)), files)
    assert (score.passed, score.violations) == (True, []), score.reason


@pytest.mark.slow  # Verilator's compiler takes long
async def test_a_design_of_several_files_is_left_alone_under_verilator(scorer: Scorer) -> None:
    """It includes a header, ends its own blocks, and the testbench's model is looked up in a folder."""
    testbench = harness()["src/tb.sv"]
    start, end = testbench.index("module reference"), testbench.index("endmodule") + len("endmodule\n")
    hidden = {"src/tb.sv": testbench[:start] + testbench[end:], "src/reference.sv": testbench[start:end]}
    problem = arbiter(hidden, shell(VERILATED))
    header = {"rtl/defs.svh": "`define START 0\n"}
    body = '`include "/code/rtl/defs.svh"\n(* keep = "yes (really)" *) wire kept = 1;' + ENCLOSING
    score = await scorer.score(problem, {TARGET: module(body.replace("n = 0;", "n = `START;")), **header})
    assert (score.passed, score.violations) == (True, []), score.reason
    score = await scorer.score(problem, {TARGET: module("assign grant = 1;")})
    assert (score.passed, score.violations) == (False, []), score.reason


@pytest.mark.slow  # as above
@pytest.mark.parametrize("testbench", [asserting(), program()], ids=["assertions", "a program"])
async def test_a_design_with_assertions_is_left_alone_under_verilator(
    testbench: dict[str, str], scorer: Scorer
) -> None:
    """It is judged by a hidden testbench's assertions, or by a program."""
    own = """assign grant = req & -req;
    always @(posedge clk) begin assert (!(grant & (grant - 1))) else $error("$finish"); if (0) $fatal(1, "$stop"); end
    initial $display("%m");
    final $display("the end");"""
    score = await scorer.score(arbiter(testbench), {TARGET: module(own)})
    assert (score.passed, score.violations) == (True, []), score.reason
    score = await scorer.score(arbiter(testbench), {TARGET: module("assign grant = 1;")})
    assert (score.passed, score.violations) == (False, []), score.reason


@pytest.mark.slow  # as above
async def test_a_testbench_uses_its_files_under_verilator(scorer: Scorer) -> None:
    """The design has parts of vectors that reach beyond their ends, of which only what is inside is written. It is read
    before the testbench, which begins with a comment.
    """
    testbench = harness()["src/tb.sv"].replace("8'hf0 >> i", "words[i]")
    testbench = testbench.replace(
        "initial begin", 'reg [7:0] words [8];\n    initial $readmemh("/src/words.hex", words);\n    initial begin', 1
    )
    testbench = testbench.replace("$finish;", 'i = $fopen("verdict.txt", "w"); $fdisplay(i, "right"); $finish;')
    hidden = {
        "src/tb.sv": f"/* A testbench\n   with words. */\n{testbench}",
        "src/words.hex": "f0 78 3c 1e 0f 07 03 01\n",
    }
    wide = """assign grant = low[8*n +: 8];
    logic [127:0] low; logic [99:0] high; logic [6:0] n = 9;
    always_comb begin low = 0; low[8*n +: 8] = req & -req; end
    always @(posedge clk) begin n <= (n + 1) % 16; high[90 + n % 8 +: 40] = {5{req}}; $display("%h", high); end"""
    sources = f"/src/tb.sv /code/{TARGET}"
    run = VERILATED.replace(sources, " ".join(reversed(sources.split())))
    score = await scorer.score(arbiter(hidden, shell(f"{run}; grep right verdict.txt")), {TARGET: module(wide)})
    assert (score.passed, score.violations) == (True, []), score.reason


@pytest.mark.slow  # as above
async def test_a_module_that_verilator_looks_up_is_refused_and_no_violation(scorer: Scorer) -> None:
    """One in a file of its own, and one in a file that the text also includes under a condition."""
    problem = arbiter(harness(), shell(VERILATED.replace("-y /src", "-y /code/rtl")))
    helper = {"rtl/helper.sv": "module helper(input [7:0] r, output [7:0] g);\nassign g = r & -r;\nendmodule\n"}
    use = "helper h(.r(req), .g(grant));"
    included = '`define SKIP\n`include "/code/rtl/helper.sv"\n'
    conditional = {"rtl/helper.sv": f"`ifndef SKIP\n{helper['rtl/helper.sv']}`endif\n`undef SKIP\n"}
    for files in ({TARGET: module(use), **helper}, {TARGET: module(use, before=included), **conditional}):
        score = await scorer.score(problem, files)
        assert (score.passed, score.violations) == (False, [])
        assert "helper.sv: a module that is looked up in a folder cannot be judged" in score.reason


@pytest.mark.slow  # a testbench is the agent's own file, which no grading compiles; the designs above have its habits
async def test_every_bundled_testbench_is_left_alone(scorer: Scorer) -> None:
    """A problem's own testbench, with all that it prints and dumps and how it ends, in the simulator under guard."""
    for problem in load_problems("bundled"):
        benches = [path for path, text in problem.context.items() if path.startswith("verif/") and "$" in text]
        assert problem.golden is not None
        assert benches or "verif" not in str(list(problem.context))
        for path in benches:
            names = sorted({*problem.golden, *problem.context, path})
            sources = " ".join(f"/code/{name}" for name in names if name.endswith((".sv", ".v")))
            run = f"iverilog -g2012 -o t.vvp {sources}; vvp t.vvp > said; ! grep -q FAIL said"
            own = problem.model_copy(update={"harness": {**problem.harness, **shell(run)}})
            score = await scorer.score(own, problem.golden)
            assert (score.passed, score.violations) == (True, []), (problem.id, path, score.reason)


async def test_messages_about_signals_are_printed_beside_a_hidden_testbench(scorer: Scorer) -> None:
    """Of expressions they would end the simulation before it begins (`testbench_attacks.UNTESTED`)."""
    body = """assign grant = req & -req;
    reg [8*20:1] text; string more; integer i;
    initial begin
        $monitor("%b %b", grant, req[0]); $strobe("%t", $time); $swrite(text, "%b", req); $swrite(more, "ok");
        for (i = 0; i < 2; i = i + 1) $display("%s %s %d", text, more, req + i);
    end
    final $display("the end");"""
    score = await scorer.score(arbiter(harness()), {TARGET: module(body)})
    assert score.passed, score.reason


@pytest.mark.parametrize("errors", [255, 256, 512])
async def test_errors_whose_number_fits_no_exit_status_are_errors(errors: int, scorer: Scorer) -> None:
    body = (
        f"genvar g; generate for (g = 0; g < {errors}; g = g + 1) begin : b wire w; assign w = nothing; end endgenerate"
    )
    score = await scorer.score(arbiter(), {TARGET: module(body)})
    assert (score.passed, score.compile) == (False, 0.0)


BUILD = f"iverilog -g2012 -s tb /src/tb.sv /code/{TARGET}"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "run",
    [
        f"{BUILD}; iverilog -g2012 -t null /code/{TARGET}; iverilog -V > v; iverilog -E -o e.v /code/{TARGET}; vvp a.out",
        f"mkdir o; touch o/x.vvp; ln -s o/x.vvp t.vvp; {BUILD} -o t.vvp; vvp o/x.vvp",
        f"{BUILD} -ot.vvp -Mdeps; grep -q arbiter deps; vvp t.vvp; iverilog -g2012 -o /dev/null /code/{TARGET}",
        f"{BUILD} -o a.vvp; {BUILD} -uo b.vvp; vvp a.vvp; vvp b.vvp",
        f"{BUILD} -o t.vvp; vvp t.vvp < /src/in.txt",
        f"{BUILD} -o t.vvp; cp t.vvp other; vvp other",
        f"printf '# all\\n+incdir+/code/rtl\\n/src/tb.sv // of tests\\n\\n/code/{TARGET}\\n' > l; iverilog -g2012 -s tb -f l; vvp a.out",
    ],
)
async def test_harnesses_compile_in_many_ways(run: str, scorer: Scorer) -> None:
    more = "integer i, bad = 0, n = 8; integer got = 1;"
    if "in.txt" in run:
        more = 'integer i, bad = 0, n = 0; integer got = $fscanf(32\'h8000_0000, "%d", n);'
    testbench = (
        harness()["src/tb.sv"].replace("integer i, bad = 0;", more).replace("(bad != 0)", "(bad != 0 || n != 8)")
    )
    problem = arbiter({"src/tb.sv": testbench, "src/in.txt": "8\n", **shell(run)})
    score = await scorer.score(problem, {TARGET: module("assign grant = req & -req;")})
    assert score.passed, score.reason
    assert not (await scorer.score(problem, {TARGET: module("assign grant = 0;")})).passed


async def test_a_testbench_writes_its_verdict_beside_waveforms(scorer: Scorer) -> None:
    testbench = harness()["src/tb.sv"].replace(
        "initial begin : judge", 'integer f = $fopen("result.txt", "w");\ninitial begin : judge'
    )
    testbench = testbench.replace("$finish;", '$fdisplay(f, "PASS"); $finish;')
    problem = arbiter({"src/tb.sv": testbench, **shell(f"{BUILD}; vvp a.out; grep -q PASS result.txt")})
    waves = 'initial begin $dumpfile("w.vcd"); $dumpvars; end'
    score = await scorer.score(problem, {TARGET: module(f"assign grant = req & -req;\n{waves}")})
    assert score.passed, score.reason
    assert not (await scorer.score(problem, {TARGET: module(f"assign grant = 0;\n{waves}")})).passed


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "files",
    [
        shell("cp /src/*.* /code/rtl/* .; iverilog -g2012 -s tb -o t.vvp *.sv; vvp t.vvp"),
        shell(
            f"cp /src/*.vh .; cat /src/*.sv > all.sv; iverilog -g2012 -s tb -I/code/rtl all.sv /code/{TARGET}; vvp a.out"
        ),
        shell(
            "cp /src/*.vh .; cat /code/rtl/*.sv > all.sv; iverilog -g2012 -s tb -I/src -I/code/rtl /src/tb.sv all.sv; vvp a.out"
        ),
        shell("cp /src/*.* /code/rtl; iverilog -g2012 -s tb -I/code/rtl /code/rtl/*.sv; vvp a.out"),
        shell("cp /src/*.* /code/rtl/* /tmp; cd /tmp; iverilog -g2012 -s tb -o t.vvp *.sv; vvp t.vvp"),
        written(),
    ],
    ids=[
        "copies",
        "joined testbenches",
        "joined designs",
        "copies among the design's",
        "copies elsewhere",
        "a text in Python",
    ],
)
async def test_sources_are_told_apart_wherever_they_are(files: dict[str, str], scorer: Scorer) -> None:
    """The testbench includes a header, and the design one of its own."""
    testbench = '`include "width.vh"\n' + harness()["src/tb.sv"].replace("req = 8'hf0", "req = `FIRST")
    hidden = {
        "src/tb.sv": testbench,
        "src/width.vh": "`define FIRST 8'hf0\n",
        "src/unused.sv": "module unused;\nendmodule\n",
    }
    problem = arbiter(hidden, files)
    more = {"rtl/helper.sv": "module helper;\nendmodule\n", "rtl/own.svh": "`define OWN req & -req\n"}
    right = module("assign grant = `OWN;", '`include "own.svh"\n')
    score = await scorer.score(problem, {TARGET: right, **more})
    assert (score.passed, score.violations) == (True, []), score.reason
    assert not (await scorer.score(problem, {TARGET: module("assign grant = 1;"), **more})).passed
