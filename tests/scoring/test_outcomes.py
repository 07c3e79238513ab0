from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from rtl_agent_gym.scoring.blame import MemoryUse
from rtl_agent_gym.scoring.grader.messages import Message, Phase, ProcessReport, Results, ServiceReport
from rtl_agent_gym.scoring.grading import Grading, honest_places, judge_run
from rtl_agent_gym.scoring.harness import Defences, HarnessRun, scoring_limits
from rtl_agent_gym.scoring.outcomes import Ran, account, share
from rtl_agent_gym.scoring.score import RewardWeights
from rtl_agent_gym.scoring.submission import sift

from .conftest import GOLDEN, TARGET, make_problem

ITEM, A = "src/test_runner.py::test_a", "test_runner.py::test_a"


def item(name: str = ITEM, call: str = "passed", teardown: str = "passed") -> list[Phase]:
    phases = (("setup", "passed"), ("call", call), ("teardown", teardown))
    return [
        {"kind": "phase", "item": name, "when": when, "outcome": outcome, "unfinished": False, "late": False}
        for when, outcome in phases
    ]


def simulation(name: str = ITEM, /, **outcomes: str) -> list[Message]:
    """The simulation of an item: its tests, and how they ended."""
    return simulation_of(name, 1, "x.xml", **outcomes)


def simulation_of(name: str, process: int, file: str, /, **outcomes: str) -> list[Message]:
    """The same in a process, with the file that it writes."""
    heard: list[Message] = [{"kind": "plan", "item": name, "process": process, "file": file, "tests": list(outcomes)}]
    for test, outcome in outcomes.items():
        if outcome != "silent":
            heard.append({"kind": "test", "item": name, "process": process, "test": test, "outcome": outcome})
    return heard


def results(total: int | None, failed: int, file: str = "x.xml", item: str = ITEM) -> Results:
    return {"kind": "results", "item": item, "file": file, "total": total, "failed": failed}


def names(heard: Sequence[Message], code: int | None = 0) -> list[tuple[str, str]]:
    return [(test.name, test.outcome) for test in account(heard).tests("service", code)]


@pytest.mark.parametrize(
    ("heard", "code", "expected"),
    [
        ([*simulation(a="passed", b="failed"), *item(call="failed")], 1, {f"{A}/a": "passed", f"{A}/b": "failed"}),
        (
            [{"kind": "items", "items": [ITEM, "src/test_runner.py::test_b"]}, *simulation(a="passed", b="silent")],
            None,
            {f"{A}/a": "passed", f"{A}/b": "error", "test_runner.py::test_b": "error"},
        ),
        ([*simulation(a="passed"), *item(call="failed")], 1, {f"{A}/a": "passed", A: "failed"}),
        (
            [*simulation(f"{ITEM}[/code/a.hex]", a="passed"), *item(f"{ITEM}[/code/a.hex]", call="failed")],
            1,
            {f"{A}[/code/a.hex]/a": "passed", f"{A}[/code/a.hex]": "failed"},
        ),
        ([*simulation(a="passed"), *item(teardown="failed")], 1, {f"{A}/a": "passed", A: "failed"}),
        ([*simulation(a="passed"), *item()], 1, {f"{A}/a": "passed", "service": "failed"}),
        ([], 0, {"service": "passed"}),
        ([], 2, {"service": "failed"}),
        ([], None, {"service": "error"}),
    ],
    ids=[
        "each test of cocotb is a test",
        "planned and never judged",
        "an item that fails beyond its simulations",
        "a parameter that contains a slash",
        "an item that fails when it is torn down",
        "a service that fails after all its tests passed",
        *(f"a service without pytest that {ended}" for ended in ("passes", "fails", "is late")),
    ],
)
def test_the_tests_of_a_service(heard: list[Message], code: int | None, expected: dict[str, str]) -> None:
    assert names(heard, code) == list(expected.items())


def test_skipped_tests_count_for_nothing() -> None:
    heard = [*simulation(a="passed", b="skipped"), *item()]
    assert share(account(heard).tests("service", 0)) == (1, 1)


def test_a_process_that_announced_no_tests_reports_none() -> None:
    """Such as a fork of the simulator."""
    fork: Message = {"kind": "test", "item": ITEM, "process": 2, "test": "a", "outcome": "passed"}
    assert names([*simulation(a="failed"), fork, *item(call="failed")], 1) == [(f"{A}/a", "failed")]


def test_results_that_nobody_saw_are_a_violation() -> None:
    assert account([results(1, 0)]).violations
    assert account([*simulation(a="failed"), results(1, 0)]).violations
    assert account([*simulation(a="passed", b="silent"), results(2, 0)]).violations
    assert not account([*simulation(a="failed"), results(1, 1)]).violations
    assert not account([*simulation(a="passed", b="skipped"), results(2, 0)]).violations
    assert not account([results(None, 0)]).violations
    assert not account([results(1, 0)], check_results=False).violations


def test_results_belong_to_the_simulation_that_wrote_them() -> None:
    good, bad = simulation(a="passed"), simulation_of("other", 2, "bad.xml", a="failed")
    both = [good[0], bad[0], good[1], bad[1]]  # at once
    assert names([*both, *item(), *item("other", "failed")], 1) == [
        ("test_runner.py::test_a/a", "passed"),
        ("other/a", "failed"),
    ]
    assert not account([*both, results(1, 0, item="other")]).violations
    assert account([*both, results(1, 0, "bad.xml")]).violations
    assert not account([*both, results(1, 0, "copy.xml")]).violations
    assert account([*bad, results(1, 0, "copy.xml")]).violations
    assert account([*both[:2], results(1, 0)]).violations  # before it ended


def test_a_service_may_read_the_results_of_one_before() -> None:
    def violations(*services: Sequence[Message]) -> list[str]:
        return Ran.of([service(str(number), 0, list(heard)) for number, heard in enumerate(services)]).violations

    assert not violations(simulation(a="passed"), [results(1, 0)])
    assert violations(simulation(a="failed"), [results(1, 0)])
    assert violations([results(1, 0)], simulation(a="passed"))


def test_guards_report_violations_compilations_and_complaints() -> None:
    heard: list[Message] = [
        {
            "kind": "compiler",
            "code": 2,
            "text": "rtl/a.sv:1: syntax error",
            "violations": [],
            "refusals": [],
            "build": None,
        },
        {"kind": "compiler", "code": 0, "text": "", "violations": [], "refusals": [], "build": None},
        {"kind": "compiler", "code": 1, "text": "later", "violations": [], "refusals": [], "build": None},
        {"kind": "compiler", "code": None, "text": "", "violations": [], "refusals": ["b:1: x"], "build": None},
        {"kind": "simulator", "violations": ["a:1: x"], "refusals": ["a:2: $foo"]},
        {"kind": "simulator", "violations": ["a:1: x"], "refusals": []},
    ]
    found = account(heard)
    assert found.compiled == [False, True, False]  # one was not started
    assert found.compiler == "rtl/a.sv:1: syntax error"
    assert found.violations == ["a:1: x"]
    assert found.complaints == ["b:1: x", "a:2: $foo"]


SEVEN = {f"t{n}": "passed" for n in range(7)}


@pytest.mark.parametrize(
    ("heard", "code", "expected"),
    [
        ([*simulation(a="passed", b="failed"), *item(call="failed")], 1, [0.5]),
        ([*simulation(a="passed", b="silent", c="skipped"), *item(call="failed")], 1, [0.5]),
        ([*simulation(**SEVEN), *item(), *item("src/test_runner.py::test_b", call="failed")], 1, [1.0, 0.0]),
        ([*simulation(a="passed"), *item()], 0, [1.0]),
        ([*item(call="skipped"), *item("src/test_runner.py::test_b")], 0, [1.0]),
        # A test counts if it passed in every simulation of its item.
        ([*simulation(a="passed", b="passed"), *simulation(a="passed", b="failed"), *item(call="failed")], 1, [0.5]),
        (
            [
                *simulation(a="failed", b="passed", c="passed"),
                *simulation(a="passed", b="failed", c="passed"),
                *item(call="failed"),
            ],
            1,
            [1 / 3],
        ),
        # As when the second configuration does not compile: what it would have shown is not known.
        ([*simulation(**SEVEN), *item(call="failed")], 1, [0.0]),
        # A service that fails after everything passed earns nothing.
        ([*simulation(a="passed"), *item()], 1, [0.0]),
        ([], 1, [0.0]),
        ([], None, [0.0]),
        ([], 0, [1.0]),
    ],
)
def test_each_item_earns_the_share_of_its_tests(heard: list[Message], code: int | None, expected: list[float]) -> None:
    assert account(heard).earned(code) == expected


def test_failing_early_does_not_hide_the_configurations_that_would_have_followed() -> None:
    tests, phases = simulation(**SEVEN, t7="failed"), item(call="failed")
    assert account([*tests, *phases]).earned(1) == [7 / 8]
    phases[1]["unfinished"] = True
    assert account([*tests, *phases]).earned(1) == [0.0]


def test_a_configuration_that_never_compiled_fails_as_many_tests_as_its_siblings_have() -> None:
    broken = f"{ITEM}[8]"
    heard: list[Message] = [
        {"kind": "items", "items": [f"{ITEM}[4]", broken]},
        *simulation(f"{ITEM}[4]", a="passed", b="passed", c="failed"),
        *item(f"{ITEM}[4]", call="failed"),
        *item(broken, call="failed"),
    ]
    assert share(account(heard).tests("service", 1)) == (2, 6)
    assert names(heard, 1)[3:] == [(f"test_runner.py::test_a[8]/{test}", "error") for test in "abc"]


def test_what_runs_out_of_time_earns_nothing_for_what_was_still_to_come() -> None:
    """Else a design that hangs in a configuration would earn more than one that fails in it."""
    finished = [*simulation(a="passed", b="failed"), *item(call="failed")]
    late = simulation("src/test_runner.py::test_b", a="passed", b="silent")
    found = account([*finished, *late])
    assert found.earned(None) == [0.5, 0.0]
    assert account(simulation("", a="passed", b="silent")).earned(None) == [0.0]


def test_as_many_failures_as_an_exit_status_cannot_tell() -> None:
    """cocotb's Makefiles exit with the number of failed tests, of which 256 are 0."""

    def failing(number: int, item: str = "") -> bool:
        tests = {f"t{at}": "failed" if at < number else "passed" for at in range(number + 3)}
        return account(simulation(item, **tests)).wraps

    assert [failing(number) for number in (0, 1, 255, 256, 257, 512)] == [False, False, False, True, False, True]
    assert not failing(256, ITEM)
    all_fail = simulation("", **{f"t{at}": "failed" for at in range(256)})
    assert not account([*all_fail, *simulation("", a="failed")]).wraps  # only the last one decides the status
    assert account([*simulation("", a="failed"), *all_fail]).wraps


def test_places_are_looked_up_where_a_line_directive_moves_them() -> None:
    tree = {"docs/x.md": b"`line 1", "rtl/a.sv": b'\n` line 9 "x" 0\n', "rtl/b.v": b"$fopenx\n$fopen"}
    there = "(there is a `line directive at rtl/a.sv:2)"
    found = honest_places(["x:9: $fopen opens it", "x:10: $system runs it", "results are false"], tree)
    assert found == [
        f"rtl/b.v:2: $fopen opens it {there}",
        f"rtl/a.sv:2: $system runs it {there}",
        f"rtl/a.sv:2: results are false {there}",
    ]
    assert honest_places(["x:9: $fopen opens it"], {"rtl/b.v": tree["rtl/b.v"]}) == ["x:9: $fopen opens it"]


def test_many_violations_in_a_large_design_cost_no_time() -> None:
    begun = time.process_time()
    violations = [f"rtl/a.sv:{number}: $fopen opens it" for number in range(500)]
    for end in (b"", b'line 1 "x" 0'):
        assert len(honest_places(violations, {"rtl/a.sv": b"`" * (1 << 20) + end})) == 500
    assert time.process_time() - begun < 3


def service(name: str, code: int | None, messages: list[Message]) -> ServiceReport:
    ended: ProcessReport = {
        "code": code, "seconds": 1.0, "log": "", "fault": None, "stopped": False, "signals": [], "waited": 0.0,
    }  # fmt: skip
    return {"name": name, "messages": messages, "added": 0.0, **ended}


def test_a_verdict_needs_every_service_and_no_violation() -> None:
    good, bad = service("a", 0, [*simulation(x="passed"), *item()]), service("b", 1, [])
    both = Ran.of([good, bad])
    assert [test.name for test in both.tests] == ["a: test_runner.py::test_a/x", "b: b"]
    assert both.earned == [1.0, 0.0]
    assert not both.passes([])
    alone = Ran.of([good])
    assert [test.name for test in alone.tests] == ["test_runner.py::test_a/x"]
    assert alone.passes([])
    assert not alone.passes(["rtl/a.sv:1: $fopen opens x"])
    wrapped = Ran.of([service("a", 0, simulation("", **{f"t{at}": "failed" for at in range(256)}))])
    assert not wrapped.passes([])


def test_a_service_that_ends_before_it_has_measured_anything_earns_nothing() -> None:
    """Although the given design passes the other tests, as an unchanged one does."""
    submission = sift(make_problem(harness={"src/quality.json": "{}"}), {TARGET: GOLDEN})

    def judged(code: int, *heard: Message, tests: int | None = 0) -> Grading:
        others = service("tests", tests, [*simulation(a="passed"), *item()])
        run = HarnessRun((others, service("quality", code, list(heard))))
        return judge_run(Grading(), submission, run, Defences())

    ended = judged(2)
    assert (ended.credit, ended.measures, ended.passed) == (0.0, {"quality": 0.0}, False)
    measured = item("test_quality", call="failed")
    measured[1]["measures"] = {"quality": 0.4, "why": "some"}
    assert (judged(1, *measured).credit, judged(1, *measured).measures["quality"]) == (0.4, 0.4)
    for code in (1, None):  # the tests fail, or never end
        assert judged(1, *measured, tests=code).credit == 0.0


def test_a_violation_of_several_services_counts_once() -> None:
    checked: Message = {"kind": "simulator", "violations": ["x"], "refusals": []}
    assert Ran.of([service("a", 0, [checked]), service("b", 0, [checked])]).violations == ["x"]


def test_an_attempt_on_the_grader_earns_no_credit_even_with_a_right_design() -> None:
    submission = sift(make_problem(), {TARGET: GOLDEN, "src/conftest.py": ""})
    static = Grading(format=1.0, syntax=1.0, violations=list(submission.violations))
    run = HarnessRun((service("a", 0, [*simulation(a="passed"), *item()]),))
    grading = judge_run(static, submission, run, Defences())
    score = grading.score(RewardWeights.preset("dense"), submission, seconds=1.0, retries=0)
    assert (score.passed, score.credit, score.reward, score.tests_passed) == (False, 0.0, 0.4, 0)
    measured = item()
    measured[1]["measures"] = {"coverage": 1.0, "quality": 1.0}
    run = HarnessRun((service("a", 0, [*simulation(a="passed"), *measured]),))
    grading = judge_run(static, submission, run, Defences())
    score = grading.score(RewardWeights(partial_tests=True, coverage=1.0), submission, seconds=1.0, retries=0)
    assert (score.credit, score.coverage, score.quality, score.reward) == (0.0, 0.0, 0.0, 0.4)


def test_without_a_compiler_that_reports_the_syntax_decides() -> None:
    submission = sift(make_problem(), {TARGET: GOLDEN})

    def compiled(code: int, format: float, syntax: float) -> float:
        static, run = Grading(format=format, syntax=syntax), HarnessRun((service("a", code, []),))
        return judge_run(static, submission, run, Defences()).compile

    assert [compiled(1, 1.0, syntax) for syntax in (1.0, 0.5)] == [1.0, 0.0]
    assert [compiled(code, 0.5, 1.0) for code in (0, 1)] == [1.0, 0.0]


def test_the_credit_is_the_mean_over_the_items_of_all_services() -> None:
    half, none = [*simulation(a="passed", b="failed"), *item(call="failed")], item(call="failed")
    run = HarnessRun((service("a", 1, [*half, *item("src/test_runner.py::test_b")]), service("b", 1, [*none])))
    grading = judge_run(Grading(format=1.0, syntax=1.0), sift(make_problem(), {TARGET: GOLDEN}), run, Defences())
    assert grading.credit == pytest.approx((0.5 + 1.0 + 0.0) / 3)


def test_what_the_clock_ended_may_end_otherwise_in_another_grading() -> None:
    submission = sift(make_problem(), {TARGET: GOLDEN})

    def judged(code: int | None, memory: MemoryUse) -> Grading:
        run = HarnessRun((service("a", code, simulation(a="silent")),), memory=memory)
        return judge_run(Grading(format=1.0, syntax=1.0), submission, run, Defences())

    found = [judged(code, MemoryUse()) for code in (1, None)]
    assert [grading.repeatable for grading in found] == [True, False]
    assert [grading.compile for grading in found] == [1.0, 0.0]  # it is unknown what would have been compiled
    # So it is with memory, unless the limit is the one of every grading.
    limit = scoring_limits()["memory"]
    used = [MemoryUse(True, limit), MemoryUse(True, limit // 2), MemoryUse(True, limit, own=False)]
    assert [judged(1, memory).repeatable for memory in used] == [True, False, False]
