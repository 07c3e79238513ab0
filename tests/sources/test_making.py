"""What the makers of derived problems share: results in order, and sandboxes that are used again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import AsyncMock

import pytest

from rtl_agent_gym.errors import HarnessError, SandboxBroken, SandboxLost
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.sandboxes import CommandResult, Sandbox
from rtl_agent_gym.scoring import Score
from rtl_agent_gym.sources.derivation import Case, Store
from rtl_agent_gym.sources.making import OptimizationMaker, VerificationMaker, in_order
from rtl_agent_gym.sources.optimization.derived import Measured
from rtl_agent_gym.sources.verification.derived import SHIPPED, Findings, VerifyOptions, cases


async def test_results_come_in_the_order_of_the_items() -> None:
    """Though the first ends last; items are taken as they are needed, and what is not wanted is cancelled."""
    taken, cancelled, results = list[int](), list[int](), list[int]()
    last_began = asyncio.Event()

    def items() -> Any:
        for number in range(100):
            taken.append(number)
            yield number

    async def work(number: int) -> int:
        if number == 0:
            await last_began.wait()
        elif number > 2:
            last_began.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(number)
                raise
        return number

    def is_enough(number: int) -> bool:
        results.append(number)
        return number == 2

    await asyncio.wait_for(in_order(items(), work, 4, is_enough), timeout=60)
    assert results == [0, 1, 2]
    assert taken == [0, 1, 2, 3, 4, 5]
    assert 3 in cancelled


async def test_the_error_that_explains_most_is_raised() -> None:
    async def work(number: int) -> int:
        if number == 1:
            raise SandboxLost("the container is gone")
        await asyncio.Event().wait()
        return number

    with pytest.raises(SandboxLost, match="the container is gone"):
        await asyncio.wait_for(in_order(range(3), work, 2, lambda _: False), timeout=60)


class Breaking(VerificationMaker):
    """The examination of the first design breaks the sandbox, and the others find nothing."""

    used: ClassVar[list[Sandbox]] = []

    @staticmethod
    async def examine(case: Case, options: VerifyOptions, sandbox: Sandbox) -> Findings:
        """Break, or find nothing."""
        Breaking.used.append(sandbox)
        if len(Breaking.used) == 1:
            raise SandboxBroken("it needed too much memory")
        return Findings(key=case.key, problem_id=case.problem.id, fault="nothing was found")


@pytest.mark.docker
async def test_a_broken_sandbox_is_a_fault_of_the_design_and_is_not_used_again(tmp_path: Path) -> None:
    options, store = VerifyOptions(), Store(Findings, tmp_path)
    async with Breaking.open(workers=1, store=store, cache=False) as maker:
        made = [await maker.make(case, options) for case in list(cases(load_problems("bundled"), options))[:3]]
    assert [problem for problem, _ in made] == [None] * 3
    assert [known.fault for _, known in made] == ["it needed too much memory", *["nothing was found"] * 2]
    assert all(known.image and store.get(known.key) == known for _, known in made)
    first, second, third = Breaking.used
    assert second is third is not first


async def test_only_what_was_simulated_is_another_right_design(user_cache: Path) -> None:
    case = next(cases(load_problems("bundled"), VerifyOptions()))
    sandbox = AsyncMock()
    sandbox.exec.side_effect = lambda command, **_: CommandResult("netlist", int("iverilog" in command[-1]))
    found = await VerificationMaker.examine(case, VerifyOptions(), sandbox)
    assert (found.mutants, found.renamed, found.netlist) == ((), False, "")
    assert found.fault == "0 of its mutants differ in simulation, 8 are needed"
    said = CommandResult("compare.sv:3: syntax error\n", 0)
    sandbox.exec.side_effect = lambda command, **_: said if "errors" in command[-1] else CommandResult("", 1)
    found = await VerificationMaker.examine(case, VerifyOptions(), sandbox)
    assert found.fault == "its comparison with mutants does not compile: compare.sv:3: syntax error"


class Graded(VerificationMaker):
    """Gives the marks that are set."""

    marks: ClassVar[list[float]] = []

    async def grade(self, problem: Problem) -> float:
        """The next mark."""
        return self.marks.pop(0)


@pytest.mark.parametrize(
    ("marks", "kept"), [([1.0], 1.0), ([0.0, 1.0], 1.0), ([0.9, 0.0], 0.9)], ids=["good", "late once", "weak"]
)
async def test_a_bad_mark_is_kept_only_after_another_grading(marks: list[float], kept: float, tmp_path: Path) -> None:
    options, store = VerifyOptions(), Store(Findings, tmp_path, SHIPPED)
    case = next(cases(load_problems("bundled"), options))
    found = store.get(case.key)
    assert found is not None
    store.put(found.model_copy(update={"verified": {}, "image": "this"}))
    Graded.marks = list(marks)
    problem, known = await Graded(AsyncMock(), AsyncMock(), store, 1, "this").make(case, options)
    assert (known.verified, problem is not None, Graded.marks) == ({"stimulus": kept}, kept == 1.0, [])
    assert store.get(case.key) == known


async def test_a_machine_that_gives_no_time_says_nothing_of_a_design() -> None:
    sandbox = AsyncMock()
    sandbox.exec.return_value = CommandResult("", None, timed_out=True)
    case = next(cases(load_problems("bundled"), VerifyOptions()))
    with pytest.raises(HarnessError, match="did not get 60 s of processor time"):
        await VerificationMaker.examine(case, VerifyOptions(), sandbox)


RIGHT: dict[str, Any] = {"passed": True, "quality": 1.0, "tests_passed": 3, "tests_total": 3}
GIVEN: dict[str, Any] = {
    "passed": False,
    "quality": 0.0,
    "tests_passed": 2,
    "tests_total": 3,
    "measures": {"equivalence": "proved"},
}


@pytest.mark.parametrize(
    ("right", "given", "good"),
    [
        ({}, {}, 1.0),
        ({"quality": 0.9}, {}, 0.0),
        ({"passed": False}, {}, 0.0),
        ({}, {"quality": 0.1}, 0.0),
        ({}, {"tests_passed": 1}, 0.0),
        ({}, {"measures": {"equivalence": "bounded"}}, 0.0),
    ],
)
async def test_an_optimisation_problem_is_good_only_if_all_is_gained_and_nothing_was_there_before(
    right: dict[str, Any], given: dict[str, Any], good: float, tmp_path: Path, arbiter: Problem
) -> None:
    scorer = AsyncMock()
    scorer.score.side_effect = [Score(**RIGHT | right), Score(**GIVEN | given)]
    maker = OptimizationMaker(AsyncMock(), scorer, Store(Measured, tmp_path), 1, "this")
    assert await maker.grade(arbiter) == good


async def test_findings_of_another_image_are_found_out_again(tmp_path: Path) -> None:
    class Again(VerificationMaker):
        @staticmethod
        async def examine(case: Case, options: VerifyOptions, sandbox: Sandbox) -> Findings:
            return Findings(key=case.key, problem_id=case.problem.id, fault="with these tools")

    options, store = VerifyOptions(), Store(Findings, tmp_path, SHIPPED)
    case = next(cases(load_problems("bundled"), options))
    found = store.get(case.key)
    assert found is not None
    assert found.is_usable(options)
    store.put(found.model_copy(update={"image": "another"}))
    problem, known = await Again(AsyncMock(), AsyncMock(), store, 1, "this").make(case, options)
    assert (problem, known.fault, known.image) == (None, "with these tools", "this")
    assert store.get(case.key) == known


async def test_a_kind_that_was_verified_meanwhile_is_kept(tmp_path: Path) -> None:
    options, store = VerifyOptions(), Store(Findings, tmp_path, SHIPPED)
    case = next(cases(load_problems("bundled"), options))
    shipped = store.get(case.key)
    assert shipped is not None
    found = shipped.model_copy(update={"verified": {}, "image": "this"})
    store.put(found)

    class Meanwhile(VerificationMaker):
        async def grade(self, problem: Problem) -> float:
            store.put(found.model_copy(update={"verified": {"checker": 1.0}}))
            return 1.0

    _, known = await Meanwhile(AsyncMock(), AsyncMock(), store, 1, "this").make(case, options)
    assert store.get(case.key) == known
    assert known.verified == {"checker": 1.0, "stimulus": 1.0}
