"""The texts that compilers read: files of options, a design's and a testbench's sources, and the names in them."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from rtl_agent_gym.scoring.grader import sources, verilated
from rtl_agent_gym.scoring.grader.compiled import TOOLS
from rtl_agent_gym.scoring.grader.options_files import with_listed
from rtl_agent_gym.scoring.grader.preprocessed import check_preprocessed
from rtl_agent_gym.scoring.grader.sources import Reach
from rtl_agent_gym.scoring.grader.testbench import Names, hides_the_next, odd_directives, reach_faults, replaced_names
from rtl_agent_gym.scoring.grader.verilated import judge


@pytest.mark.parametrize(
    ("read", "reach"),
    [(["/src/tb.sv", "/code/rtl/a.sv"], Reach([], [sources.APART], True)), (["/code/rtl/a.sv"], Reach([], [], False))],
)
def test_a_file_of_options_must_not_name_a_testbench_and_a_design(read: list[str], reach: Reach) -> None:
    listing = [f"M {path}" for path in read]
    assert sources.icarus_beyond_ports(listing, ["-g2012", "-o", "t.vvp", "-c", "/src/files.f"]) == reach
    assert verilated._beyond_ports(["-f", "/src/files.f"], read) == reach


@pytest.mark.parametrize(
    "line", ["+define+A\x1c", "+define+A\v", "+define+A//", "+define+A=b//c", "\xa0+define+A"], ids=ascii
)
def test_a_file_of_options_has_the_words_that_the_compiler_reads(line: str, tmp_path: Path) -> None:
    (path := tmp_path / "files.f").write_text(f"{line}\n")
    assert sources._with_listed(["-c", str(path)]) == ["-c", str(path)]
    path.write_text("# a+b//c\n // +define+C\n+define+A=/b/c // +d\n a.sv//b\r\n")
    assert sources._with_listed(["-c", str(path), "b.sv"]) == ["-DA=/b/c", "a.sv", "b.sv"]
    path.write_text("+define+A\x1cB\n")
    assert with_listed(["-f", str(path)]) == ["-f", str(path)]
    path.write_text("+define+A\vB.sv\n")
    assert with_listed(["-f", str(path)]) == ["+define+A", "B.sv"]


def test_a_testbench_must_not_include_a_design_that_nothing_else_names() -> None:
    arguments = ["-g2012", "-o", "t.vvp", "/src/tb.sv"]
    included = ["M /src/tb.sv", "I /src/defines.svh", "I /code/rtl/a.sv"]
    assert sources.icarus_beyond_ports(included, arguments) == sources.Reach([], [sources.APART], True)
    dump = "/code/rundir/sim_build/cocotb_iverilog_dump.v"  # of cocotb, beside a hidden reference alone
    assert sources.icarus_beyond_ports(["M /src/tb.sv", f"M {dump}"], [*arguments, dump]) == sources.Reach(
        [], [], False
    )


BENCH, DUT, OTHER = "/src/tb.sv", "/code/rtl/a.sv", "/code/rtl/b.sv"
PLAIN = {BENCH: "module tb; endmodule\n", DUT: "module dut; endmodule\n", OTHER: "module other; endmodule\n"}


@pytest.mark.parametrize(
    ("changes", "beside", "expected"),
    [
        ({}, {}, Reach([], [], True)),
        ({}, {BENCH: "module changed; endmodule\n"}, Reach([], [sources.CHANGED], True)),
        ({}, {BENCH: f'`line 1 "{BENCH}" 0\n{PLAIN[BENCH]}'}, Reach([], [], True)),  # as Verilator, in the first source
        ({}, {BENCH: f'`line 1 "{BENCH}" 0 ;\n{PLAIN[BENCH]}'}, Reach([], [sources.CHANGED], True)),
        ({BENCH: f'`line 1 "{DUT}" 1\nmodule tb; endmodule\n'}, {}, Reach([], [sources.APART], True)),
        ({DUT: "module dut; endmodule /*\n"}, {}, Reach([], [sources.APART], True)),
        ({OTHER: "module other; endmodule /*\n"}, {}, Reach([], [], True)),  # nothing is read after it
        ({DUT: f'`line 1 "{BENCH}" 1\nmodule dut; endmodule\n'}, {}, Reach([], [sources.CLAIMED], True)),
        ({DUT: "assign x = tb.y;\n"}, {}, "leads into the hidden testbench"),
        ({DUT: "module dut; endmodule `celldefine\n"}, {}, "a directive whose line cannot be judged"),
        ({BENCH: None}, {}, Reach([], [sources.APART], True)),
    ],
)
def test_a_design_and_a_testbench_have_texts_of_their_own(
    changes: dict[str, str | None], beside: dict[str, str], expected: Reach | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `beside`, the testbench has another text where the design is read, too."""

    def texts(command: list[str], read: list[str], given: int) -> list[str | None] | None:
        found = PLAIN | changes | (beside if DUT in read else {})
        return None if None in found.values() else [found[path] for path in read]

    monkeypatch.setattr(sources, "_texts", texts)
    reach = sources.beyond_ports(["iverilog", "-E"], [DUT, BENCH, OTHER], ["tb"], [])
    if isinstance(expected, Reach):
        assert reach == expected
    else:
        (said,) = reach.violations + reach.refusals
        assert expected in said


def test_sources_of_one_side_alone_need_no_comparison() -> None:
    for one_side in ([DUT, OTHER], [BENCH]):
        assert sources.beyond_ports(["false"], one_side, ["tb"], []) == Reach([], [], False)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("rtl/a.sv // the design", ["rtl/a.sv"]),
        ("+incdir+rtl+docs", ["-Irtl", "-Idocs"]),
        ("+define+DEPTH=4", ["-DDEPTH=4"]),
        ("# rtl/a.sv", []),
        ("-y rtl", None),
        ("${HOME}/a.sv", None),
        ("a.sv b.sv", None),
        ("/* a.sv */", None),
    ],
)
def test_a_line_of_a_file_of_options_is_judged_or_not_at_all(
    line: str, words: list[str] | None, tmp_path: Path
) -> None:
    (tmp_path / "list.f").write_text(f"first.sv\n{line}\n")
    given = [f"-c{tmp_path}/list.f", "-g2012"]
    expected = given if words is None else ["first.sv", *words, "-g2012"]
    assert sources._with_listed(given) == expected


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ("-g2012 -o t.vvp a.sv", ["t.vvp"]),
        ("-ot.vvp a.sv", ["t.vvp"]),
        ("-uo t.vvp a.sv", ["t.vvp"]),
        ("-t vvp a.sv", ["a.out"]),
        ("-tnull a.sv", []),
        ("-E a.sv", []),
        ("-V", []),
        ("-o /dev/stdout a.sv", ["/dev/stdout"]),
    ],
)
def test_what_the_compiler_writes(arguments: str, written: list[str]) -> None:
    found = sources.outputs(arguments.split())
    assert found == [path if path.startswith("/dev/") else os.path.realpath(path) for path in written]
    kept = sources.without("o", ["-g2012", *arguments.split()])
    assert "t.vvp" not in kept
    assert kept[0] == "-g2012"


@pytest.mark.parametrize(
    ("listing", "faults"),
    [
        ("M /code/rtl/a.sv|I /code/rtl/b.svh", 0),
        ("M /code/rtl/a.sv|I /usr/local/lib/ivl/include/constants.vams", 0),
        ("M /code/rtl/a.sv|I /src/answer.svh", 1),
        ("M /src/tb.sv|I /src/answer.svh", 0),
        ("M /src/tb.sv|M /code/rtl/a.sv|I /src/answer.svh", 1),
        ("M /src/tb.sv|I /code/rtl/plain.svh|I /src/answer.svh", 0),
        ("M /src/tb.sv|I /code/rtl/including.svh|I /src/answer.svh", 1),
        ("M /src/tb.sv|I /code/rtl/pasting.svh|I /src/answer.svh", 1),
        ("M /code/rtl/a.sv|N /code/rtl/b.sv", 1),
    ],
)
def test_a_design_includes_only_the_files_of_the_problem(
    listing: str, faults: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The harness's files may include anything, unless a submitted one that they include could have done it."""
    for name, text in {"plain": "wire a;", "including": "`include `X", "pasting": "`a``b"}.items():
        (tmp_path / f"{name}.svh").write_text(text)
    monkeypatch.setattr(
        sources, "_could_include", lambda path, judge=sources._could_include: judge(f"{tmp_path}/{Path(path).name}")
    )
    assert len(sources.include_faults(listing.split("|"))) == faults


@pytest.mark.parametrize(
    "line",
    [
        '(* a = " *) wire b; (* c = " *)',
        "(* a /*verilator public *) wire b; (* c */ *)",
        'table " ; endtable wire b; "',
        "wire \\a\u00a0b ;",
        "wire \\a\vb ;",
        r'wire b; `line 1 "/code/rtl/\x2e\x2e/\56./src/tb.sv" 0',
        r'wire b; `line 1 "\x3cbuilt-in\x3e" 0',
        '`line\f1 "/src/tb.sv" 0',
    ],
    ids=ascii,
)
def test_a_text_that_the_compiler_reads_otherwise_is_refused(line: str) -> None:
    violations, refused = check_preprocessed(f'`line 1 "/code/rtl/a.sv" 1\n{line}\n', [])
    assert violations == []
    assert len(refused) == 1
    assert refused[0].startswith("/code/rtl/a.sv:1: ".removeprefix("/code/"))
    honest = '(* ram_style = "block" *) reg m; always @(*) x = "(* \\" *)"; // (* a = "\nwire \\a[0] ; wire b = (1 *2);'
    for name in ("a", r"\303\251"):  # as Verilator writes "é"
        assert check_preprocessed(f'`line 1 "/code/rtl/{name}.sv" 1\n{honest}\n', []) == ([], [])


HIDDEN = """\
module tb; // begin : comment
    wire \\odd.name , plain;
    model a(.x(plain)), second [3:0] (.x(plain));
    function automatic [$clog2(8) - 1:0] answer(input x); answer = x; endfunction
    initial begin : \\judge
        $display("begin : text");
    end
    initial fork : \\odd.block
    join
    initial labelled: begin end
    model #8 sized(.x(plain));
endmodule
module model(input x); endmodule
"""


def test_names_of_a_testbench_are_found_however_they_are_written() -> None:
    names = Names([HIDDEN], ["tb"])
    assert names.scopes >= {"tb", "model", "a", "second", "answer", "judge", "odd.block", "labelled", "sized"}
    assert not names.scopes & {"comment", "text", "plain", "odd.name"}
    assert "answer" in names.routines
    assert names.used == names.taken == {"tb", "model"}
    assert Names([HIDDEN], []).taken == {"tb", "model"}
    more = "module spare; endmodule module top; tb below(); golden other(); endmodule"
    assert Names([HIDDEN, more], ["top"], ["golden", "unused"]).taken == {"top", "tb", "model", "golden"}
    assert Names([HIDDEN, more], []).taken == {"top", "tb", "model", "spare"}  # any of them may be a top module


@pytest.mark.parametrize(
    ("statement", "reached"),
    [
        ("initial disable judge;", True),
        ("initial disable \\odd.block ;", True),
        ("always @* grant = second[1].x;", True),
        ("always @* grant = answer(1);", True),
        ('`uselib "\\\n; initial disable judge; //"', True),
        ("`uselib /*\n; initial disable judge; //*/", True),
        ("`uselib disable judge", True),
        ("initial $finish;", True),
        ("initial #0.0e0$finish;", True),
        ("initial $exit;", True),
        ("initial $assertoff;", True),
        ("initial #1$assertcontrol(4);", True),
        ("initial force grant = 0;", True),
        ("initial release grant;", True),
        ("initial $q_exam(1, 1, grant, x);", True),
        ("tran (grant, grant);", True),
        ("rtran (grant, grant);", True),
        ("assign grant = $unit::answer_of;", True),
        ("assign grant = model::x;", True),
        ("assign grant = unnamedblk1.i;", True),
        ("initial disable genblk1;", True),
        ("class c extends model; endclass", True),
        ("class c; function answer(input x); answer = 0; endfunction endclass always @* grant = answer(1);", True),
        ("model mine(.x(grant));", True),
        ("model #(8) mine(.x(grant));", True),
        ("bind model : a mine t();", True),
        ("endmodule module model(input x);", True),
        ("endmodule module automatic tb;", True),
        ("endmodule primitive model(q, x);", True),
        ("endmodule package model; endpackage module mine(input x);", True),
        ("endmodule module mine(input x);", False),
        ("function automatic model(input x); endfunction", False),
        ("function answer(input x); answer = x; endfunction always @* grant = answer(1);", False),
        ("endmodule macromodule mine(); function answer(); endfunction initial answer();", False),
        ("wire answer;", False),
        ("always @* begin grant = answer; end", False),
        ("assign grant = own.model.x;", False),
        ("task judge; endtask initial disable judge;", False),
        ("initial begin : judge disable judge; end", False),
        ("initial begin : own #1; end initial disable own;", False),
        ("initial begin fork #1; join_none disable fork; end", False),
        ('initial $display("disable judge; %s", "\\\n disable judge;");', False),
    ],
    ids=ascii,
)
def test_a_use_of_the_testbench_is_found_however_it_is_written(statement: str, reached: bool) -> None:
    design = f"module dut(output grant);\n{statement}\nendmodule"
    faults = reach_faults(design, "/code/rtl/a.sv", Names([HIDDEN], ["tb"]), str)
    assert bool(faults) == reached, faults


def test_what_may_be_the_designs_own_is_refused_with_advice() -> None:
    design = "module dut(output grant);\nassign grant = answer(model.x);\ninitial $finish;\nendmodule"
    faults = reach_faults(design, "/code/rtl/a.sv", Names([HIDDEN], ["tb"]), str)
    assert ["give it another name" in fault for fault in faults] == [True, True, False]
    assert faults[2].endswith("; use $error")


def test_no_task_switches_the_assertions_of_a_testbench() -> None:
    """Those of IEEE 1800-2017, 20.12."""
    ways = "on", "off", "kill", "control", "passon", "passoff", "failon", "failoff", "nonvacuouson", "vacuousoff"
    design = "module dut;\n" + "".join(f"initial $assert{way};\n" for way in ways) + "endmodule"
    assert len(reach_faults(design, "/code/rtl/a.sv", Names([HIDDEN], ["tb"]), str)) == len(ways)


IMPORTING = """\
package own;
    localparam ROUNDS = 8;
    function int shifted(input int by); shifted = by; endfunction
endpackage
package unused; localparam DEPTH = 8; endpackage
import own::*;
module tb; endmodule
"""


@pytest.mark.parametrize(
    ("text", "replaced"),
    [
        ("localparam ROUNDS = 0;", True),
        ("typedef enum {ROUNDS} e;", True),
        ("typedef bit ROUNDS [3];", True),
        ("package p; localparam ROUNDS = 0; endpackage import p::*;", True),
        ("package p; localparam ROUNDS = 0; endpackage", False),
        ("module m; localparam ROUNDS = 0; endmodule", False),
        ("localparam by = 0, DEPTH = 0;", False),
    ],
)
def test_no_name_outside_of_modules_replaces_one_that_a_testbench_imports(text: str, replaced: bool) -> None:
    faults = replaced_names(text, "/code/rtl/a.sv", Names([IMPORTING], ["tb"]), str)
    assert bool(faults) == replaced, faults


def test_open_comments_take_no_time() -> None:
    started = time.process_time()
    text = "/* " * 200_000
    assert reach_faults(text, "/code/rtl/a.sv", Names([HIDDEN], ["tb"]), str) == []
    assert odd_directives(text, "/code/rtl/a.sv", str) == []
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("line", "odd"),
    [
        ('`timescale 1ns/1ps // the "unit"', False),
        ("`default_nettype none /* no wires */", False),
        ('`begin_keywords "1800-2012"', False),
        ("`unconnected_drive pull1", False),
        ('`line 7 "rtl/a.sv" 0', False),
        (r'`line 7 "rtl/\303\251.sv" 0', False),
        (r'`line 7 "/code/rtl/\x2e\x2e/\x2e\x2e/src/tb.sv" 0', True),
        (r'`line 7 "/code/rtl/\56./\.\./src/tb.sv" 0', True),
        ('`begin_keywords "1800-2012"" assign q = tb.q; //"', True),
        ('`uselib "', True),
        ("`uselib /*", True),
        ("wire a; `celldefine", True),
        ("`celldefine " + 300 * "/**/" + ' "', True),  # many ways to read it must not mean many attempts
        (f'`line {"1" * 5000} "x" 0', True),
    ],
)
def test_directives_whose_lines_compilers_read_differently_are_refused(line: str, odd: bool) -> None:
    assert bool(odd_directives(f"{line}\nmodule m; endmodule\n", "rtl/a.sv", str)) == odd


@pytest.mark.parametrize(
    ("end", "hides"),
    [
        ("/* closed */ // /*", False),
        ('wire \\é ; initial $display("\0/*"); // é', False),
        ("/**/", False),
        ("/*", True),
        ("/*/", True),
        ("é", True),
        ("\0 /* closed */", True),
    ],
)
def test_what_hides_the_next_source_is_found(end: str, hides: bool) -> None:
    assert hides_the_next(f"module m; endmodule\n{end}\n") == hides


def test_a_file_of_options_may_ask_for_a_lint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verilator refuses that together with -E and --json-only."""
    run = Mock(return_value=Mock(returncode=1, stderr=b""))
    monkeypatch.setattr(subprocess, "run", run)
    (tmp_path / "lint.f").write_text("--lint-only -Wall\n")
    judge(["-f", str(tmp_path / "lint.f"), "a.sv"], str(tmp_path), {"testbench": False})
    assert run.call_args.args == ([f"{TOOLS}/verilator", "-Wall", "a.sv", "-E"],)
    (tmp_path / "lint.f").write_text("-Wall // --lint-only\n")  # no plain words
    judge(["-f", str(tmp_path / "lint.f"), "a.sv"], str(tmp_path), {"testbench": False})
    assert run.call_args.args[0][1:3] == ["-f", str(tmp_path / "lint.f")]
