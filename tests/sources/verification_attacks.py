"""Benches that try to tell designs apart by something else than their ports, and the designs that they are tried on."""

# ruff: noqa: E501 (texts of benches, one a line)

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.sources.derivation import with_prefix
from rtl_agent_gym.sources.verification.derived import Findings, Kind, VerifyOptions, cases, verification_problem

HEAD = "module counter (input wire clk, input wire rst, input wire en, output wire [3:0] q);\n"
RIGHT = HEAD + (
    "    reg [3:0] state;\n    assign q = state;\n"
    "    always @(posedge clk) if (rst) state <= 0; else if (en) state <= state + 1;\nendmodule\n"
)
TWINS = {
    "inverted": HEAD + (
        "    reg [3:0] state;\n    wire only_here = 1;\n    assign q = ~state;\n"
        "    always @(posedge clk) if (rst) state <= 15; else if (en) state <= state - 1;\nendmodule\n"
    ),
    "glitching": HEAD + (
        "    reg [3:0] state;\n    reg glitch = 0;\n    wire only_here = 1;\n    assign q = state ^ {4{glitch}};\n"
        "    always @(posedge clk) begin\n        glitch = 1;\n        glitch <= 0;\n"
        "        if (rst) state <= 0; else if (en) state <= state + 1;\n    end\nendmodule\n"
    ),
    "strengths": HEAD + (
        "    reg [3:0] state;\n    wire only_here = 1;\n    assign (pull0, pull1) q = state;\n"
        "    always @(posedge clk) if (rst) state <= 0; else if (en) state <= state + 1;\nendmodule\n"
    ),
    "reading its output": HEAD + (
        "    wire only_here = 1;\n    reg [3:0] next;\n    assign q = next;\n"
        "    always @(posedge clk) if (rst) next <= 0; else if (en) next <= q + 1;\nendmodule\n"
    ),
}  # fmt: skip
"""Designs that behave like the right one at their ports; a bench that rejects one of them has another way."""
WRONG = RIGHT.replace("state + 1", "state + 2")
_ANY_TIME = ("@(posedge clk)", "@(posedge clk or posedge rst)")
ASYNCHRONOUS, ITS_TWIN = RIGHT.replace(*_ANY_TIME), TWINS["glitching"].replace(*_ANY_TIME)
"""A right design that is reset at any time, and one that behaves like it."""


def bench(at_end: str = "", inside: str = "", before: str = "", head: str = "`timescale 1ns/1ps\n") -> str:
    """A testbench that counts, and then does what an attack does."""
    return (
        f"{head}{before}module testbench;\n    reg clk = 0, rst = 1, en = 1;\n    wire [3:0] q;\n"
        "    integer n = 0, file = 0, got = 0;\n    reg [8*64:1] line;\n    reg [31:0] memory [0:9];\n"
        "    counter dut (.clk(clk), .rst(rst), .en(en), .q(q));\n    always #5 clk = ~clk;\n"
        f"    {inside}\n    initial begin\n        #22 rst = 0;\n        #98;\n        {at_end}\n        #10 $finish;\n    end\n"
        "endmodule\n"
    )


RECURSION = (
    "function automatic integer deep(input integer x); deep = x < 0 ? 0 : deep(x + 1) + deep(x + 2); endfunction"
)
HONEST = bench("if (q !== 10) $error;")
RESET_ONLY = bench("rst = 1; #10 if (q !== 0) $error;")


@dataclass(frozen=True)
class Control:
    """A guard that is removed: texts of the harness's files that are replaced, and whether the wall is open too."""

    replaced: tuple[tuple[str, str, str], ...]
    open_wall: bool = False


_ALL_CALLS = ("src/simulation.py", "if name not in ALLOWED and", "if False and")
_ONE_TOKEN = ("src/test_runner.py", '"h" + digest.hexdigest()[:32]', '"hidden"')
_NO_STUB = (
    "src/test_runner.py",
    '            raise Unfit("the bench does not compile with the ports of the design alone")\n'
    '    bench = plain.read_text(encoding="utf-8", errors="surrogateescape")\n'
    '    unit = finest_unit(compiled(folder, token, {"around.sv": around, "bench.sv": bench}))',
    '            pass\n    bench, unit = open(BENCH, encoding="utf-8").read(), "1ps"',
)
_FORCE = ("src/simulation.py", "if FORCES.search(compiled)", "if False")
_NO_TIMES = ("src/test_runner.py", "assert differs is not None", "assert True")
KNOWN_NAMES = Control((_ONE_TOKEN, _NO_STUB, _FORCE, _NO_TIMES))
FILES = Control((_ALL_CALLS, _NO_TIMES), open_wall=True)
TIMES = Control((_NO_TIMES,))
PORTS = Control(
    (
        ("src/simulation.py", 'f".{name}({token}_{name})"', 'f".{name}({name})"'),
        ("src/simulation.py", 'f"assign {goal} = {source};"', '""'),
        _NO_TIMES,
    )
)
DRIVEN = Control((("src/simulation.py", 'outputs = [f"{token}_{name}" for', "outputs = [name for"),))
MEMORY = Control((("src/test_runner.py", "text.find(RAW) >= 0", "False"),))
FAULTS = Control(
    (
        ("src/test_runner.py", 'assert found.verdict == "rejected"', 'assert found.verdict != "accepted"'),
        ("src/test_runner.py", "differs = first_difference(RIGHT.trace, found.trace, found.time)", "differs = 0"),
    )
)


@dataclass(frozen=True)
class Attack:
    """A bench that must earn nothing."""

    name: str
    text: str
    control: Control | None = None
    """Without this guard the attack succeeds; None if that is not tried."""
    wrong: bool = False
    """Whether it is tried on a wrong design, which it must not kill by such means, instead of the twins."""
    files: tuple[tuple[str, str], ...] = ()
    """More submitted files."""


def _reads(path: str, mode: str = "r") -> str:
    return (
        f'file = $fopen("{path}", "{mode}"); while (file != 0 && $fgets(line, file) != 0) '
        'for (n = 0; n < 50; n = n + 1) if (line[8*n+1 +: 72] == "only_here") got = 1; if (got) $error;'
    )


_NOTICING, _NOTICED = "always @(q) if ($time > 20) n = n + 1;", "if (n > 12)"
"""A count of the output's changes, and whether there were more than settled ones."""

SHORT_RESET = bench(
    "if (q !== 10) $error;",
    f"{_NOTICING} always @(q) {_NOTICED} begin n = -99; #0.0001 rst = 1; #0.0003 rst = 0; end",
    head="`timescale 1ns/1fs\n",
)
"""A reset that is over within the picosecond in which the output changed more than once."""


def read_twice(first: str, then: str) -> str:
    """A parameter that is `first` where a bench is preprocessed once, and `then` where it is preprocessed again.

    Icarus ignores the rest of a line after `suppress_faults, and its preprocessor does not.
    """
    return (
        f"`define TICK(x) `\nlocalparam x = {first};\n`suppress_faults `TICK(1)define M(x) \\\nlocalparam got = x;\n"
        f"`suppress_faults `TICK(1)M({then})\n"
    )


HIDDEN_UNIT = SHORT_RESET.replace(
    "`timescale 1ns/1fs\n", "`timescale 1ns/1ps\n" + read_twice("0", "0; `TICK(1)timescale 1ns/1fs")
)
"""The same, with a unit of time that is not there at first."""

ATTACKS = [
    # ---- names inside of the design
    Attack("a signal by its name", bench("if (dut.state !== q) $error;")),
    Attack("a signal by its whole path", bench("if (dut.inner_hidden.state !== q) $error;"), KNOWN_NAMES),
    Attack("a signal by $root", bench("if ($root.testbench.dut.inner_hidden.state !== q) $error;")),
    Attack("a signal by an escaped name", bench("if (\\dut .\\state !== q) $error;")),
    Attack("a name in a condition of a generate block", bench(inside="if ($bits(dut.only_here)) initial $error;")),
    Attack("a signal in a sensitivity list", bench(inside="always @(dut.inner_hidden.only_here) $error;")),
    Attack("a signal set by name", bench("dut.state = 3; #1 if (q !== 3) $error;")),
    Attack("force inside of the design", bench("force dut.state = 3; #1 if (q === 12) $error;")),
    Attack(
        "force of the known path",
        bench("force dut.inner_hidden.state = 3; #1 if (q === 12) $error;"),
        KNOWN_NAMES,
    ),
    Attack("a parameter of the design", bench(inside="defparam dut.only_here = 2;")),
    Attack("a parameter in the instance", bench().replace("counter dut", "counter #(.only_here(2)) dut")),
    Attack("bind", bench(before="bind counter spy s();\nmodule spy; initial if (only_here) $error; endmodule\n")),
    Attack("a name that resolves upwards", bench("if (only_here) $error;")),
    Attack("the type of a signal", bench('if ($typename(dut.state) == "reg") $error;')),
    Attack("the type of the output", bench('if ($typename(dut.q) != "logic[3:0]") $error;')),
    Attack("the name of the scope", bench('$sformat(line, "%m"); if (line == "testbench.dut") $error;')),
    Attack("disable of the judge", bench("disable judge_hidden; $error;")),
    # ---- the design's text, files and arguments
    Attack("the compiled file", bench(_reads("sim.vvp")), FILES),
    Attack("the hidden designs, included", '`include "/src/designs/mutant_01.sv"\n' + HONEST),
    Attack("the hidden designs, included by detours", '`include "../../src/designs/mutant_01.sv"\n' + HONEST),
    Attack("the hidden designs, by a macro", "`define A include\n`define B ``A\n`B \"/src/designs/mutant_01.sv\"\n" + HONEST),
    Attack(
        "the hidden designs, by a directive that a macro leaves",
        "`define Q(x) `` `x\n`Q(include) \"/src/designs/mutant_01.sv\"\n" + HONEST,
    ),
    Attack("the hidden designs, read", bench(_reads("/src/designs/mutant_01.sv"))),
    Attack("the hidden settings in a memory", bench('$readmemh("/src/judge.json", memory); $error;')),
    Attack("the process's arguments", bench(_reads("/proc/self/cmdline"))),
    Attack(
        "a count of the runs in a file",
        bench(
            'file = $fopen("/code/rundir/count", "r"); if (file != 0) while ($fgetc(file) != -1) n = n + 1; '
            'file = $fopen("/code/rundir/count", "a"); $fwrite(file, "x"); $fclose(file); if (n >= 1) $error;'
        ),
        FILES,
    ),
    Attack("waveforms that are read back", bench('$dumpfile("/code/rundir/a"); $dumpvars; #1 $dumpflush; '
                                                  + _reads("/code/rundir/a"))),
    Attack("the standard input", bench("got = $fgetc(32'h8000_0000); if (got >= 0) $error;")),
    Attack("a program", bench('$system("grep -q only_here sim.vvp && kill $PPID"); $error;')),
    Attack("arguments of the simulator", bench('if ($test$plusargs("mutant")) $error;')),
    Attack("values in arguments of the simulator", bench('if ($value$plusargs("run=%d", n)) $error;')),
    Attack("the drivers of a net", bench("if ($countdrivers(q[0], n)) $error;")),
    Attack("$deposit", bench("$deposit(q, 3); #1 if (q !== 3) $error;")),
    Attack("$sdf_annotate", bench('$sdf_annotate("/code/docs/x.sdf", dut); $error;')),
    Attack("another design in rtl/", HONEST, files=(("rtl/design.sv", WRONG),)),
    Attack("a second module of the design's name", HONEST + WRONG),
    # ---- more than the settled values of ports
    Attack("a count of the changes within a time", bench(f"{_NOTICED} $error;", _NOTICING), TIMES),
    Attack("a clock pulse within a time", bench(f"{_NOTICED} begin clk = 0; #0 clk = 1; #0 clk = 0; #1 $error; end", _NOTICING), TIMES),
    Attack("a clock pulse without a wait", bench(f"{_NOTICED} begin #0 clk = 1; clk = 0; #1 $error; end", _NOTICING), TIMES),
    Attack(
        "an order of input and clock within a time",
        bench(
            f"#1 {_NOTICED} early = 1; else late = 1; #5 {_NOTICED} $error;",
            f"{_NOTICING} reg early = 0, late = 0; always begin #5 if (early) en = 0; #0 clk = ~clk; #0 if (late) en = 0; end",
        ).replace("always #5 clk = ~clk;", ""),
        TIMES,
    ),
    Attack(
        "an input of one of two instances",
        bench(
            f"{_NOTICED} begin #1 turned = 1; #1 $error; end",
            f"{_NOTICING} reg turned = 0; wire [3:0] q2; counter second (.clk(clk), .rst(rst), .en(turned), .q(q2));",
        ),
        TIMES,
    ),
    Attack("the strength of the output", bench('$sformat(line, "%v", q[0]); if (line != "St0") $error;'), PORTS),
    Attack(
        "a driver against the output's",
        bench(
            "fight = 1; #1 if (q === 4'b0101) $error;",
            "reg fight = 0; assign (strong0, strong1) q = fight ? 4'b0101 : 4'bz;",
        ),
        PORTS,
    ),
    Attack(
        "a value driven into the output",
        bench(
            "if (q !== 10) $error;",
            "reg [3:0] push = 4'bz; assign (supply0, supply1) q = push; initial begin #47 push = 9; #10 push = 4'bz; end",
        ),
        PORTS,
    ),
    Attack(
        "a difference that it drives itself",
        bench(
            f"{_NOTICED} begin drives = 1; #1 $error; end",
            f"{_NOTICING} reg drives = 0; assign (supply0, supply1) q = drives ? 4'd0 : 4'bz;",
        ),
        DRIVEN,
    ),
    Attack("force on a signal of its own", bench("force q = 3; #1 if (dut.q !== 3) $error;")),
    Attack("a text like the compiled file's", bench('$display("\\n    .scope S_1;\\n    %vpi_call 0 0 \\"$finish\\" {0 0 0};\\n");')),
    Attack(
        "a parameter like the compiled file's",
        bench(inside='localparam S = "x\\n    .thread T_1, $final;\\n    .scope S_1;\\n"; initial $display(S);'),
    ),
    Attack("a rejection by chance", bench("if ($urandom % 2) $error;")),
    Attack("a rejection by chance, with the time as a seed", bench("n = $time; if ($random(n) % 3 == 0) $error;")),
    Attack("a rejection before anything happens", bench(inside="initial $fatal;")),
    Attack("a rejection in a final block", bench(inside="final $error;")),
    # ---- a verdict by other means, on a wrong design
    Attack("no module at all", "", wrong=True),
    Attack("accepts everything", bench(), wrong=True),
    Attack("rejects everything", bench("$error;"), wrong=True),
    Attack("a time-out for a verdict", bench("if (q !== 10) while (1) n = n + 1;"), FAULTS, wrong=True),
    Attack("a crash for a verdict", bench("if (q !== 10) got = deep(1);", RECURSION), FAULTS, wrong=True),
    Attack("an endless clock for a verdict", bench("if (q !== 10) wait (0);"), FAULTS, wrong=True),
    Attack("an exit status for a verdict", bench("if (q !== 10) $finish_and_return(1);"), wrong=True),
    Attack("a printed verdict", bench('if (q !== 10) $display("\\nhidden E 0\\nERROR: rejected\\nFATAL: 1");'), wrong=True),
    Attack(
        "what lies in the simulator's memory",
        bench('$swrite(line, "%s%u", "abc", r); if (q !== 10) $error;', "real r = 1;"),
        MEMORY,
        wrong=True,
    ),
    Attack("a warning for a verdict", bench("if (q !== 10) $warning;"), wrong=True),
    Attack("a stop for a verdict", bench("if (q !== 10) $stop;"), wrong=True),
    Attack("an early end by another file", bench(), wrong=True, files=(("verif/other.sv", "initial $fatal;"),)),
]  # fmt: skip


def checker(body: str) -> str:
    """A checker of the ports, with what an attack does."""
    return (
        "`timescale 1ns/1ps\nmodule port_checker (input wire clk, input wire rst, input wire en, input wire [3:0] q);\n"
        f"    reg [8*64:1] line;\n    integer n = 0;\n    {body}\nendmodule\n"
    )


CHECKER_ATTACKS = {
    "the design by the name in the given stimuli": checker("always @(posedge clk) if (stimuli.dut.state !== q) $error;"),
    "the design by a name that resolves upwards": checker("always @(posedge clk) if (dut.state !== q) $error;"),
    "the stimuli by their name": checker("initial stimuli.seed = 3;"),
    "its own path": checker('initial begin $sformat(line, "%m"); $display("%0s", line); if (line == 0) $error; end'),
    "an end before the stimuli's": checker("initial #100 $finish;"),
    "an input that is driven": checker("assign q = 3;"),
    "force on an input": checker("initial force q = 3;"),
    "a rejection at the start": checker("initial $error;"),
    "a module of the stimuli's name": checker("") + "module stimuli; endmodule\n",
    "a count of changes within a time": checker("always @(q) if ($time > 40) n = n + 1; always @(negedge clk) begin "
                                                "#1 if (n > 1) $error; n = 0; end"),
}  # fmt: skip


COIN = checker(
    read_twice('""', "`TICK(1)__FILE__")
    + 'reg [8*200:1] names; integer sum = 0; initial begin $swrite(names, "%m%s", got); '
    "for (n = 0; n < 200; n = n + 1) sum = sum + names[8*n+1 +: 8]; end final if (sum % 8 == 0) $error;"
)
"""A checker that rejects by the letters of its path and of its file's name, and so one time in eight if they change."""


def problem_with(design: str, top: str) -> Problem:
    """A problem whose reference solution is a design with this top module."""
    [member] = load_problems("family:registers?count=1")
    harness = {path: text for path, text in member.harness.items() if path != "src/case.json"}
    old = member.harness["src/.env"].split("TOPLEVEL        = ")[1].split()[0]
    harness["src/.env"] = harness["src/.env"].replace(old, top)
    return member.model_copy(update={"harness": harness, "golden": {"rtl/design.sv": design}})


def problem_of(
    mutants: Iterable[str], control: Control | None = None, kind: Kind = "stimulus", right: str = RIGHT
) -> Problem:
    """A problem with one right design and some others, perhaps without a guard."""
    base = problem_with(right, "counter")
    options = VerifyOptions(kind=kind)
    [case] = cases([base], options)
    made = verification_problem(case, Findings(key=case.key, problem_id=base.id), options)
    texts = {f"mutant_{number:02}.sv": text for number, text in enumerate(mutants, 1)}
    files = {path: text for path, text in made.harness.items() if not path.startswith("src/designs/")}
    settings = json.loads(files["src/judge.json"]) | {"mutants": list(texts), "right": ["right.sv"], "seconds": 2}
    files["src/judge.json"] = json.dumps(settings)
    for name, text in {"right.sv": right, **texts}.items():
        files[f"src/designs/{name}"] = with_prefix(text, "HIDDEN0_")
    for path, old, new in control.replaced if control else ():
        assert old in files[path], old
        files[path] = files[path].replace(old, new)
    return made.model_copy(update={"harness": files})
