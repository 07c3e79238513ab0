"""The guard in front of the simulators, in real sandboxes; `attacks/` has the thefts themselves."""

from __future__ import annotations

import getopt
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from rtl_agent_gym.problems import Problem
from rtl_agent_gym.sandboxes import SandboxProvider, SandboxSpec
from rtl_agent_gym.scoring import Scorer
from rtl_agent_gym.scoring.grader import compiled as tables
from rtl_agent_gym.scoring.grader import measures, options_files, sources
from rtl_agent_gym.scoring.grader.compiled import check_vvp
from rtl_agent_gym.scoring.grader.connections import benches_files, benches_with_files
from rtl_agent_gym.scoring.grader.guard import compiled_design, run_iverilog
from rtl_agent_gym.scoring.harness import Defences
from tests.counters import counted

from .conftest import EMPTY, ENV, GOLDEN, HEADER, TARGET, inside, make_problem

MOMENT = 1_700_000_000_000_000_000
"""A time of a file, in nanoseconds."""
FORGED = "<testsuites><testsuite name='all' package='all'><testcase name='a' classname='b'/></testsuite></testsuites>"


def check(folder: Path, *statements: str, names: str = '"N/A"; "<interactive>"; "/code/rtl/a.sv";') -> Any:
    """What is said of a compiled design: (violations, refusals, whether its waveforms are left out)."""
    footer = "".join(f"\n    {name};" for name in names.rstrip(";").split("; "))
    head = ':vpi_module "/usr/local/lib/ivl/system.vpi";\n'
    (folder / "t.vvp").write_text(head + "\n".join(statements) + f"\n:file_names 3;{footer}\n")
    return check_vvp(str(folder / "t.vvp"))


def test_every_call_is_found_with_its_place(tmp_path: Path) -> None:
    violations, refusals, _ = check(
        tmp_path,
        'S_1 .scope module, "a;\\"$x" "%vpi_call 1 2 \\"$system\\"" 2 1;',
        '    %vpi_call/w 2 4 "$display", "a;\\042 %vpi_call 2 5 \\042$system\\042" {0 0 0};',
        '    %vpi_func 2 5 "$popen" 32, "x\\001\\042y", "w" {0 0 0};',
        'L_2 .sfunc 2 6 "$unknown", "v32v8", L_1;',
        "TD_a.sfunc ;",
        '    %vpi_call 2 7 "$ivl_queue_method$push_back", v0 {0 0 0};',
    )
    assert violations == ["rtl/a.sv:5: $popen reaches out of the simulation"]
    assert refusals == ["rtl/a.sv:6: $unknown is no task or function of this simulator"]


@pytest.mark.parametrize(
    ("tasks", "benches"),
    [
        ("$fopen $readmemh", "none"),
        ("$fgets $fgetc $fread $fscanf $fseek", "read"),
        ("$fwrite $fdisplay $writememh", "read"),
        ("$dumpfile $dumpvars", "dumps"),
        ("$display $finish $fatal $floor $fflush", "all"),
    ],
)
def test_a_testbench_uses_no_files_in_the_way_that_a_design_does(tasks: str, benches: str, tmp_path: Path) -> None:
    compiled = str(tmp_path / "t.vvp")
    for task in tasks.split():
        check(tmp_path, f'    %vpi_call 2 5 "{task}", v0 {{0 0 0}};')
        assert benches_files(compiled, benches_with_files([compiled], lambda _: True)) == benches, task


ROWS = '%vpi_call/w 2 5 "$readmemh", "rtl/rows.hex", v0 {0 0 0};'
LOG = '%vpi_func 2 5 "$fopen" 32, "debug.log", "w" {0 0 0};'


@pytest.mark.parametrize(
    ("design", "bench", "kind"),
    [
        (ROWS, '%vpi_func 3 5 "$fscanf" 32, v1 {0 0 0};', "read|rtl/rows.hex"),
        (ROWS, '%vpi_func 3 5 "$fopen" 32, "result.log" {0 0 0};', "read-|rtl/rows.hex"),
        (ROWS + LOG, '%vpi_call/w 3 5 "$readmemh", v2, v3 {0 0 0};', "read|debug.log|rtl/rows.hex"),
        (LOG, '%vpi_func 3 5 "$fscanf" 32, v1 {0 0 0};', "none"),
        ('%vpi_call 2 5 "$fclose", v4 {0 0 0};', '%vpi_func 3 5 "$fscanf" 32, v1 {0 0 0};', "none"),
        (ROWS.replace('"rtl/rows.hex"', "P_0x1"), "", "none"),
        (ROWS.replace("rows", r"r\042ows"), "", "none"),
        ('L_0x1 .sfunc 2 5 "$fopen", "v32v8", L_0x2;', "", "none"),
        (ROWS.replace("$readmemh", "$sdf_annotate"), "", "none"),
        ("".join(ROWS.replace("rows", f"rows{number}") for number in range(21)), "", "none"),
    ],
)
def test_a_testbench_may_read_beside_a_design_whose_files_are_known(
    design: str, bench: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, testbench = str(tmp_path / "t.vvp"), tmp_path / "tb.sv"
    testbench.touch()
    lines = (design + bench).replace(";", ";\n    ").splitlines()
    check(tmp_path, *lines, names=f'"N/A"; "<interactive>"; "/code/rtl/a.sv"; "{testbench}";')
    found = benches_with_files([compiled], lambda name: name != str(testbench))
    assert found[0].partition(" ")[0] == kind
    monkeypatch.chdir("/")
    monkeypatch.setattr(options_files, "WORK", (str(tmp_path),))
    assert benches_files(compiled, found) == kind.partition("|")[0].replace("read", "none")
    monkeypatch.chdir(tmp_path)
    assert benches_files(compiled, found) == kind.partition("|")[0]


@pytest.mark.parametrize("blank", [" ", "", "\t", "\n", "\r\n"], ids=ascii)
@pytest.mark.parametrize("name", ["/code/rtl/x.vpi", "/usr/../code/rtl/x", "x"])
def test_a_module_from_elsewhere_is_not_loaded(name: str, blank: str, tmp_path: Path) -> None:
    violations, _, _ = check(tmp_path, f':vpi_module{blank}"{name}";')
    assert [text.partition(": ")[2] for text in violations] == [f"loads {name!r} into the simulator by :vpi_module"]
    violations, _, _ = check(tmp_path, ":vpi_module;")
    assert len(violations) == 1


@pytest.mark.parametrize(
    ("statements", "silent"),
    [
        ([], True),
        (['    %vpi_call 2 4 "$dumpfile", "x.vcd" {0 0 0};'], True),
        (['    %vpi_call 2 4 "$dumpfile", "/none/x.vcd" {0 0 0};'], False),
        (['    %vpi_call 2 4 "$dumpfile", v0 {0 0 0};'], False),
        (['    %vpi_call 3 4 "$dumpfile", v0 {0 0 0};'], True),
        (
            ['    %vpi_call 3 4 "$dumpfile", v0 {0 0 0};', '    %vpi_call 3 4 "$dumpfile", "/none/x.vcd" {0 0 0};'],
            False,
        ),
        (['    %vpi_call 3 4 "$dumpfile", v0 {0 0 0};', '    %vpi_call 3 5 "$dumpfile", v0 {0 0 0};'], False),
        (['    %vpi_call 4 4 "$dumpfile", v0 {0 0 0};'], False),
        (['    %vpi_call 2 4 "$dumpfile", "folder" {0 0 0};'], False),
        ([f'    %vpi_call 2 4 "$dumpfile", "{"x" * 300}" {{0 0 0}};'], False),
        (
            ['    %vpi_call 2 4 "$dumpfile", "/none/x.vcd" {0 0 0};', '    %vpi_call 2 4 "$dumpfile", "x" {0 0 0};'],
            False,
        ),
        (['    %vpi_call 2 4 "$dumpfile", "\\000/none/x.vcd" {0 0 0};'], False),
    ],
)
def test_waveforms_are_left_out_unless_the_simulator_would_stop(
    statements: list[str], silent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.fst").mkdir()
    (tmp_path / "cocotb_iverilog_dump.v").touch()
    names = '"N/A"; "<interactive>"; "/code/rtl/a.sv"; "cocotb_iverilog_dump.v"; "/code/rtl/cocotb_iverilog_dump.v";'
    assert check(tmp_path, *statements, names=names) == ([], [], silent)


@pytest.mark.parametrize(
    ("words", "design"),
    [
        ("-n t.vvp -fst +x", "t.vvp"),
        ("-M /libs -m cocotbvpi t.vvp", "t.vvp"),
        ("-nl log t.vvp", "t.vvp"),
        ("-llog -n t.vvp", "t.vvp"),
        ("-lM t.vvp", "t.vvp"),
        ("-M/libs -mcocotbvpi t.vvp x", "t.vvp"),
        ("-- -odd", "-odd"),
        ("-V", None),
        ("", None),
    ],
)
def test_the_design_among_the_simulators_arguments(words: str, design: str | None) -> None:
    assert compiled_design(words.split()) == design
    try:
        rest = getopt.getopt(words.split(), "hil:M:m:nNpqsvV")[1]
    except getopt.GetoptError:
        return
    assert (rest[0] if rest else None) == design, "as the simulator itself reads them"


@pytest.mark.docker
async def test_the_table_names_every_task_that_the_simulator_has(provider: SandboxProvider) -> None:
    """A task that the table did not know could not be judged."""
    sandbox = await provider.create()
    script = (
        "import re, glob\n"
        "found = set()\n"
        "for path in ['system', 'vhdl_sys', 'vhdl_textio', 'v2005_math', 'va_math', 'v2009']:\n"
        "    data = open(f'/usr/local/lib/ivl/{path}.vpi', 'rb').read()\n"
        "    found |= set(re.findall(rb'(?<=\\0)\\$[a-z][\\w$]{3,}(?=\\0)', data))\n"
        "print(*sorted(name.decode() for name in found))\n"
    )
    result = await sandbox.exec(["python3", "-c", script])
    tasks = set(result.output.split()) - {"$accept", "$undefined", "$end"}  # of the parsers in there
    assert len(tasks) > 150
    assert {name for name in tasks - tables.KNOWN - tables.HOSTILE if not name.startswith(tables.METHODS)} == set()


@pytest.mark.docker
async def test_a_results_file_cannot_be_forged(shared_provider: SandboxProvider, adder: Problem) -> None:
    theft = HEADER + (
        "integer f;\nfinal begin\n"
        '    f = $fopen("/code/rundir/sim_build/test_adder.result.xml", "w");\n'
        f'    $fwrite(f, "{FORGED}");\n    $fclose(f);\nend\nendmodule\n'
    )
    scores = {}
    for name, defences in {
        "none": Defences(simulation=False, witness=False),
        "witness": Defences(simulation=False),
        "simulation": Defences(witness=False),
    }.items():
        async with Scorer(shared_provider, defences=defences) as scorer:
            scores[name] = await scorer.score(adder, {TARGET: theft})
    assert scores["none"].passed
    assert scores["none"].reward == pytest.approx(1.4)
    for name in ("witness", "simulation"):
        assert not scores[name].passed
        assert scores[name].reward == pytest.approx(0.4)
    assert scores["witness"].violations == [
        "/code/rundir/sim_build/test_adder.result.xml: reports that all tests passed, but no witness saw that"
    ]
    assert scores["simulation"].violations == [
        "rtl/adder.sv:4: $fopen opens '/code/rundir/sim_build/test_adder.result.xml' for writing, which only the "
        "checker may"
    ]


@pytest.mark.docker
async def test_hidden_files_cannot_be_included_or_read(scorer: Scorer) -> None:
    secret = {"src/answer.svh": "always_ff @(posedge clk) sum <= a + b;\n", "src/answer.hex": "1ff\n"}
    problem = make_problem(harness=secret)
    score = await scorer.score(problem, {TARGET: inside('`include "/src/answer.svh"')})
    assert not score.passed
    assert score.violations == [
        "rtl/adder.sv:2: `include reads '/src/answer.svh', which is none of the problem's files"
    ]
    paths = ("/src/answer.hex", "../../src/answer.hex", "/code/src/answer.hex", "/proc/self/environ")
    reads = "\n".join(f'initial $readmemh("{path}", m);' for path in paths)
    score = await scorer.score(problem, {TARGET: inside(f"reg [8:0] m [0:1];\n{reads}", GOLDEN)})
    assert not score.passed
    assert score.violations == [
        f"rtl/adder.sv:{line}: $readmemh reads {path!r}, which is none of the problem's files"
        for line, path in enumerate(paths, 4)
    ]


@pytest.mark.docker
async def test_honest_designs_keep_their_tasks(scorer: Scorer) -> None:
    """Waveforms, messages, memories from given files, random numbers: nothing of it costs anything."""
    honest = """\
`include "/code/rtl/width.svh"
module adder (input logic clk, input logic [`W-1:0] a, input logic [`W-1:0] b, output logic [8:0] sum);
    parameter INIT = "/code/rtl/zero.hex";
    localparam L = $clog2(`W);
    logic [8:0] zero [0:1];
    integer seed = 3, f;
    initial begin
        $dumpfile("adder.vcd");
        $dumpvars(0, adder);
        $readmemh(INIT, zero);
        $readmemb("not/there.bin", zero);
        f = $fopen("/code/rtl/zero.hex", "r");
        $fclose(f);
        $fdisplay(32'h8000_0002, "to stderr %m %0t", $time);
        $display("5 passed, 0 failed\\033[2J %d %s", $random(seed), $sformatf("%0d", L));
        $monitor("%b", sum);
        if ($test$plusargs("never")) $error("never");
        $info("about to begin");
    end
    always_ff @(posedge clk) sum <= a + b + zero[0];
    final $display("the end at %0t", $realtime);
endmodule
"""
    given = {"rtl/zero.hex": "000 000\n", "rtl/width.svh": "`define W 8\n"}
    score = await scorer.score(make_problem(context=given), {TARGET: honest})
    assert score.violations == []
    assert score.passed, score.reason
    assert score.syntax == 1.0


@pytest.mark.docker
async def test_an_agents_own_sandbox_is_not_guarded(provider: SandboxProvider) -> None:
    sandbox = await provider.create()
    design = (
        'module t; integer f; initial begin f = $fopen("out.txt", "w"); $fwrite(f, "hello"); $fclose(f); end endmodule'
    )
    await sandbox.write_files({"t.sv": design})
    result = await sandbox.run(
        "iverilog -g2012 -o t.vvp t.sv && vvp t.vvp && cat out.txt && ./t.vvp && verilator --version"
    )
    assert result.exit_code == 0, result.output
    assert "hello" in result.output


@pytest.mark.docker
async def test_without_a_supervisor_nothing_is_simulated(provider: SandboxProvider) -> None:
    sandbox = await provider.create(SandboxSpec(role="scoring"))
    await sandbox.write_files({"t.sv": "module t; endmodule"})
    for command in ("iverilog -o t.vvp t.sv", "vvp t.vvp", "verilator --lint-only t.sv"):
        result = await sandbox.exec(command.split())
        assert result.exit_code == 125
        assert "nobody supervises it" in result.output


@pytest.mark.docker
async def test_compiled_designs_are_guarded_however_they_are_started(scorer: Scorer) -> None:
    """By the program's full path, by the file's own first line, and with an empty environment."""
    starts = ("/usr/local/bin/vvp t.vvp", "./t.vvp", "env -i /usr/local/bin/vvp t.vvp", "vvp -n t.vvp -fst +x")
    files, services = {TARGET: GOLDEN}, "services:\n"
    for number, start in enumerate(starts):
        opens = f'integer f; initial f = $fopen("/code/rundir/stolen{number}.xml", "w");'
        files[f"rtl/thief{number}.sv"] = f"module thief; {opens} endmodule\n"
        script = f"iverilog -g2012 -o t.vvp /code/rtl/thief{number}.sv; {start}; test -e stolen{number}.xml"
        services += f'  s{number}:\n    image: __OSS_SIM_IMAGE__\n    command: /bin/sh -c "{script}"\n'
    score = await scorer.score(make_problem(harness={"docker-compose.yml": services}), files)
    assert not score.passed
    why = "for writing, which only the checker may"
    assert score.violations == [
        f"rtl/thief{number}.sv:1: $fopen opens '/code/rundir/stolen{number}.xml' {why}" for number in range(len(starts))
    ]
    assert [test.outcome for test in score.tests] == ["failed"] * len(starts), "nothing was stolen"


BENCH = """
module tb;
    reg clk = 0, right = 1;
    reg [7:0] a, b;
    reg [27:0] rows [0:3];
    wire [8:0] sum;
    integer log, at;
    adder dut(.clk(clk), .a(a), .b(b), .sum(sum));
    initial begin
        $readmemh("/src/rows.hex", rows);
        log = $fopen("result.log", "w");
        for (at = 0; at < 4; at = at + 1) begin
            {a, b} = rows[at][15:0];
            #5 clk = 1;
            #5 clk = 0;
            right = right && sum === rows[at][24:16];
        end
        $fdisplay(log, "%0s", right ? "PASS" : "FAIL");
        $fclose(log);
    end
endmodule
"""
"""A hidden testbench that reads vectors with the expected sums, and writes its verdict into a file."""
FORGING = inside('initial #1 $fwrite(32\'h8000_0003, "PASS");')
"""It writes into the testbench's log, which is open under this number."""
WITH_BENCH = {
    "src/tb.sv": BENCH,
    "src/rows.hex": "0030102\n1feffff\n0ff00ff\n1008080\n",
    "docker-compose.yml": "services:\n  a:\n    image: __OSS_SIM_IMAGE__\n    command: /bin/sh -ec 'iverilog -g2012 "
    "-s tb -o t.vvp /src/tb.sv /code/rtl/adder.sv; vvp t.vvp; grep -q PASS result.log'\n",
}


@pytest.mark.docker
@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("design", "passes", "violation"),
    [
        (GOLDEN, True, ""),
        (GOLDEN.replace("a + b", "a - b"), False, ""),
        (inside('initial $display("begun");', GOLDEN), True, ""),
        (
            inside('reg [27:0] m [0:3];\ninitial $readmemh("/src/rows.hex", m);'),
            False,
            "$readmemh reads '/src/rows.hex'",
        ),
        (FORGING, False, ""),
        ("`define PASTED(x) $``x\n" + FORGING.replace("$fwrite", "`PASTED(fwrite)"), False, ""),
        (inside('reg PASS;\ninitial begin $dumpfile("result.log"); $dumpvars; end'), False, ""),
        (inside("initial #1 $fgetc(32'h8000_0003);"), False, "/src/rows.hex"),
        (FORGING.replace("initial", '`line 1 "/src/tb.sv" 0\ninitial'), False, ""),
    ],
)
async def test_a_hidden_testbench_uses_files_that_the_design_does_not(
    scorer: Scorer, design: str, passes: bool, violation: str
) -> None:
    harness = WITH_BENCH
    if violation:  # beside a testbench that writes, such a design would be refused before it runs
        harness = harness | {"src/tb.sv": BENCH.replace('$fopen("result.log", "w")', "1")}
    score = await scorer.score(make_problem(harness=harness), {TARGET: design})
    assert score.passed == passes, score.reason
    assert (violation in str(score.violations)) if violation else not score.violations


@pytest.mark.docker
@pytest.mark.parametrize(
    ("name", "passes"), [("/code/rtl/rom.hex", True), ("rows.hex", False), ("../../src/rows.hex", False)]
)
async def test_a_testbench_reads_its_vectors_beside_a_design_that_reads_a_table(
    scorer: Scorer, name: str, passes: bool
) -> None:
    """The harness has a link to the vectors."""
    bench = BENCH.replace('$fopen("result.log", "w")', '$fopen("rows.hex", "r")').replace("$fclose(log);", "")
    bench = bench.replace('$fdisplay(log, "%0s", right ? "PASS" : "FAIL");', "if (!right) $fatal;")
    command = WITH_BENCH["docker-compose.yml"].replace("; grep -q PASS result.log", "")
    command = command.replace("vvp t.vvp", "ln -s /src/rows.hex .; vvp t.vvp")
    problem = make_problem(harness=WITH_BENCH | {"src/tb.sv": bench, "docker-compose.yml": command})
    reading = inside(f'reg [27:0] m [0:3];\ninitial $readmemh("{name}", m);', GOLDEN)
    score = await scorer.score(problem, {TARGET: reading, "rtl/rom.hex": "01 02 03 04\n"})
    assert (score.passed, score.violations == []) == (passes, passes), score.reason
    wrong = reading.replace("a + b", "a - b")
    assert not (await scorer.score(problem, {TARGET: wrong, "rtl/rom.hex": "01 02 03 04\n"})).passed


@pytest.mark.docker
async def test_a_design_that_records_waveforms_hinders_no_testbench_that_reads(scorer: Scorer) -> None:
    harness = dict(WITH_BENCH) | {"src/tb.sv": BENCH.replace("$fclose(log);", "if (!right) $fatal;")}
    harness["docker-compose.yml"] = harness["docker-compose.yml"].replace("; grep -q PASS result.log", "")
    waves = 'initial begin $dumpfile("waves.vcd"); $dumpvars; $fdisplay(1, "begun"); end'
    for design, passes in ((GOLDEN, True), (GOLDEN.replace("a + b", "a - b"), False)):
        score = await scorer.score(make_problem(harness=harness), {TARGET: inside(waves, design)})
        assert (score.passed, score.violations) == (passes, []), score.reason


READS_WAVES = """
import re, subprocess

def test_sums():
    subprocess.run(["iverilog", "-g2012", "-s", "tb", "-o", "t.vvp", "/src/tb.sv", "/code/rtl/adder.sv"], check=True)
    subprocess.run(["vvp", "t.vvp"], check=True)
    with open("sums.vcd") as stream:
        assert [int(word, 2) for word in re.findall(r"^b([01]+) ", stream.read(), re.MULTILINE)] == [7, 300]
"""


@pytest.mark.docker
async def test_a_harness_reads_the_waveforms_of_its_testbench(scorer: Scorer) -> None:
    bench = """module tb; reg clk = 0; reg [7:0] a = 3, b = 4; wire [8:0] sum; adder d(clk, a, b, sum);
    initial begin
        $dumpfile("sums.vcd"); $dumpvars(0, sum);
        #1 clk = 1; #1 clk = 0; a = 200; b = 100; #1 clk = 1; #1 $finish;
    end
endmodule
"""
    problem = make_problem(harness={"src/test_runner.py": READS_WAVES, "src/tb.sv": bench, "src/test_adder.py": None})
    forging = 'initial begin $dumpfile("sums.vcd"); $dumpvars(0, seven); seven = 7; #3 seven = 300; end'
    for design, passes in ((GOLDEN, True), (EMPTY, False), (inside(f"reg [8:0] seven;\n{forging}"), False)):
        score = await scorer.score(problem, {TARGET: design})
        assert (score.passed, score.violations) == (passes, []), score.reason


@pytest.mark.docker
async def test_a_design_uses_no_macro_of_a_hidden_testbench(scorer: Scorer) -> None:
    bench = "`define SUM(a, b) ((a) + (b))\n" + BENCH
    problem = make_problem(harness=dict(WITH_BENCH) | {"src/tb.sv": bench})
    stolen = GOLDEN.replace("a + b", "`SUM(a, b)")
    own = "`define MINE(a, b) ((a) + (b))\n" + GOLDEN.replace("a + b", "`MINE(a, b)")
    hedged = "`ifndef SUM\n`define SUM(a, b) 0\n`endif\n" + stolen
    scores = [await scorer.score(problem, {TARGET: design}) for design in (own, stolen, hedged)]
    assert [score.passed for score in scores] == [True, False, False]
    assert ["macro of the hidden testbench" in str(score.violations) for score in scores] == [False, True, True]


def test_a_compiled_design_that_the_guard_fails_to_judge_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = tmp_path / "t.vvp"

    def compile_design(command: list[str], outputs: dict[int, str]) -> int:
        compiled.touch()
        Path(outputs[2]).touch()
        return 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "run", compile_design)
    monkeypatch.setattr(sources, "include_faults", Mock(side_effect=RecursionError))
    with pytest.raises(RecursionError):
        run_iverilog(Mock(settings={"includes": True, "testbench": True}), ["-o", str(compiled), "a.sv"])
    assert not compiled.exists()


@pytest.mark.docker
async def test_where_the_harness_compiles_hidden_files_the_design_may_not_include_them(scorer: Scorer) -> None:
    hidden = {
        "src/ref.svh": "always_ff @(posedge clk) sum <= a + b;\n",
        "src/own.svh": "`define OWN 1\n",
        "src/tb.sv": '`include "/src/own.svh"\nmodule tb; endmodule\n',
        "src/.env": ENV.replace("/code/rtl/adder.sv", "/src/tb.sv /code/rtl/adder.sv"),
    }
    problem = make_problem(harness=hidden)
    assert (await scorer.score(problem, {TARGET: GOLDEN})).passed
    before = counted("violations")
    score = await scorer.score(problem, {TARGET: inside('`include "/src/ref.svh"')})
    assert counted("violations") == before + 1
    assert not score.passed
    assert score.violations == ["rtl/adder.sv:2: `include reads '/src/ref.svh', which is none of the problem's files"]


@pytest.mark.docker
async def test_a_thousand_violations_are_still_a_score(scorer: Scorer) -> None:
    lines = 'initial $system("x");\n' * 1000
    blocks = f"for (i = 0; i < 3000; i = i + 1) begin : g\ninitial $x{'x' * 600};\nend"
    many = inside(f"{lines}genvar i; generate {blocks} endgenerate")
    score = await scorer.score(make_problem(), {TARGET: many})
    assert not score.passed
    assert 2 <= len(score.violations) <= 21
    assert all(len(text) < 600 for text in score.violations)


@pytest.mark.docker
@pytest.mark.slow
async def test_the_place_in_a_violation_is_the_real_one(scorer: Scorer) -> None:
    theft = '`line 7 "/src/\x1b[2J.py" 0\ninteger f = $fopen("out.xml", "w");'
    score = await scorer.score(make_problem(), {TARGET: inside(theft)})
    assert score.violations == [
        "rtl/adder.sv:3: $fopen opens 'out.xml' for writing, which only the checker may "
        "(there is a `line directive at rtl/adder.sv:2)"
    ]


@pytest.mark.docker
async def test_files_are_judged_by_what_is_opened(scorer: Scorer) -> None:
    """In one design: names that are computed, that lie outside, that wander, and that a decoy hides."""
    body = """
    reg [159:0] n; reg [7:0] m [0:1]; string s; integer f;
    wire [31:0] fd = $fopenr(n);
    initial begin
        n = {"/sr", "c/.env"};
        s = "/tmp/late.hex"; $readmemh(s, m);
        s = "/code/rtl/../src/test_adder.py"; $readmemh(s, m);
        f = $fopen("/code/rundir/../rtl/adder.sv", "r"); if (f == 0) $fatal(1);
        f = $fopen("/code/rtl/nothing", "r"); if (f != 0) $fatal(1);
        f = $fopen("/none/debug.log", "w"); if (f != 0) $fatal(1);
        f = $fopen("/code/rtl/adder.sv", "a"); if (f == 0) $fatal(1);
        f = $fopen("/dev/stdout", "w"); if (f == 0) $fatal(1);
        s = "conf"; f = $fopen({s, "test.py"}, "w"); if (f != 0) $fatal(1);
        s = "trace"; f = $fopen({s, ".log"}); if (f == 0) $fatal(1);
    end
"""
    score = await scorer.score(make_problem(), {TARGET: inside(body, GOLDEN)})
    assert {text.partition(": ")[2] for text in score.violations} == {
        "$fopenr reads '/src/.env', which is none of the problem's files",
        "$readmemh reads '/code/rtl/../src/test_adder.py', which is none of the problem's files",
        "$fopen opens 'conftest.py' for writing, which only the checker may",
    }
    assert {text.partition(": ")[2] for text in score.left_out} == {
        "$readmemh reads '/tmp/late.hex', which is none of the problem's files",
        "$fopen opens '/code/rtl/adder.sv' for writing; what a design writes goes nowhere",
        "$fopen opens '/dev/stdout' for writing; what a design writes goes nowhere",
        "$fopen opens 'trace.log' for writing; what a design writes goes nowhere",
    }
    assert {test.outcome for test in score.tests} == {"passed"}, "the design ran on, and found what it should"
    assert not score.passed
    assert score.tests_passed == 0


@pytest.mark.docker
async def test_the_simulator_opens_files_by_no_other_way(provider: SandboxProvider) -> None:
    """The wall stands where `fopen` is called; whatever else could reach a file would have to be looked at."""
    sandbox = await provider.create()
    result = await sandbox.run(
        "nm -D --undefined-only /opt/rtl-agent-gym/real/vvp /usr/local/lib/ivl/*.vpi | awk 'NF == 2 {print $2}'"
    )
    found = {name.partition("@")[0] for name in result.output.split()}
    assert {"fopen", "fopen64"} <= found
    others = (
        "open open64 openat openat64 creat creat64 freopen freopen64 fdopen link linkat symlink mkdir mkfifo mknod "
    )
    others += "remove truncate truncate64 popen system fork vfork execv execve execvp posix_spawn syscall chmod chdir"
    assert not found & set(others.split())
    # Of streams there is one, for the simulator's own debug file, which only its command line opens.
    assert {name for name in found if "filebuf" in name and "open" in name} == {
        "_ZNSt13basic_filebufIcSt11char_traitsIcEE4openEPKcSt13_Ios_Openmode"
    }


@pytest.mark.parametrize("later", [MOMENT - 10**18, MOMENT, MOMENT + 1])
def test_files_that_changed_in_a_grading_are_known_whatever_the_clock_says(
    later: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock may be set at any time, also back to before the submission, or between its files and the grading."""
    submitted, latest, copy = (tmp_path / name for name in ("a.sv", "b.sv", "tb.sv"))
    changed = {submitted: MOMENT + 10**18, latest: MOMENT, copy: later, tmp_path: MOMENT}
    for name in ("stat", "lstat"):
        monkeypatch.setattr(os, name, lambda path: Mock(st_ctime_ns=changed[Path(path)]))
    submitted.touch()
    latest.touch()
    found = measures.times_of([str(tmp_path)], str(tmp_path))
    copy.touch()
    monkeypatch.setattr(tables, "times", frozenset(found))
    monkeypatch.setattr(sources, "EDITABLE", (str(tmp_path),))
    assert sources.is_as_submitted(str(submitted))
    assert not sources.is_as_submitted(str(copy))
    assert not sources.is_as_submitted(str(latest)), "in the moment in which a service may begin"
