"""Measures wasteful designs, proves that they behave like the reference, and verifies the problems made of them."""

from __future__ import annotations

import json

from rtl_agent_gym.errors import HarnessError
from rtl_agent_gym.problems.model import Problem
from rtl_agent_gym.sandboxes import Sandbox
from rtl_agent_gym.sources.making import PATIENCE, Maker
from rtl_agent_gym.sources.optimization.derived import (
    GOALS,
    PROGRAMS,
    SOURCE,
    Measured,
    OptimizeOptions,
    WastefulCase,
    designs_of,
    template,
)
from rtl_agent_gym.sources.verification.designs import renamed_inside


class OptimizationMaker(Maker[WastefulCase, OptimizeOptions, Measured]):
    """Makes optimisation problems and remembers what it found out."""

    source = SOURCE

    @staticmethod
    async def examine(case: WastefulCase, options: OptimizeOptions, sandbox: Sandbox) -> Measured:
        """What a wasteful design and its reference cost, and whether they behave alike."""
        device, (reference, original) = case.device, designs_of(case)
        wanted = {
            "top": device.name,
            "clock": device.clock,
            "reset": device.reset,
            "level": device.reset_level,
            "designs": [reference, original, renamed_inside(original, device)],
        }
        await sandbox.write_files({**{name: template(name) for name in PROGRAMS}, "designs.json": json.dumps(wanted)})
        done = await sandbox.exec(["python3", "synthesis.py"], timeout=PATIENCE)
        if done.timed_out:
            raise HarnessError(f"an examination of {case.problem.id} did not end in {PATIENCE} s")
        try:
            found = json.loads(done.output.strip().splitlines()[-1])
        except (ValueError, IndexError):
            raise HarnessError(f"an examination of {case.problem.id} has no result: {done.output[-400:]}") from None
        fault = found.get("fault", "")
        if not fault and found["proof"] != "proved":
            fault = f"it is not proved that the {case.waste} changes nothing: {found['proof']}"
        lean, *wasteful = found.get("costs", [{}])
        return Measured(
            key=case.key,
            problem_id=case.problem.id,
            fault=fault,
            original={goal: min(costs[goal] for costs in wasteful) for goal in GOALS} if wasteful else {},
            reference={goal: lean[goal] for goal in GOALS} if lean else {},
        )

    async def grade(self, problem: Problem) -> float:
        """1 if the reference earns everything, and the given design passes the hidden tests and gains nothing."""
        right = await self.scorer.score(problem, {**problem.context, **(problem.golden or {})})
        given = await self.scorer.score(problem, problem.context) if right.passed else right
        idle = given.measures.get("equivalence") == "proved" and given.quality == 0.0
        good = right.passed and right.quality == 1.0 and idle and given.tests_passed == given.tests_total - 1
        return float(good)
