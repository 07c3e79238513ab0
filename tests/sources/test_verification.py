"""Verification problems: where they come from, what they ask for, and what benches earn."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import zlib
from importlib.resources import files
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.problems import Problem, load_problems, validate_problem
from rtl_agent_gym.sandboxes import DockerSandbox, DockerSandboxes
from rtl_agent_gym.scoring import RewardWeights, Score, Scorer, trials
from rtl_agent_gym.scoring.submission import sift
from rtl_agent_gym.sources.derivation import Store, device_of, renamed_inside, right_files
from rtl_agent_gym.sources.families import FAMILIES
from rtl_agent_gym.sources.making import VerificationMaker
from rtl_agent_gym.sources.mutants.mutant import Verdict, VerdictStore, design_key, problem_mutants
from rtl_agent_gym.sources.suites.common import ports, rename
from rtl_agent_gym.sources.verification.derived import (
    KINDS,
    SOURCE,
    Findings,
    Kind,
    VerifyOptions,
    cases,
    drawn_mutants,
    specification,
)
from tests.cli.in_process import call

from .verification_attacks import RIGHT, problem_with

SOURCES = {name: f"family:{name}?count=1&seed=4" for name in FAMILIES}


IN_PYTHON = 'assert "x" in value or found == value'
"""The check of a reference in Python."""


async def made_of(problems: list[Problem], kind: Kind, folder: Path, *, coverage: bool = False) -> Problem:
    """The verified problem of the first design."""
    options = VerifyOptions(kind=kind, coverage=coverage)
    async with VerificationMaker.open(store=Store(Findings, folder), cache=False) as maker:
        problem, found = await maker.make(next(cases(problems, options)), options)
    assert problem is not None, found.reason(options)
    return problem


async def scored(problem: Problem, text: str, provider: DockerSandboxes) -> Score:
    async with Scorer(provider, weights=RewardWeights.preset("dense")) as scorer:
        return await scorer.score(problem, {problem.targets[0]: text})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_the_packages_own_need_nothing(kind: str, user_cache: Path) -> None:
    problems = load_problems(f"bundled+verify?kind={kind}")
    assert len(problems) == len({problem.id for problem in problems}) == 14
    for problem in problems:
        settings = json.loads(problem.harness["src/judge.json"])
        assert not validate_problem(problem)
        assert 8 <= len(settings["mutants"]) <= 24
        assert len(settings["right"]) >= 2
        assert not any("mutant" in text or "HIDDEN" in text for text in [problem.prompt, *problem.context.values()])
        if kind == "cocotb":
            assert "mutant" not in problem.harness["src/run.py"], "a bench could read it"
    digests = {problem.digest for problem in problems}
    assert digests == {problem.digest for problem in load_problems(f"bundled+verify?kind={kind}")}


def test_a_count_takes_the_first(user_cache: Path) -> None:
    every = load_problems("bundled+verify?kind=checker")
    assert load_problems("bundled+verify?kind=checker&count=3") == every[:3]


def test_designs_are_left_out_with_the_reason(user_cache: Path) -> None:
    [problem] = load_problems(SOURCES["registers"])
    right = (problem.golden or {})["rtl/design.sv"]
    golden = {"rtl/design.sv": right.replace("endmodule", "initial $error;\nendmodule")}
    left_out: list[str] = []
    changed = [problem.model_copy(update=update) for update in ({"golden": golden}, {"golden": None})]
    assert not list(cases(changed, VerifyOptions(), left_out))
    assert "its design has $error" in left_out[0]
    assert "no reference solution" in left_out[1]


def test_other_names_inside_keep_the_ports() -> None:
    for problem in load_problems("bundled"):
        device, files = device_of(problem), right_files(problem)
        text = device.text(files)
        other = renamed_inside(text, device)
        assert ports(other)[device.name] == device.ports
        assert (other == text) == (problem.id == "cvdp_agentic_rtlgym_saturating_counter_0001"), "it has no inner names"


def test_the_bug_of_a_debugging_problem_is_a_mutant(user_cache: Path) -> None:
    [problem] = load_problems("bundled+mutants?count=1&seed=0")
    [case] = cases([problem], VerifyOptions())
    [path] = problem.targets
    first = next(iter(drawn_mutants(case, 0).values()))
    assert problem.context[path] in first
    assert (problem.golden or {})[path] not in first


@pytest.mark.parametrize(
    ("name", "level"),
    [("n_rst", 0), ("core_n_reset", 0), ("rst_n", 0), ("aresetn", 0), ("rst_ni", 0), ("core_rst", 1), ("gen_reset", 1)],
)
def test_the_level_of_a_reset_is_in_its_name(name: str, level: int) -> None:
    device = device_of(problem_with(rename(RIGHT, "rst", name), "counter"))
    assert (device.clock, device.reset, device.reset_level) == ("clk", name, level)


CROWDED = """
module crowded (
    input wire clk, input wire rst, input wire seed, input wire [3:0] left, input wire dut, input wire model,
    output reg [3:0] word, output reg last, output wire compare
);
    assign compare = model ^ last;
    always @(posedge clk)
        if (rst) begin
            word <= 0;
            last <= 0;
        end else begin
            if (seed) word <= word + left;
            last <= dut & (word == 4'd9);
        end
endmodule
"""


@pytest.mark.docker
@pytest.mark.parametrize("kind", [KINDS[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])])
async def test_what_benches_earn(kind: Kind, tmp_path: Path, provider: DockerSandboxes) -> None:
    """Also where ports have the names that a bench uses."""
    problem = await made_of([problem_with(CROWDED, "crowded")], kind, tmp_path)
    golden = (problem.golden or {})[problem.targets[0]]
    right = await scored(problem, golden, provider)
    assert right.passed
    assert (right.reward, right.syntax, right.interface) == (1.4, 1.0, 1.0)
    assert right.tests_passed == right.tests_total >= 8
    silent = (
        golden.replace("$error(", "$display(").replace("assert (", "if (!(").replace(")\n                else", "))\n")
    )
    texts = {
        "accepts": silent.replace(IN_PYTHON, "assert True"),
        "rejects": re.sub(r"#1 \w*compare;", '#1 $error("no");', golden).replace(IN_PYTHON, "assert False"),
        "empty": "",
        "broken": "x",
    }
    for name, text in texts.items():
        score = await scored(problem, text, provider)
        assert (score.passed, score.credit, score.tests_passed) == (False, 0, 0), name


@pytest.mark.docker
@pytest.mark.slow  # a problem is made, which takes half a minute
async def test_most_of_the_mutants_are_enough(tmp_path: Path, provider: DockerSandboxes) -> None:
    problem = await made_of(load_problems(SOURCES["arbiters"]), "stimulus", tmp_path)
    right, settings = problem.harness["src/designs/right.sv"], json.loads(problem.harness["src/judge.json"])
    golden = (problem.golden or {})[problem.targets[0]]
    for missed, passes in ((1, True), (2, False)):
        names = settings["mutants"][:missed]
        harness = {**problem.harness, **{f"src/designs/{name}": right for name in names}}
        score = await scored(problem.model_copy(update={"harness": harness}), golden, provider)
        assert len(settings["mutants"]) == score.tests_total == 12
        assert score.passed == passes
        assert score.tests_passed == 12 - missed
        assert score.credit == (1.0 if passes else pytest.approx(10 / 12))
        assert score.reason.startswith("11 of 12 tests passed" if passes else "2 of 12 tests failed")


@pytest.mark.docker
@pytest.mark.slow  # a problem is made; benches of this kind are tried in tests/research, too
async def test_checks_of_the_reset_alone_earn_little(tmp_path: Path, provider: DockerSandboxes) -> None:
    problem = await made_of(load_problems(SOURCES["timers"]), "checker", tmp_path)
    golden = (problem.golden or {})[problem.targets[0]]
    device = device_of(load_problems(SOURCES["timers"])[0])
    active = device.reset if device.reset_level else f"!{device.reset}"
    text = re.sub(r"always @\(negedge .*", "", golden.replace("#1 compare;", f"#1 if ({active}) compare;", 1))
    score = await scored(problem, text, provider)
    assert not score.passed
    assert score.credit < 0.6


IDLE = """
module testbench;
    reg clock = 0;
    {design} dut ({clock}(clock));
    initial begin repeat (20) #5 clock = ~clock; $finish; end
endmodule
"""


@pytest.mark.docker
@pytest.mark.slow  # Verilator builds three designs; what it counts is tested below
async def test_coverage_is_what_a_testbench_reaches(tmp_path: Path, provider: DockerSandboxes) -> None:
    problem = await made_of(load_problems(SOURCES["registers"]), "stimulus", tmp_path, coverage=True)
    device = device_of(load_problems(SOURCES["registers"])[0])
    golden = (problem.golden or {})[problem.targets[0]]
    idle = IDLE.format(design=device.name, clock=f".{device.clock}")
    weights = RewardWeights(partial_tests=True, coverage=0.5)
    async with Scorer(provider, weights=weights) as scorer:
        right, lazy, wrong = [
            await scorer.score(problem, {problem.targets[0]: text})
            for text in (golden, idle, golden.replace("#1 compare;", '#1 $error("no");'))
        ]
    assert right.passed
    assert right.coverage > 0.95
    assert right.coverage == pytest.approx(
        (float(right.measures["line_coverage"]) + float(right.measures["toggle_coverage"])) / 2, abs=1e-4
    )
    assert right.reward == pytest.approx(1.4 + 0.5 * right.coverage)
    assert right.tests_passed == right.tests_total  # of mutants alone
    assert 0 < lazy.coverage < 0.5  # the clock and what it reaches without a reset or an input
    assert (lazy.tests_passed, lazy.reward) == (0, pytest.approx(0.4 + 0.5 * lazy.coverage))
    assert (wrong.coverage, wrong.reward) == (0.0, pytest.approx(0.4))


COUNTED = """
module counted (input wire clk, input wire up, input wire [69:0] wide, output reg [1:0] q, output wire any);
    assign any = ^wide;
    always @(posedge clk)
        if (up) q <= q + 1;
        else q <= 0;
endmodule
"""
PLAYED = """
import json, sys
from design_coverage import measure
settings = {
    "clock": "clk",
    "ports": [["clk", "input", 1], ["up", "input", 1], ["wide", "input", 70], ["q", "output", 2], ["any", "output", 1]],
}
trace = json.load(open("trace.json"))
trace = [[time, values.encode()] for time, values in trace]
print(json.dumps(measure(open("counted.sv").read(), "counted", trace, settings)))
"""


@pytest.mark.slow  # three builds
@pytest.mark.docker
async def test_coverage_counts_lines_and_bits_that_rise_and_fall(sandbox: DockerSandbox) -> None:
    def trace(*ups: int, wide: int = 0) -> list[tuple[int, str]]:
        """A clock cycle for each value of `up`, which changes at the rising edge and so counts at the next one."""
        events = [(at, at % 2, ups[at // 2], wide if at == 2 else 0) for at in range(1, 2 * len(ups))]
        return [(at, f"{clk} {up} {value:070b}|xx x") for at, clk, up, value in events]

    cases = {
        "nothing": trace(0, 0, 0),
        "counts": trace(0, 1, 1, 1, 1, 1, 0, 0),
        "wide": trace(0, 0, 0, wide=(1 << 69) | 1),
    }
    program = files("rtl_agent_gym.sources.verification") / "harness" / "design_coverage.py"
    found = {}
    common = {"design_coverage.py": program.read_text(), "counted.sv": COUNTED, "play.py": PLAYED}
    for name, events in cases.items():
        await sandbox.write_files({**common, "trace.json": json.dumps(events)})
        done = await sandbox.exec(["python3", "play.py"], timeout=300)
        found[name] = json.loads(done.output.splitlines()[-1])
    bits = 1 + 1 + 70 + 2 + 1
    assert found["nothing"]["toggle"] == pytest.approx(1 / bits)  # the clock
    assert found["counts"]["toggle"] == pytest.approx(4 / bits)  # also up and both bits of q
    assert found["wide"]["toggle"] == pytest.approx(3 / bits)  # the highest and the lowest bit, whose parity is 0
    assert found["nothing"]["line"] == found["wide"]["line"] < found["counts"]["line"] == 1.0


def test_only_testbenches_have_coverage(tmp_path: Path) -> None:
    options = ("--kind", "checker", "--coverage", "--out", str(tmp_path / "made.jsonl"))
    result = call("problems", "verify", "bundled", *options)
    assert (result.returncode, "leave out --kind checker" in result.stderr) == (2, True)


@pytest.mark.docker
def test_the_command_writes_verified_problems(user_cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "made.jsonl"
    source = "family:registers?count=1&seed=9"
    result = call("problems", "verify", source, "--kind", "assertions", "--count", "1", "--out", str(out))
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["proof"]["reference"]["strength"] for row in rows] == [1.0]
    assert load_problems(str(out)) == load_problems(f"{source}+verify?kind=assertions&count=1")


@pytest.mark.slow  # a grading for each bundled problem, family and kind
@pytest.mark.timeout(1200)
@pytest.mark.docker
@pytest.mark.parametrize("kind", KINDS)
async def test_every_reference_passes(kind: Kind, tmp_path: Path, provider: DockerSandboxes) -> None:
    problems = load_problems(f"bundled+verify?kind={kind}")
    problems += [await made_of(load_problems(source), kind, tmp_path) for source in SOURCES.values()]
    for problem in problems:
        score = await scored(problem, (problem.golden or {})[problem.targets[0]], provider)
        assert score.passed, f"{problem.id}: {score.reason}"
        assert score.tests_passed >= 0.95 * score.tests_total, problem.id


def test_findings_of_mutants_that_are_not_drawn_are_as_none(user_cache: Path) -> None:
    """As with another version of pyslang."""
    case, store = next(cases(load_problems("bundled"), VerifyOptions())), SOURCE.store()
    known = store.get(case.key)
    assert known is not None
    store.put(known.model_copy(update={"mutants": (*known.mutants, "0" * 16)}))
    with pytest.raises(UsageError, match=r"has not been examined yet; do that once with: .* problems verify 'bundled'"):
        load_problems("bundled+verify?count=1")


def test_a_later_verdict_takes_no_mutant_away(user_cache: Path) -> None:
    """As `problems strength` finds some; a design that was examined keeps its mutants."""
    [before] = load_problems("bundled+verify?count=1")
    case = next(cases(load_problems("bundled"), VerifyOptions()))
    drawn = list(drawn_mutants(case, 0))
    for mutant in problem_mutants(case.problem):
        VerdictStore().put(Verdict.on(design_key(case.problem), mutant, "survived"))
    assert load_problems("bundled+verify?count=1") == [before]
    assert list(drawn_mutants(case, 0)) == drawn  # another machine examines the same ones


@pytest.mark.parametrize(
    ("rejected", "fault", "verdicts"),
    [
        ("", "", {"equal.sv": "early", "later.sv": "early", "seen.sv": "rejected"}),
        ("other.sv#7", "the bench rejects a right design", {}),
    ],
)
def test_a_bench_in_python_must_accept_right_designs_and_see_what_it_rejects(
    rejected: str, fault: str, verdicts: dict[str, str], tmp_path: Path
) -> None:
    """It ends after two of the three recorded steps when it rejects."""

    def packed(*steps: str) -> str:
        return base64.b64encode(zlib.compress("\n".join(steps).encode())).decode()

    differs = {"equal.sv": None, "later.sv": 3, "seen.sv": 2}
    right = [f"{('right.sv', 'other.sv')[at % 2]}#{at}" for at in range(8)]
    told = {
        name: ("rejected", packed("0", "1")) if name in (*differs, rejected) else ("accepted", packed("0", "1", "0"))
        for name in [*right, *differs]
    }
    known = {
        "state": {
            "round": 1,
            "steps": dict.fromkeys(told, packed("0", "1", "0")),
            "differs": differs,
            "verdicts": {},
        },
        "results": {
            name: {"output": json.dumps({"verdict": verdict, "steps": steps}), "late": False}
            for name, (verdict, steps) in told.items()
        },
    }
    settings = {"right": ["right.sv", "other.sv"], "ports": [["a", "input", 1], ["q", "output", 1]], "seconds": 1}
    program = files("rtl_agent_gym.sources.verification") / "harness" / "trials.py"
    for name, text in (
        ("trials.py", program.read_text()),
        ("judge.json", json.dumps(settings)),
        ("known.json", json.dumps(known)),
    ):
        (tmp_path / name).write_text(text)
    command = [sys.executable, "trials.py", "known.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"found": {"fault": fault, "verdicts": verdicts}}


async def test_no_run_begins_once_all_have_taken_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = AsyncMock(return_value=({"output": "", "late": False}, 500.0))
    monkeypatch.setattr(trials, "_run", runs)
    monkeypatch.setattr(
        trials, "_ask", AsyncMock(side_effect=[{"runs": dict.fromkeys("abcd"), "state": {}}, {"found": {}}])
    )
    problem = load_problems("bundled")[0]
    bench = problem.model_copy(update={"harness": {**problem.harness, trials.PROGRAM: ""}})
    _, late = await trials.with_trials(sift(bench, {}), Mock())
    assert (runs.await_count, late) == (2, True)


def test_the_task_overwrites_no_document_of_a_design() -> None:
    problem = load_problems("bundled")[0]
    changed = problem.model_copy(update={"context": {**problem.context, "docs/task.md": "taken\n"}})
    documents = specification(changed)
    assert documents["docs/task.md"] == "taken\n"
    assert problem.prompt in documents["docs/task_2.md"]
