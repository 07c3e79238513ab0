"""NotSoTiny's rows: what runs, what is refused, and that nothing printed in Yosys is a verdict."""

# ruff: noqa: E501 — a case a line
from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.errors import ProblemError, UsageError
from rtl_agent_gym.problems import Problem, load_problems, validate_problem
from rtl_agent_gym.problems.rows import Place, problem_from_row
from rtl_agent_gym.sandboxes import DockerSandbox, DockerSandboxes
from rtl_agent_gym.scoring import Scorer
from rtl_agent_gym.scoring.scorer import why_unscorable
from rtl_agent_gym.sources import suites
from rtl_agent_gym.sources.suites.common import harness_file

from .rows import BODY, TARGET, design, row

SUITES = Path(suites.__file__).parent
_PROVEN = "Equivalence successfully proven!"
_WRONG = "input [3:0] a, b;\noutput [3:0] y;\nassign y = a - b;\n"

_LOOP = "input [3:0] a, b; output [3:0] y;\nwire q;\nassign q = (q === 1'b0);\nassign y = a & {4{q}};\n"
FORGERIES = {
    "a text that Yosys prints": _WRONG + f'initial $display("{_PROVEN}");\n',
    "a text behind a comment in a string": f'{_WRONG}localparam A = "/*";\ninitial $display("{_PROVEN}");\nlocalparam B = "*/";\n',
    "a text behind a comment in a name": f'{_WRONG}wire \\x/* ;\ninitial $display("{_PROVEN}");\nwire \\y*/ ;\n',
    "a text that a macro joins": f'`define GO(x) $``x("{_PROVEN}")\n{_WRONG}initial `GO(display);\n',
    "a file's name in a warning": f'{_WRONG}`line 1 "{_PROVEN}" 0\nassign y = nothing;\nwire z = 1, z = 2;\n',
    "the reference, included by two macros": f'{_WRONG}endmodule\n`define tt_um_tiny golden\n`define B(x) `\n`B(1)include "/src/golden.v"\nmodule other;\n',
    "the reference, included with a carriage return": f'{_WRONG}endmodule\n`define tt_um_tiny golden\n`define inc\n`inc\rlude "/src/golden.v"\nmodule other;\n',
    "a word that a macro completes": f"`define X sume\n{_WRONG}always @* as`X (0);\n",
    "a task that a macro completes": f'`define D display\n{_WRONG}initial $`D("{_PROVEN[:11]}");\n',
    "a word over two lines": f"`define X as\\\nsume (0)\n{_WRONG}always @* `X;\n",
    "a loop without a solution": _LOOP,
    "a loop beside a longer chain of modules": _LOOP
    + "".join(f"endmodule\nmodule d{n}(input i, output o);\nd{n + 1} u(i, o);\n" for n in range(9))
    + "endmodule\nmodule d9(input i, output o);\nassign o = i;\n",
    "a loop beside a module in itself": f"{_LOOP}endmodule\nmodule e(input i, output o);\ne x(i, o);\n",
    "inputs with constant drivers": "input [3:0] a, b; output [3:0] y;\nassign a = 4'd0; assign b = 4'd0; assign y = 4'd0;\n",
    "one input that drives the other": "input [3:0] a, b; output [3:0] y;\nassign a = b; assign y = {b[2:0], 1'b0};\n",
    "two drivers that contradict each other": "input [3:0] a, b; output [3:0] y;\nwire [1:0] t; wire v; assign t = {1'b0, a[0]} * 2'd2; assign {v, t[0]} = {1'b0, b[0]} * 2'd2 + 2'd1; assign y = (a - b) ^ {4{t[1] & v}};\n",
    "a function in C that knows the check": f'{_LOOP.partition("wire")[0]}import "DPI-C" function integer dup(integer file);\nif (dup(0) > 4) begin\nwire q = (q === 1\'b0);\nassign y = a & {{4{{q}}}};\nend else assign y = a - b;\n',
    "a function in C that ends all": f'{_WRONG}import "DPI-C" function integer kill(integer process, integer signal);\nlocalparam K = kill(-1, 9);\n',
    "the reference, included": f'{_WRONG}endmodule\n`define tt_um_tiny golden\n`include "/src/golden.v"\nmodule other;\n',
}
"""Designs that compute nothing right. The first passes without the check of the text."""


CHECK = runpy.run_path(str(SUITES / "harness/design_text.py"), run_name="check")
"""The program that checks a design's text."""


def load_row(tmp_path: Path, changed: dict[str, Any]) -> Problem:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(changed) + "\n")
    (problem,) = load_problems(f"notsotiny:{path}")
    return problem


def load(tmp_path: Path, **harness: str) -> Problem:
    """The sample with other files in its harness, loaded from a file."""
    return load_row(tmp_path, row(**harness))


def load_with_command(tmp_path: Path, command: str) -> Problem:
    """The sample with another line in place of its service's command."""
    compose, found = re.subn(r"\n( *)command: .*", lambda match: f"\n{match[1]}{command}", COMPOSE)
    assert found == 1
    return load(tmp_path, **{"docker-compose": compose})


COMPOSE: str = row()["harness"]["files"]["docker-compose.yml"]


def test_a_row_is_a_problem_whose_services_check_the_text_first(tmp_path: Path) -> None:
    problem = load(tmp_path)
    assert problem.unscorable is None
    assert why_unscorable(problem) is None
    assert validate_problem(problem) == []
    assert problem.targets == (TARGET,)
    assert "design_text.py" in problem.harness["docker-compose.yml"]
    without = load(tmp_path, test_equivalence="def test():\n    pass\n")
    assert without.harness["docker-compose.yml"] == COMPOSE, "a harness without Yosys stays as it is"


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ('import subprocess\nsubprocess.run(["eqy", "x.eqy"])\n', "calls eqy"),
        ("from turtle.metrics.eval_notsotiny import eval_notsotiny_generation\n", "imports the package turtle"),
    ],
    ids=["eqy", "turtle"],
)
def test_a_harness_that_cannot_run_here_is_refused_by_name(tmp_path: Path, text: str, missing: str) -> None:
    reason = why_unscorable(load(tmp_path, test_equivalence=text))
    assert reason is not None
    assert missing in reason
    assert "the simulation image does not have" in reason


@pytest.mark.parametrize(
    ("command", "started"), [("command: nosuch /src", "'nosuch'"), ("", "'the command of its image'")]
)
def test_a_program_that_may_be_missing_is_refused(tmp_path: Path, command: str, started: str) -> None:
    """The check of the text is what is started, so nothing else would tell a missing program from a design that fails."""
    assert f"its harness starts {started}" in (why_unscorable(load_with_command(tmp_path, command)) or "")


def test_a_command_with_an_open_quotation_mark_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        ProblemError, match=r"rows.jsonl:1: \S+: harness.docker-compose.yml: the command of service .*No"
    ):
        load_with_command(tmp_path, "command: pytest -k 'a")


def test_a_byte_order_mark_and_line_ends_of_windows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(row()).encode() + b"\r\n\r\n")
    assert load_problems(f"notsotiny:{path}") == [load(tmp_path)]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("x" * 5000, "there is no file"),
        (".", "there is no file"),
        ("", "there is no file ''"),
        ("nowhere.jsonl", "there is no file 'nowhere.jsonl'"),
        ("empty.jsonl", "contains no row"),
    ],
    ids=["a long name", "a folder", "no name", "no file", "no row"],
)
def test_a_file_without_rows_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.jsonl").write_text("\n")
    with pytest.raises(UsageError, match=said):
        load_problems(f"notsotiny:{name}")


def test_macros_of_the_problem_and_of_the_design_may_be_used() -> None:
    """Wherever they are defined, in whatever line ends."""
    text = "`define WIDTH 8\r\nassign y = a + `WIDTH;\r\nassign z = `MAX(a, (b)) + 1;\n`ifdef FAST\n`endif\n"
    assert list(CHECK["faults"](text, {"`define WIDTH 8"}, {"WIDTH", "MAX", "FAST"})) == []
    assert list(CHECK["faults"]("assign y = `MAX(a, b)`MAX(c, d);", set(), {"MAX"})) != []


def test_what_another_source_decides_is_refused() -> None:
    """Yosys keeps macros, and the harness may read the files in another order than the check."""
    guard = "`ifndef PARTS\n`define PARTS\n`endif\n"
    texts = {
        "/code/rtl/a.v": "`define WIDTH 4\n`define DEPTH 2\n`ifdef SYNTHESIS\n`endif\n" + guard,
        "/code/rtl/b.v": "`define WIDTH 4\n`define DEPTH \\\n 3\n`ifdef DEEP // own\n",
        "/src/golden.v": "`define DEEP\n`ifdef SYNTHESIS\n`endif\n",
        "/src/test.py": "run(['yosys', '-DFAST', '-p', 'read_verilog -formal x.v'])\nTOP = 'SLOW'",
    }

    def found(text: str, path: str = "/code/rtl/a.v") -> list[str]:
        return list(CHECK["other_readings"](path, texts | {path: text}, {"`ifdef DEEP // own", "`define OWN"}))

    assert found(texts["/code/rtl/a.v"]) == ["another `define of DEPTH than in other sources"]
    assert found("`define WIDTH 4 // the same\n`ifdef DEEP // own\n`ifdef SYNTHESIS\n" + guard) == []
    assert found("// `ifdef DEEP\n") == []
    for text in (
        "`ifdef WIDTH",
        "x; `ifndef DEEP",
        "`elsif\tSLOW",
        "`ifdef FORMAL",
        "`ifdef FAST",
        "`define OWN\n`ifdef OWN",
    ):
        assert len(found(text)) == 1, text


def test_comments_and_digits_are_no_hiding_places() -> None:
    honest = "// $display(\"sum %d\\n\", y);\n// see docs\\notes//adder\n`celldefine\nassign y = 4'd`X + 4'b`X;\n"
    assert list(CHECK["faults"](honest, set(), {"X"})) == []
    for text in ("wire \\x/* ;", "wire \\x//y ;", 'wire \\x" ;', "// a comment \\\nassign y = a;", "assign y = $`X;"):
        assert list(CHECK["faults"](text, set(), {"X"})) != [], text


def test_a_refused_text_is_told_what_it_may_have() -> None:
    (fault,) = CHECK["faults"]('localparam [95:0] M = "Hello, World", N = "Hello", F = "rom.hex";', set(), set())
    assert fault.endswith("other than of letters, digits and ._/-,")
    assert list(CHECK["faults"]('import "DPI-C" function integer f();', set(), set())) == ["the text '\"DPI-C\"'"]


def test_what_does_not_end_is_refused_and_read_once() -> None:
    for text in ("/* a /* b /* c", 'wire a; " \\" \\" \\"'):
        assert len(CHECK["PROSE"].findall(text)) == 1, text
        assert list(CHECK["faults"](text, set(), set())) != [], text


@pytest.mark.docker
async def test_yosys_judges_right_and_wrong_designs(tmp_path: Path, provider: DockerSandboxes) -> None:
    problem = load(tmp_path)
    other = "input [3:0] a, b;\noutput [3:0] y;\nwire [3:0] c = {a[2:0] & b[2:0] | (a[2:0] ^ b[2:0]) & c[2:0], 1'b0};\nassign y = a ^ b ^ c;\n"
    async with Scorer(provider, waiting=0) as scorer:
        for files, passed in (
            (problem.golden, True),
            ({TARGET: design(other)}, True),
            ({TARGET: design(_WRONG)}, False),
        ):
            score = await scorer.score(problem, files or {})
            assert score.passed == passed, score.reason
            assert score.compile == 1.0, "no compiler ran, and the syntax is right"
        score = await scorer.score(problem, {TARGET: "module"})
        assert (score.passed, score.compile) == (False, 0.0)


@pytest.mark.docker
async def test_a_given_file_may_contain_anything_until_it_is_changed(tmp_path: Path, provider: DockerSandboxes) -> None:
    changed = row()
    shared = '`include "width.vh" /* shared */\nmodule shared(input a, output b);\nassign b = a;\nendmodule\n'
    changed["input"]["context"] = {"rtl/shared.v": shared, "rtl/width.vh": "`define WIDTH 4\n"}
    changed["output"]["context"]["rtl/shared.v"] = shared
    problem = load_row(tmp_path, changed)
    async with Scorer(provider, waiting=0) as scorer:
        score = await scorer.score(problem, {**problem.context, **(problem.golden or {})})
        assert score.passed, score.reason
        edited = {**problem.context, **(problem.golden or {}), "rtl/shared.v": shared + "// mine\n"}
        score = await scorer.score(problem, edited)
    assert not score.passed


@pytest.mark.docker
async def test_a_printed_text_passes_only_without_the_check(tmp_path: Path, provider: DockerSandboxes) -> None:
    """The control: the same row without the check takes the text for the verdict."""
    plain = problem_from_row(row(), Place("rows.jsonl", 1))
    files = {TARGET: design(next(iter(FORGERIES.values())))}
    async with Scorer(provider, waiting=0) as scorer:
        assert (await scorer.score(plain, files)).passed
        score = await scorer.score(load(tmp_path), files)
    assert not score.passed
    assert score.tests_passed == 0
    assert BODY not in files[TARGET]


@pytest.mark.slow  # that the text is refused is tested above, and that Yosys judges without the check
@pytest.mark.docker
async def test_a_macro_of_the_reference_chooses_no_other_design(tmp_path: Path, provider: DockerSandboxes) -> None:
    """Without the check, Yosys finds the reference's macro defined when it reads the design."""
    loop = _LOOP.partition("\n")[2]
    body = f"input [3:0] a, b;\noutput [3:0] y;\n`ifdef WIDTH\n{loop}`else\nassign y = a + b;\n`endif\n"
    golden = "`define WIDTH 4\n" + design(BODY)
    plain = problem_from_row(row(golden=golden), Place("rows.jsonl", 1))
    async with Scorer(provider, waiting=0) as scorer:
        assert (await scorer.score(plain, {TARGET: design(body)})).passed
        score = await scorer.score(load(tmp_path, golden=golden), {TARGET: design(body)})
    assert not score.passed
    assert score.tests_passed == 0


@pytest.mark.slow  # a grading for each
@pytest.mark.docker
@pytest.mark.parametrize("name", FORGERIES)
async def test_a_forgery_earns_nothing(name: str, tmp_path: Path, provider: DockerSandboxes) -> None:
    async with Scorer(provider, waiting=0) as scorer:
        score = await scorer.score(load(tmp_path), {TARGET: design(FORGERIES[name])})
    assert not score.passed
    assert score.tests_passed == 0
    assert score.reward <= 0.4, "only format and syntax may have been earned"


_Q = "input [3:0] a, b; output [3:0] y;\nassign y = a & {4{q}};\n"
HIDDEN_LOOPS = {
    "a latch that is always open": f"reg q;\n{_Q}wire e = |{{a[0], ~a[0]}};\nalways @* if (e) q = (q === 1'b0);\n",
    "an asynchronous set": f"reg q;\n{_Q}wire s = (q === 1'b0);\nalways @(posedge a[0], posedge s) if (s) q <= 1; else q <= 0;\n",
    "a module that is kept": f"wire q; inverse u(q, q);\n{_Q}endmodule\n(* keep_hierarchy *)\nmodule inverse(input i, output o); assign o = (i === 1'b0);\n",
}
"""Loops without a solution, for a comparison of designs in which nothing is kept, asynchronous or a latch."""


@pytest.mark.slow  # two gradings for each
@pytest.mark.docker
@pytest.mark.parametrize("name", HIDDEN_LOOPS)
async def test_a_loop_that_the_comparison_makes_earns_nothing(
    name: str, tmp_path: Path, provider: DockerSandboxes
) -> None:
    tests = row()["harness"]["files"]["src/test_equivalence.py"]
    tests = tests.replace("flatten\n", "setattr -mod -unset keep_hierarchy\nflatten\nasync2sync\n", 1)
    plain = problem_from_row(row(test_equivalence=tests), Place("rows.jsonl", 1))
    files = {TARGET: design(HIDDEN_LOOPS[name])}
    async with Scorer(provider, waiting=0) as scorer:
        assert (await scorer.score(plain, files)).passed, "without the check"
        score = await scorer.score(load(tmp_path, test_equivalence=tests), files)
    assert not score.passed
    assert score.tests_passed == 0


@pytest.mark.slow  # a grading for each
@pytest.mark.docker
@pytest.mark.parametrize("head", ["output [7:0] ui_in", "inout [7:0] ui_in", ""])
async def test_other_ports_earn_nothing(head: str, tmp_path: Path, provider: DockerSandboxes) -> None:
    """An input that the design drives itself makes it equal to any other."""
    text = design(_WRONG).replace("input [7:0] ui_in,", f"{head}," if head else "")
    text = text.replace(
        "  wire [3:0] sum;\n", f"  {'' if head else 'wire [7:0] ui_in;'}assign ui_in = 8'd0;\n  wire [3:0] sum;\n"
    )
    async with Scorer(provider, waiting=0) as scorer:
        score = await scorer.score(load(tmp_path), {TARGET: text})
    assert not score.passed
    assert score.tests_passed == 0


@pytest.mark.docker
async def test_a_files_name_is_no_command(sandbox: DockerSandbox) -> None:
    files = {'n/x"; exec -- touch done; ".v': "module z(input a, output b);\nassign b = a;\nendmodule\n"}
    await sandbox.write_files({"design_text.py": harness_file("design_text.py"), **files}, root="/tmp")
    program = "import design_text; print(design_text.read(*design_text.sources('/tmp/n')))"
    done = await sandbox.run(f'cd /tmp; python3 -c "{program}"; ls', timeout=60)
    assert done.output.splitlines()[0] == "(0, 0, {'z': [['a', 'input', 1], ['b', 'output', 1]]})", done.output
    assert "done" not in done.output.split()
