"""No bench earns anything by telling designs apart by something else than their ports, or by another verdict."""

# ruff: noqa: E501 (texts of benches, one a line)

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterable
from importlib.resources import files
from typing import Any

import pytest

from rtl_agent_gym.sandboxes import DockerSandboxes
from rtl_agent_gym.scoring import RewardWeights, Score, Scorer
from rtl_agent_gym.scoring.harness import Defences
from rtl_agent_gym.sources.verification.derived import FORMS, MOST_EVENTS

from .verification_attacks import (
    ASYNCHRONOUS,
    ATTACKS,
    CHECKER_ATTACKS,
    COIN,
    HIDDEN_UNIT,
    HONEST,
    ITS_TWIN,
    RESET_ONLY,
    RIGHT,
    SHORT_RESET,
    TIMES,
    TWINS,
    WRONG,
    Attack,
    Control,
    bench,
    problem_of,
)

pytestmark = pytest.mark.docker

TARGET = "verif/testbench.sv"


async def scored(
    provider: DockerSandboxes,
    text: str,
    mutants: Iterable[str],
    control: Control | None = None,
    files: Iterable[tuple[str, str]] = (),
) -> Score:
    defences = Defences(simulation=False) if control and control.open_wall else None
    async with Scorer(provider, weights=RewardWeights.preset("dense"), defences=defences) as scorer:
        return await scorer.score(problem_of(mutants, control), {TARGET: text, **dict(files)})


def tried_on(attack: Attack) -> list[str]:
    return [WRONG] if attack.wrong else list(TWINS.values())


SLOW = pytest.mark.slow
"""The gradings of all take minutes; every time, some of the attacks run that have a control."""
LATE = ("an endless clock for a verdict", "a time-out for a verdict")
"""Attacks that last until a grading's time is up."""
QUICK = [attack.name for attack in ATTACKS if attack.control and attack.name not in LATE]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "attack", [pytest.param(attack, id=attack.name, marks=[SLOW] * (attack.name not in QUICK)) for attack in ATTACKS]
)
async def test_an_attack_earns_nothing(attack: Attack, provider: DockerSandboxes) -> None:
    score = await scored(provider, attack.text, tried_on(attack), files=attack.files)
    assert not score.passed
    assert score.tests_passed == 0
    assert score.reward <= 0.4, "only format and syntax may have been earned"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=SLOW if number else ()) for number, name in enumerate(CHECKER_ATTACKS)]
)
async def test_an_attack_beside_given_stimuli_earns_nothing(name: str, provider: DockerSandboxes) -> None:
    problem = problem_of([*TWINS.values(), RIGHT], kind="checker")
    async with Scorer(provider, weights=RewardWeights.preset("dense")) as scorer:
        score = await scorer.score(problem, {problem.targets[0]: CHECKER_ATTACKS[name]})
        golden = await scorer.score(problem, dict(problem.golden or {}))
    assert (score.passed, score.tests_passed, score.credit) == (False, 0, 0.0)
    assert golden.tests_passed == 0, "the reference cannot tell them apart either"


@pytest.mark.slow  # simulates twenty designs
async def test_a_checker_draws_no_number_from_its_names(provider: DockerSandboxes) -> None:
    problem = problem_of([WRONG] * 20, kind="checker")
    async with Scorer(provider) as scorer:
        score = await scorer.score(problem, {problem.targets[0]: COIN})
    assert (score.tests_passed, score.tests_total) == (0, 20), score.reason


@pytest.mark.parametrize(
    ("text", "control", "killed"),
    [
        pytest.param(SHORT_RESET, None, 0, id="a reset", marks=SLOW),
        pytest.param(HIDDEN_UNIT, None, 0, id="in a hidden unit"),
        pytest.param(SHORT_RESET, TIMES, 1, id="without the times", marks=SLOW),
    ],
)
async def test_what_a_bench_does_within_a_picosecond_is_seen(
    text: str, control: Control | None, killed: int, provider: DockerSandboxes
) -> None:
    problem = problem_of([ITS_TWIN], control, right=ASYNCHRONOUS)
    async with Scorer(provider) as scorer:
        score = await scorer.score(problem, {TARGET: text})
    assert (score.tests_passed, score.tests_total) == (killed, 1), score.reason


async def test_without_the_times_a_checker_counts_changes(provider: DockerSandboxes) -> None:
    problem = problem_of(TWINS.values(), TIMES, kind="checker")
    async with Scorer(provider) as scorer:
        text = CHECKER_ATTACKS["a count of changes within a time"]
        score = await scorer.score(problem, {problem.targets[0]: text})
    assert score.tests_passed == 1


CONTROLLED = [attack for attack in ATTACKS if attack.control]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "attack",
    [pytest.param(one, id=one.name, marks=[SLOW] * (one.name not in QUICK)) for one in CONTROLLED],
)
async def test_without_its_guard_an_attack_succeeds(attack: Attack, provider: DockerSandboxes) -> None:
    """The control: if these benches could not cheat, that they earn nothing would show nothing."""
    score = await scored(provider, attack.text, tried_on(attack), attack.control)
    assert score.tests_passed > 0, score.reason


Event = tuple[int, bytes, int]


def event(time: int, values: str, changes: int, edges: int = 0, path: str = "testbench.dut") -> Event:
    """An event of a trace; `values` are the inputs and the outputs."""
    return time, f"{values}|{changes}|{path}".encode(), edges


def test_only_what_the_ports_show_is_a_difference() -> None:
    program = files("rtl_agent_gym.sources.verification") / "harness" / "simulation.py"
    first_difference: Callable[..., Any] = runpy.run_path(str(program))["first_difference"]
    start, right = event(1, "0|0", 1), event(5, "1|0", 2, 1)

    def found(*other: Event, after: Iterable[Event] = (right,), until: float = 9) -> int | None:
        return first_difference([start, *after], [start, *other], until)

    assert found(event(5, "1|1", 2, 1)) == 5
    assert found(event(5, "1|1", 2, 1), until=4) is None
    assert found(event(5, "1|1", 2, 2)) is None, "the clock had other edges"
    assert found(event(5, "0|1", 3, 1)) == 5, "inputs may answer to the outputs"
    assert found(event(5, "0|0", 3, 1), event(6, "0|1", 3, 1)) is None, "the inputs differ first"
    assert found(event(3, "0|1", 1)) == 3, "outputs may change by themselves"
    assert found(event(3, "0|1", 3)) is None, "the bench has done something in one run alone"
    glitch = event(3, "0|0", 1)
    assert found(glitch, right) is None
    assert found(glitch, event(5, "1|1", 2, 1)) == 5, "a glitch before it changes nothing"
    second = event(5, "1|0", 2, 1, "testbench.second")
    assert found(second, right, after=[right, second]) is None, "the order of two instances is none"
    assert found(right, event(5, "1|1", 2, 1, "testbench.second"), after=[right, second]) == 5
    driven = event(3, "1|0", 1, 0, "testbench.second")
    assert found(driven, event(5, "1|1", 2, 1)) is None, "an instance that one run alone drives"


async def test_an_honest_bench_kills_what_it_sees_and_no_twin(provider: DockerSandboxes) -> None:
    score = await scored(provider, HONEST, [WRONG, *TWINS.values()])
    assert [test.outcome for test in score.tests] == ["passed", *["failed"] * len(TWINS)]
    assert score.reward == pytest.approx(0.4 + 1 / (1 + len(TWINS)))
    only_reset = await scored(provider, RESET_ONLY, [WRONG])
    assert only_reset.tests_passed == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(bench("if (q !== 10) $error;"), id="$error"),
        pytest.param(bench("if (q !== 10) $fatal(1, \"q is %0d\", q);"), id="$fatal"),
        pytest.param(bench("assert (q === 10);"), id="an assertion"),
        pytest.param(bench("if (q !== 10) $error; if ($simtime > 1000000) $fatal;"), id="a limit of $simtime"),
        pytest.param(
            bench("repeat (3000) @(posedge clk); #1 if (q !== 3010 % 16) $error;", head="`timescale 1s/1s\n"), id="hours"
        ),
        pytest.param(bench("assert (q === 10) else $fatal(2);"), id="an assertion with $fatal", marks=SLOW),
        pytest.param(bench("check(q);", "task check(input [3:0] x); if (x !== 10) $error(\"%b\", x); endtask"), id="a task", marks=SLOW),
        pytest.param(
            bench("n = wrong(q);", "function integer wrong(input [3:0] x); begin wrong = 0; if (x !== 10) $fatal; end endfunction"),
            id="a function",
        ),
        pytest.param(bench(inside="final if (q !== 11) $error;"), id="a final block"),
        pytest.param(bench(inside="always @(posedge clk) if (n > 0 && q === 12) $fatal; else n = n + 1;"), id="a process", marks=SLOW),
        pytest.param(bench("forever begin #1; if (q !== 10) $fatal; if ($time > 121) $finish; end"), id="a loop", marks=SLOW),
        pytest.param(bench("while (1) if (n == 1) $finish; else begin n = 1; if (q !== 10) $error; end"), id="$finish in a loop", marks=SLOW),
        pytest.param(bench("fork begin #3; if (q !== 10) $error; end begin #2; end join"), id="fork and join", marks=SLOW),
        pytest.param(bench('if (q !== 10) begin $write("no newline"); $error; end'), id="an open line before it", marks=SLOW),
        pytest.param(
            bench('$timeformat(-3, 9, " hidden E 0 ", 40); $display("%t", $time); if (q !== 10) $error;'), id="$timeformat"
        ),
        pytest.param(bench("if (q !== 10) $error;", head="`timescale 1ns/1fs\n"), id="a fine unit of time", marks=SLOW),
        pytest.param(bench("if (q !== 10) $error;", head=""), id="no unit of time", marks=SLOW),
        pytest.param("`define BAD (q !== 10)\n" + bench("if (`BAD) $error;"), id="a macro"),
        pytest.param("`default_nettype none\n" + bench("if (q !== 10) $error;"), id="no implicit nets", marks=SLOW),
        pytest.param(bench('$dumpfile("x.vcd"); $dumpvars(0, testbench); if (q !== 10) $error;'), id="waveforms", marks=SLOW),
    ],
)  # fmt: skip
async def test_every_form_of_a_verdict_counts(text: str, provider: DockerSandboxes) -> None:
    score = await scored(provider, text, [WRONG])
    assert score.passed, score.reason


@pytest.mark.docker
async def test_a_bench_whose_ports_change_too_often_is_told_so(provider: DockerSandboxes) -> None:
    """Its processor time is not over."""
    problem = problem_of([WRONG])
    name, limit = "src/test_runner.py", f"MOST_EVENTS = {MOST_EVENTS:_}"
    assert limit in problem.harness[name]
    assert f"ports may change at {MOST_EVENTS:,} points in time" in problem.prompt
    changed = {**problem.harness, name: problem.harness[name].replace(limit, "MOST_EVENTS = 20")}
    async with Scorer(provider) as scorer:
        score = await scorer.score(problem.model_copy(update={"harness": changed}), {"verif/testbench.sv": HONEST})
    assert not score.passed
    assert "ports change at more than 20 points in time" in score.tests[0].name


@pytest.mark.slow
async def test_an_assertion_with_else_rejects_nothing_by_itself(provider: DockerSandboxes) -> None:
    assert "without `else`" in FORMS["stimulus"].task
    assert not (await scored(provider, bench('assert (q === 10) else $display("wrong");'), [WRONG])).passed
