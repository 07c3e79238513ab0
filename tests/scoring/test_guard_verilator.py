"""The guard in front of Verilator, in real sandboxes and without."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from rtl_agent_gym.scoring import Scorer
from rtl_agent_gym.scoring.grader import compiled as tables
from rtl_agent_gym.scoring.grader import sources, verilated
from rtl_agent_gym.scoring.grader.guard import REFUSED, run_verilator

from .conftest import GOLDEN, TARGET, VERILATOR, inside, make_problem

OUTSIDE = {
    "$c": ('initial $c("system(\\"true\\");");', "rtl/adder.sv:2: $c puts C++ of its own into the simulator"),
    "a macro": (
        '`define ESCAPE(x) $``x\ninitial `ESCAPE(system)("true");',
        "rtl/adder.sv:3: $system reaches out of the simulation",
    ),
    "DPI": (
        'import "DPI-C" function int system(input string command);\ninitial void\'(system("true"));',
        "rtl/adder.sv:2: import of a foreign function reaches out of the simulation",
    ),
    "$fopen": (
        'integer f;\ninitial f = $fopen("results.xml", "w");',
        "rtl/adder.sv:3: $fopen opens 'results.xml' for writing, which only the checker may",
    ),
    "$writememh": (
        'reg [7:0] m [0:1];\ninitial $writememh("results.xml", m);',
        "rtl/adder.sv:3: $writememh opens 'results.xml' for writing, which only the checker may",
    ),
    "systemc": (
        "`systemc_header\n#include <cstdlib>\n`verilog",
        "rtl/adder.sv:2: `systemc_header puts text of its own into the simulator",
    ),
    "hidden": (
        'reg [7:0] m [0:1];\ninitial $readmemh("/src/test_adder.py", m);',
        "rtl/adder.sv:3: $readmemh reads '/src/test_adder.py', which is none of the problem's files",
    ),
    "include": (
        '`include "/src/answer.svh"',
        "rtl/adder.sv:2: `include reads '/src/answer.svh', which is none of the problem's files",
    ),
}

QUICK = {"$c", "DPI", "$fopen", "include"}
"""One construct of each kind. The others are slow: they are found in the same text in the same way."""


@pytest.mark.docker
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in OUTSIDE]
)
async def test_under_verilator_nothing_reaches_out(scorer: Scorer, name: str) -> None:
    body, expected = OUTSIDE[name]
    problem = make_problem(harness=VERILATOR | {"src/answer.svh": "// the answer\n"})
    score = await scorer.score(problem, {TARGET: inside(body)})
    assert not score.passed
    assert score.violations == [expected]


@pytest.mark.parametrize("option", ["--lint-only", "-lint-only", "-version"])
def test_where_verilator_builds_nothing_nothing_is_judged(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.execv", Mock(side_effect=SystemExit("started")))
    with pytest.raises(SystemExit, match="started"):
        run_verilator(Mock(), [option, "a.sv"])


@pytest.mark.parametrize(
    ("text", "odd"),
    [
        ('--pipe-filter "touch stolen.txt; cat"', "--pipe-filter"),
        ('"--pipe-filter" cat', '"--pipe-filter"'),
        ("$NONE--pipe-filter cat", "$NONE--pipe-filter"),
        ("/**/--pipe-filter cat", "/**/--pipe-filter"),
        ("-/**/-pipe-filter cat", "-/**/-pipe-filter"),
        ("// /*\n--pipe-filter cat */", "--pipe-filter"),
        ("\\--pipe-filter cat", "\\--pipe-filter"),
        ("-CFLAGS '-fplugin=x'", "-CFLAGS"),
        ("main.cpp", "main.cpp"),
        ("-f nested.f", "-MAKEFLAGS"),
        ("-Wno-fatal -Irtl +incdir+rtl -DN=8 --top-module dut -sv\n // -CFLAGS x\n./rtl/dut.sv /code/rtl/a-b.v", ""),
    ],
)
def test_a_submitted_file_of_options_starts_no_program(
    text: str, odd: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("os.execv", Mock(side_effect=SystemExit("started")))
    monkeypatch.setattr(tables, "EDITABLE", (str(tmp_path),))
    (tmp_path / "nested.f").write_text("-MAKEFLAGS x\n")
    (tmp_path / "files.f").write_text(text)
    line = Mock(settings={"limits": True})
    with pytest.raises(SystemExit, match=str(REFUSED) if odd else "started"):
        run_verilator(line, ["--lint-only", "-f", str(tmp_path / "files.f")])
    if odd:
        (message,) = line.send.call_args.args
        assert repr(odd) in message["refusals"][0]
    monkeypatch.setattr(tables, "EDITABLE", ("/code/rtl",))  # the harness's own options are not judged
    with pytest.raises(SystemExit, match="started"):
        run_verilator(Mock(), ["--lint-only", "-f", str(tmp_path / "files.f")])


@pytest.mark.parametrize(("violations", "refusals"), [(["bad"], []), ([], ["unclear"])])
def test_what_is_found_in_a_text_for_verilator_is_reported_and_nothing_is_built(
    violations: list[str], refusals: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Mock(settings={"simulation": True, "testbench": True, "limits": True})
    monkeypatch.setattr(verilated, "judge", Mock(return_value=(None, b"", violations, refusals)))
    monkeypatch.setattr(sources, "run", Mock(side_effect=AssertionError("built")))
    with pytest.raises(SystemExit, match=str(REFUSED)):
        run_verilator(line, ["a.sv"])
    (message,) = line.send.call_args.args
    assert (message["violations"], message["refusals"], message["code"]) == (violations, refusals, None)


@pytest.mark.docker
@pytest.mark.slow  # Verilator's compiler takes long
async def test_an_honest_design_passes_under_verilator(scorer: Scorer) -> None:
    honest = """
        reg [7:0] m [0:1];
        initial begin $readmemh("/code/rtl/zero.hex", m); $display("$c(1) /* $system */ \\"$fopen"); end // $system
        localparam W = $clog2(8);  /* $c("x") */
        initial if ($test$plusargs("never")) $finish;
    """
    included = {"rtl/zero.hex": "00 00\n", "rtl/width_pkg.svh": "package width_pkg; localparam W = 8; endpackage\n"}
    problem = make_problem(harness=VERILATOR, context=included)
    design = '`include "/code/rtl/width_pkg.svh"\n' + inside(honest, GOLDEN)
    score = await scorer.score(problem, {TARGET: design.replace("$clog2(8)", "$clog2(width_pkg::W)")})
    assert score.passed, score.reason
    assert score.violations == []
    assert score.compile == 1.0


@pytest.mark.docker
@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", ["--binary", "--cc --exe --build --main", "-binary -j 1"])
async def test_no_mode_of_verilator_goes_past_the_guard(scorer: Scorer, mode: str) -> None:
    theft = (
        'module adder;\nimport "DPI-C" function int system(input string c);\n'
        'initial void\'(system("touch /code/rundir/stolen"));\nendmodule\n'
    )
    script = f"verilator {mode} --Mdir o -Wno-fatal --top-module adder /code/rtl/adder.sv; ./o/Vadder; test -e stolen"
    text = f'services:\n  a:\n    image: __OSS_SIM_IMAGE__\n    command: /bin/sh -c "{script}"\n'
    score = await scorer.score(make_problem(harness={"docker-compose.yml": text}), {TARGET: theft})
    assert not score.passed
    assert score.violations == ["rtl/adder.sv:2: import of a foreign function reaches out of the simulation"]
