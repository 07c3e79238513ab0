"""No attack earns anything, although most of them pass the plain way; honest designs get the plain verdict."""

from __future__ import annotations

import asyncio
import re
import runpy
import shutil
from pathlib import Path

import pytest

from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.sandboxes import DockerSandbox, DockerSandboxes
from rtl_agent_gym.scoring import Scorer

from .designs import ATTACKS, DESIGNS, MAJORITY, SAMPLES, STEPS, Design, plain_verdict

pytestmark = pytest.mark.docker

ROOT = Path(__file__).parents[3]
QUICK = {"the verdict printed at the end", "an early $fatal", "the testbench's random numbers, chosen"}
"""Attacks of the default suite; each of the others has a defence of the same kind."""


def _rows(designs: list[Design], quick: set[str]) -> list[object]:
    slow = [pytest.mark.slow]
    return [pytest.param(one, id=one.name, marks=[] if one.name in quick else slow) for one in designs]


def test_the_designs_are_different_and_most_attacks_work_the_plain_way() -> None:
    assert len({design.name for design in ATTACKS + DESIGNS}) == len(ATTACKS + DESIGNS)
    numbers = (len(ATTACKS), sum(attack.plain for attack in ATTACKS), len(DESIGNS))
    pattern = (
        r"`tests/sources/suites/designs.py` has (\d+) attacks .*?\. (\d+) of them pass .*? Of (\d+) honest designs"
    )
    found = re.search(pattern, (ROOT / "docs" / "scoring.md").read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    assert tuple(map(int, found.groups())) == numbers


@pytest.mark.asyncio(loop_scope="module")
async def test_attacks_pass_the_plain_way(shared_sandbox: DockerSandbox) -> None:
    """The control: if these designs could not cheat, that they earn nothing would show nothing."""
    told = {attack.name: await plain_verdict(attack, shared_sandbox) for attack in ATTACKS if attack.name in QUICK}
    assert told == dict.fromkeys(QUICK, True)


@pytest.mark.slow  # a simulation for each design
@pytest.mark.asyncio(loop_scope="module")
async def test_all_designs_get_the_plain_verdict_that_is_noted(shared_sandbox: DockerSandbox) -> None:
    told = {one.name: await plain_verdict(one, shared_sandbox) for one in ATTACKS + DESIGNS}
    assert told == {one.name: one.plain for one in ATTACKS + DESIGNS}


@pytest.mark.parametrize("attack", _rows(ATTACKS, QUICK))
async def test_an_attack_earns_nothing(attack: Design, provider: DockerSandboxes) -> None:
    async with Scorer(provider, waiting=0) as scorer:
        score = await asyncio.wait_for(scorer.score(attack.problem, attack.files, timeout=200), 300)
    assert not score.passed
    assert score.tests_passed == 0
    assert score.reward <= 0.4, "only format and syntax may have been earned"
    assert bool(score.violations) == bool(attack.violation), score.violations
    assert not attack.violation or attack.violation in score.violations[0]


@pytest.mark.parametrize("task", ["$fopen", "$fopenr", "$fopenw", "$fopena", "$fputc", "$ungetc"])
def test_no_task_takes_or_uses_a_handle_beside_a_testbench_with_files(
    task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: '{"design": "", "data": ["order.txt"]}')
    harness = runpy.run_path(str(ROOT / "rtl_agent_gym/sources/suites/harness/test_runner.py"))
    harness["check_ports"]("initial $readmemh(names, memory); // $fopen", "")
    with pytest.raises(AssertionError, match="leave no handle"):
        harness["check_ports"](f"initial f = {task} (name);", "")


async def test_a_name_outside_modules_is_none_of_the_testbenchs(tmp_path: Path, provider: DockerSandboxes) -> None:
    """A testbench that counts its errors in a variable before it declares it would find the design's."""
    path = Path(shutil.copytree(SAMPLES / "rtllm", tmp_path / "suite"))
    bench = path / "Control/Counter/step_counter/testbench.v"
    late = "\tinteger bad = 0;\n"
    head, _, rest = bench.read_text().partition(late)
    bench.write_text(head + rest.replace("endmodule", f"{late}endmodule"))
    [problem] = load_problems(f"rtllm:{path}", ids=STEPS)
    text = "bit bad = 0;\nmodule step_counter(input clk, rst_n, output [3:0] count);\nassign count = 0;\nendmodule\n"
    async with Scorer(provider, waiting=0) as scorer:
        score = await scorer.score(problem, {problem.targets[0]: text})
    assert not score.passed
    assert score.tests_passed == 0


@pytest.mark.slow  # it uses up its processor time
async def test_a_simulation_that_does_not_end_says_so(provider: DockerSandboxes) -> None:
    (design,) = (attack for attack in ATTACKS if attack.name == "a loop without end")
    async with Scorer(provider, waiting=0) as scorer:
        score = await scorer.score(design.problem, design.files)
    assert not score.passed
    assert score.reason == "the testbench timed out; 1 of 1 tests failed"


async def test_a_testbench_that_gives_up_says_so(tmp_path: Path, provider: DockerSandboxes) -> None:
    """VerilogEval's testbenches give up after a time of the simulation."""
    path = Path(shutil.copytree(SAMPLES / "verilog_eval", tmp_path / "suite"))
    bench = path / f"{MAJORITY}_test.sv"
    bench.write_text(bench.read_text().replace("#1000000", "#3"))
    [problem] = load_problems(f"verilog-eval:{path}", ids=[MAJORITY])
    async with Scorer(provider, waiting=0) as scorer:
        score = await scorer.score(problem, problem.golden or {})
    assert score.reason == "the testbench timed out; 1 of 1 tests failed"


@pytest.mark.parametrize("design", _rows(DESIGNS, {"majority as a sum", "majority in a case", "an adder that wraps"}))
async def test_an_honest_design_gets_the_plain_verdict(design: Design, provider: DockerSandboxes) -> None:
    async with Scorer(provider, waiting=0) as scorer:
        score = await scorer.score(design.problem, design.files)
    assert score.passed == design.plain, score.reason
    assert score.violations == []
