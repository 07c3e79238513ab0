"""Optimisation problems: where they come from, what designs earn, and that nothing looks smaller than it is."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rtl_agent_gym.problems import Problem, load_problems, validate_problem
from rtl_agent_gym.sandboxes import DockerSandbox, DockerSandboxes
from rtl_agent_gym.scoring import RewardWeights, Score, Scorer, score_files
from rtl_agent_gym.sources import families, optimization
from rtl_agent_gym.sources.derivation import device_of, renamed_inside, right_files
from rtl_agent_gym.sources.making import OptimizationMaker
from rtl_agent_gym.sources.optimization.derived import (
    Goal,
    Measured,
    OptimizeOptions,
    WastefulCase,
    cases,
    optimization_problem,
    template,
)
from rtl_agent_gym.sources.optimization.wastes import WASTES
from tests.cli.in_process import call
from tests.sources.optimization_attacks import ATTACKS, DESIGN, FORGING

TIMER = "family:timers?count=1&seed=7"
FAMILIES = [f"family:{name}?count=1&seed=7" for name in families.FAMILIES]
PATH = "rtl/design.sv"
ORIGINAL, REFERENCE = {"area": 7271.0, "flops": 32.0, "delay": 1.183}, {"area": 4079.0, "flops": 16.0, "delay": 1.067}
"""What `DESIGN` and the family's own design cost."""
LEAN = DESIGN.replace("[31:0] q", "[3:0] q")
_LATE = "    reg [31:0] late;\n    always @(posedge heron) if (lemon) late <= 0; else late <= late + 1;\n"


def case_of() -> WastefulCase:
    [problem] = load_problems(TIMER)
    return WastefulCase(problem, device_of(problem), "0" * 12, "wide_counter", PATH, DESIGN)


def timer(goal: Goal = "area") -> Problem:
    """The problem of making `DESIGN` smaller."""
    case = case_of()
    known = Measured(key=case.key, problem_id=case.problem.id, original=ORIGINAL, reference=REFERENCE)
    return optimization_problem(case, known, OptimizeOptions(goal=goal))


async def scored(problem: Problem, text: str, provider: DockerSandboxes) -> Score:
    async with Scorer(provider, weights=RewardWeights.preset("dense")) as scorer:
        return await scorer.score(problem, {**problem.context, PATH: text})


def hidden_tests_pass(score: Score) -> bool:
    """Whether the tests of the design itself pass, whatever its quality."""
    tests = [test for test in score.tests if "quality" not in test.name]
    return bool(tests) and all(test.outcome == "passed" for test in tests)


def test_every_waste_is_tried_on_some_design(user_cache: Path) -> None:
    problems = [problem for source in ("bundled", *FAMILIES) for problem in load_problems(source)]
    every = list(cases(problems, OptimizeOptions()))
    assert {case.waste for case in every} == set(WASTES)
    assert len({case.key for case in every}) == len({(case.problem.id, case.path, case.text) for case in every})
    few = [list(cases(problems[-2:], OptimizeOptions())) for _ in range(2)]
    assert few[0] == few[1], "the same seed draws the same"
    assert all(case.text != right_files(case.problem)[case.path] for case in every)


def test_the_problem_shows_nothing_of_the_reference() -> None:
    problem = timer()
    assert not validate_problem(problem)
    right = (problem.golden or {})[PATH]
    assert problem.context[PATH] == DESIGN
    assert not any(right in text for text in [problem.prompt, *problem.context.values()])


def test_designs_without_a_reset_and_debugging_problems_are_left_out_with_the_reason() -> None:
    [problem] = load_problems(TIMER)
    given = (problem.golden or {})[PATH]
    harness = {path: text for path, text in problem.harness.items() if path != "src/case.json"}
    plain = problem.model_copy(
        update={"golden": {PATH: given.replace("heron", "clk")}, "harness": harness, "context": {}}
    )
    [mutant] = load_problems("bundled+mutants?count=1")
    left_out: list[str] = []
    assert not list(cases([plain, mutant], OptimizeOptions(), left_out))
    assert left_out == [
        f"{plain.id}: its design has no input that is named like a reset",
        f"{mutant.id}: it is a debugging problem; name the source that it is made of",
    ]


@pytest.mark.docker
@pytest.mark.slow
def test_the_command_names_each_design_that_it_refuses(user_cache: Path, tmp_path: Path) -> None:
    name, out = "cvdp_agentic_rtlgym_gray_counter_0001", tmp_path / "problems.jsonl"
    every = list(cases(load_problems("bundled", ids=name), OptimizeOptions()))
    ran = call("problems", "optimize", "bundled", "--problem", name, "--goal", "flops", "--out", str(out))
    assert ran.returncode == 0, ran.stderr
    made = [row["proof"]["waste"] for row in map(json.loads, out.read_text(encoding="utf-8").splitlines())]
    refused = re.findall(rf"^left out: {name} with (\w+): (.*)$", ran.stderr, re.MULTILINE)
    assert sorted([*made, *(waste for waste, _ in refused)]) == sorted(case.waste for case in every)
    reasons = dict(refused)
    few = "its waste costs too little: flops is 1.00 times the reference's, and 1.25 times is needed"
    assert reasons["lockstep_copy"] == few
    assert "it is not proved that the ripple_adder changes nothing" in reasons["ripple_adder"]


@pytest.mark.docker
async def test_what_designs_earn(provider: DockerSandboxes) -> None:
    problem = timer()
    given = await scored(problem, DESIGN, provider)
    assert hidden_tests_pass(given)
    assert (given.passed, given.quality, given.credit) == (False, 0.0, 0.0)
    assert given.measures["equivalence"] == "proved"
    reference = await scored(problem, (problem.golden or {})[PATH], provider)
    assert (reference.passed, reference.quality, reference.reward) == (True, 1.0, 1.4)
    assert {name: reference.measures[name] for name in REFERENCE} == REFERENCE
    assert f"area {REFERENCE['area']:g}, given {ORIGINAL['area']:g}" in reference.reason


def with_harness(problem: Problem, files: dict[str, str]) -> Problem:
    return problem.model_copy(update={"harness": problem.harness | files})


@pytest.mark.docker
async def test_where_the_measurement_ends_early_nothing_is_earned(provider: DockerSandboxes) -> None:
    score = await scored(with_harness(timer(), {"src/test_quality.py": "raise MemoryError\n"}), DESIGN, provider)
    assert hidden_tests_pass(score)
    assert (score.passed, score.quality, score.credit, score.measures["quality"]) == (False, 0.0, 0.0, 0.0)


@pytest.mark.docker
async def test_wrong_in_rare_cases_earns_nothing(provider: DockerSandboxes) -> None:
    text = ATTACKS["wrong in rare cases"]
    score = await scored(timer(), text, provider)
    assert (score.quality, score.passed) == (0.0, False)
    assert score.measures["equivalence"] == "differs"
    assert hidden_tests_pass(score), "the tests alone do not see it"


@pytest.mark.slow  # runs a proof to its time limit
@pytest.mark.docker
async def test_without_a_complete_proof_nothing_is_earned(provider: DockerSandboxes) -> None:
    """A design that goes wrong after 2^32 cycles, which no proof reaches in its time; the time is cut for the test."""
    late = LEAN.replace("    reg [3:0] q;\n", f"    reg [3:0] q;\n{_LATE}").replace(
        "chalk_reg = q;", "chalk_reg = &late ? 9 : q;"
    )
    assert "&late" in late
    problem = timer()
    program, settings = problem.harness["src/synthesis.py"], json.loads(problem.harness["src/quality.json"])
    assert "\nPROOF_SECONDS = 30\n" in program
    program = program.replace("\nPROOF_SECONDS = 30\n", "\nPROOF_SECONDS = 2\n")
    settings["original"]["area"] = 100_000.0  # so that most of the gain is left despite the long counter
    cut = with_harness(problem, {"src/synthesis.py": program, "src/quality.json": json.dumps(settings)})
    score = await scored(cut, late, provider)
    assert hidden_tests_pass(score)
    assert (score.measures["equivalence"], score.quality, score.passed) == ("bounded", 0.0, False)
    gain = (100_000 - float(score.measures["area"])) / (100_000 - REFERENCE["area"])
    assert gain > 0.8, "it would pass with a proof"
    assert re.search(r"proved equal to the given design in the first \d+ steps only", score.reason)


@pytest.mark.docker
@pytest.mark.slow  # half a minute: the same as above, for other goals, and without the proof
async def test_goals_and_proofs(provider: DockerSandboxes) -> None:
    assert (await scored(timer("flops"), LEAN, provider)).quality == 1.0
    half = DESIGN.replace("[31:0] q", "[23:0] q")
    assert (await scored(timer("flops"), half, provider)).quality == 0.5
    wrong = LEAN.replace("q <= 8", "q <= 9")
    assert (await scored(timer(), wrong, provider)).quality == 0.0
    problem, proof = timer(), "        proof = prove("
    text = problem.harness["src/test_quality.py"]
    assert proof in text
    text = text.replace(proof, "        from netlists import Proof\n        proof = Proof('proved', '') or prove(")
    forged = await scored(
        with_harness(problem, {"src/test_quality.py": text}), ATTACKS["wrong in rare cases"], provider
    )
    assert (forged.quality, forged.passed) == (1.0, True), "without the proof it succeeds"


@pytest.mark.docker
async def test_the_figures_are_what_synthesis_says(sandbox: DockerSandbox) -> None:
    found = await OptimizationMaker.examine(case_of(), OptimizeOptions(), sandbox)
    assert (found.fault, found.reference) == ("", REFERENCE)
    assert found.original == ORIGINAL


@pytest.mark.docker
async def test_assertions_cost_nothing(sandbox: DockerSandbox) -> None:
    checks = "always @(posedge heron) if (!lemon) begin small: assert (q <= 8); assume (!(amber && q > 9)); end\n"
    case = replace(case_of(), text=DESIGN.replace("endmodule", f"    {checks}endmodule"))
    found = await OptimizationMaker.examine(case, OptimizeOptions(), sandbox)
    assert (found.fault, found.original) == ("", ORIGINAL)


@pytest.mark.docker
async def test_a_case_of_constants_costs_cells_and_is_compared(sandbox: DockerSandbox, user_cache: Path) -> None:
    """The state machines of the family `machines` are such tables. Of two that differ, nothing is proved."""
    case = next(cases(load_problems("family:machines?count=1&seed=7"), OptimizeOptions()))
    entry = re.search(r"(\{\w+, \d+'d\d+\}: .* = \{\w+, \d+'d)(\d+)\};", case.text)
    assert entry is not None
    wrong = case.text.replace(entry[0], f"{entry[1]}{int(entry[2]) ^ 1}}};")
    found = await OptimizationMaker.examine(case, OptimizeOptions(), sandbox)
    assert found.fault == ""
    assert all(found.original[goal] >= found.reference[goal] > 0 for goal in ("area", "flops", "delay"))
    refused = await OptimizationMaker.examine(replace(case, text=wrong), OptimizeOptions(), sandbox)
    assert "differs" in refused.fault


@pytest.mark.docker
@pytest.mark.slow  # examines a design of each family, which takes half a minute for a memory
@pytest.mark.parametrize("name", families.FAMILIES)
async def test_nothing_is_made_of_families_whose_reset_leaves_data_as_it_is(
    name: str, sandbox: DockerSandbox, user_cache: Path
) -> None:
    case = next(cases(load_problems(f"family:{name}?count=1&seed=7"), OptimizeOptions()))
    found = await OptimizationMaker.examine(case, OptimizeOptions(), sandbox)
    assert (found.fault == "its reset leaves a flip-flop as it is, so that proofs would not be complete") == (
        name in importlib.import_module("optimization").UNPROVEN  # which the benchmark leaves out
    )


@pytest.mark.docker
@pytest.mark.slow  # a grading for each attack
@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_earns_nothing(name: str, provider: DockerSandboxes) -> None:
    score = await scored(timer(), ATTACKS[name], provider)
    assert (score.quality, score.credit, score.passed, score.retries) == (0.0, 0.0, False, 0)
    if name in FORGING:
        assert hidden_tests_pass(score), "it is right in simulation"


_NAIVE = (
    "read_verilog -sv design.sv; synth -top maple; dfflegalize -cell $_DFF_P_ x -cell $_DLATCH_P_ x; "
    "abc -genlib cells.genlib; write_json netlist.json"
)


@pytest.mark.docker
@pytest.mark.slow  # synthesises each attack
@pytest.mark.parametrize("name", sorted(FORGING))
async def test_without_guards_an_attack_looks_small(name: str, sandbox: DockerSandbox) -> None:
    """Yosys alone reads the text, and what is in the top module is counted; a latch of this library has no area."""
    areas = {"$_DFF_P_": 96.0}
    for line in template("cells.genlib").splitlines():
        if line.startswith("GATE"):
            areas[line.split()[1]] = float(line.split()[2])
    await sandbox.write_files({"design.sv": ATTACKS[name], "cells.genlib": template("cells.genlib")})
    done = await sandbox.exec(["sh", "-c", f"yosys -q -p '{_NAIVE}' >&2 && cat netlist.json"], timeout=120)
    found = json.loads(done.output[done.output.index("{") :])["modules"]["maple"]["cells"].values()
    area = sum(areas.get(cell["type"], 0.0) for cell in found)
    assert (ORIGINAL["area"] - area) / (ORIGINAL["area"] - REFERENCE["area"]) >= 1.0


@pytest.mark.docker
@pytest.mark.slow  # makes and verifies problems, which takes a minute
@pytest.mark.timeout(900)
def test_the_command_writes_verified_problems(user_cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "problems.jsonl"
    source = "family:timers?count=2&seed=7"
    ran = call("problems", "optimize", source, "--count", "3", "--seed", "5", "--out", str(out))
    assert ran.returncode == 0, ran.stderr
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert all(row["proof"]["equivalence"] == "proved" for row in rows)
    problems = load_problems(str(out))
    assert [problem.id for problem in load_problems(f"{source}+ppa?count=3&seed=5")] == [p.id for p in problems]
    assert len({problem.id for problem in problems}) == 3
    for problem in problems:
        text = problem.context[PATH]
        other = renamed_inside(text, device_of(problem)).replace("\n", "\n\n").replace("    ", "\t")
        assert other != text
        assert score_files(problem, {**problem.context, PATH: other}).quality <= 0.02
        assert score_files(problem, {**problem.context, **(problem.golden or {})}).quality == 1.0


@pytest.fixture
def synthesis(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The harness's module."""
    monkeypatch.syspath_prepend(str(Path(optimization.__file__).with_name("harness")))
    return importlib.import_module("synthesis")


def test_proofs_are_limited_by_processor_time_alone(
    synthesis: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each way has its own process, so that one that runs out of time leaves the next one its own."""
    ran = []

    def limited(command: list[str], folder: Path, seconds: int) -> SimpleNamespace:
        ran.append((command[-1], seconds))
        return SimpleNamespace(stdout="   0 + : Var = 1.\n   1 + : Var = 2.\n" if "bmc3" in command[-1] else "")

    monkeypatch.setattr(synthesis, "_limited", limited)
    monkeypatch.setattr(synthesis, "miter", lambda *_: "")
    assert synthesis.prove(None, None, {"reset": "", "level": 1}, tmp_path) == ("bounded", 2)
    assert [seconds for _, seconds in ran] == [90, 60, 30]
    assert not any(" -T " in script for script, _ in ran)


def test_what_does_not_end_is_read_once(synthesis: Any) -> None:
    """A comment or an attribute that does not end is not looked for again in each of its parts."""
    assert synthesis.plain_text("a /* b /* c (* d") == "a  "
    for text in ("always @(*) a (* b (* c", "(* a " * 200_000, '"' + '\\"' * 200_000, "(* b" + " (a" * 200_000):
        with pytest.raises(synthesis.Unfit):
            synthesis.plain_text(text)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ('`line 1 "/code/rtl//a.sv" 0\na\n`line 7 "/code/rtl/a.sv" 2\nb', " \na\n \nb"),
        ("`timescale 1ns/1ps // 10\na", " \na"),
        ("`timescale 10 us / 100 fs\n`default_nettype none /* a\nb */\t\na", " \n \na"),
        ("`resetall\n`celldefine\nmodule a; endmodule `endcelldefine", " \n \nmodule a; endmodule  "),
        ("a // synopsys translate_off\nb // synopsys translate_on \xe9\0\nc", "a  \nb  \nc"),
        ("a /*/ b */ c /**/ d", "a   c   d"),
        ('always @(*) a <= (* full_case, b = "c */ \\" *) // `d" *) e', "always @(*) a <=   e"),
        ('(* a = "*) b (*" *) c', "  c"),
        ("(* a // *) b\n /* *) */ = (1 * 2) *) c", "  c"),
        ("a = $signed(b) + $clog2(c) + d[$bits(e)-1]", "a = $signed(b) + $clog2(c) + d[$bits(e)-1]"),
    ],
)
def test_comments_attributes_and_known_directives_are_left_out(synthesis: Any, text: str, plain: str) -> None:
    assert synthesis.plain_text(text) == plain


@pytest.mark.parametrize(
    "text",
    [
        "`celldefine a",
        "`endcelldefine /*\nb */ a",
        "`celldefine /* b */ a",
        "`resetall `celldefine",
        "`resetall a",
        "`timescale 1ns/1ps a",
        "`timescale 1ns/1psa",
        "`timescale 1ns/\n1ps a",
        "`timescale /*\n*/ 1ns/1ps a",
        "`default_nettype none wire",
        "`default_nettype\nnone a",
        "`default_nettype tri0",
        "`unconnected_drive pull1",
        "`nounconnected_drive",
        '`begin_keywords "1364-1995" a',
        "`end_keywords a",
        "`pragma protect begin",
        '`line 1 "/code/rtl/a.svh" 1',
        '`line 1 "/code/rtl/a.sv" 0 // a\r b',
        '`line 1 "/code/rtl/a.sv" 0 a',
        'a `line 1 "/code/rtl/a.sv" 0',
        "`line",
        '#line "a" 1',
        "`ifdef YOSYS\na\n`endif",
        '`include "a"',
        "`uselib a",
        "` a",
        '(* a = "*) b (*" *',
        "(* a = 1 + (* b *) c *) d",
        "(* `celldefine *)",
        "(* \\*) b *) c",
        '(* a = "b\n*) c" *)',
        "\\a`b ",
        "\\a/*b /* */",
        'a = "/*"; b = "*/"',
        'a = "b\n// "',
        "a\0b",
        "a \xa0 b",
        "a \x7f b",
        "a \f b",
        "$display(a)",
        "$signed$a(b)",
    ],
)
def test_what_yosys_may_read_otherwise_than_the_compiler_is_refused(synthesis: Any, text: str) -> None:
    with pytest.raises(synthesis.Unfit):
        synthesis.plain_text(f"module m;\n{text}\nendmodule\n")
