"""Measures wasteful designs, proves that they behave like the reference, and verifies the problems made of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rtl_agent_gym.errors import HarnessError, SandboxBroken
from rtl_agent_gym.problems.model import Problem
from rtl_agent_gym.sandboxes import Sandbox, SandboxProvider
from rtl_agent_gym.sandboxes.choice import make_provider
from rtl_agent_gym.scoring import ScoreCache, Scorer
from rtl_agent_gym.sources.optimization.derived import (
    GOALS,
    PROGRAMS,
    Case,
    Measured,
    OptimizeOptions,
    designs_of,
    measured_store,
    optimization_problem,
    template,
)
from rtl_agent_gym.sources.verification.designs import renamed_inside
from rtl_agent_gym.sources.verification.findings import Store

_PATIENCE = 1800
"""Seconds in which a machine must have given the processor time of an examination."""


class OptimizationMaker:
    """Makes optimisation problems and remembers what it found out. Made by `optimization_maker`.

    Args:
        provider: Creates the sandboxes in which designs are synthesised; no agent's file is there.
        scorer: Grades the references and the wasteful designs.
        store: What is known, and where more goes.
        workers: How many designs are examined at the same time.
    """

    def __init__(self, provider: SandboxProvider, scorer: Scorer, store: Store[Measured], workers: int) -> None:
        self._provider, self._scorer, self._store = provider, scorer, store
        self._turn = asyncio.Semaphore(workers)
        self._free: list[Sandbox] = []
        self._image = ""

    async def make(self, case: Case, options: OptimizeOptions) -> tuple[Problem | None, Measured]:
        """The verified problem of a wasteful design, or None; and what was found out.

        Raises:
            SandboxError: The machine failed.
        """
        async with self._turn:
            self._image = self._image or await self._provider.image_digest()
            known = self._store.get(case.key)
            if known is None or known.image != self._image:
                known = await self._examine(case)
                self._store.put(known)
            goals = [] if known.fault else known.goals(options.goal)
            if not goals:
                return None, known
            problem = optimization_problem(case, known, goals[0])
            if goals[0] not in known.verified:
                right = await self._scorer.score(problem, {**problem.context, **(problem.golden or {})})
                given = await self._scorer.score(problem, problem.context) if right.passed else right
                idle = given.measures.get("equivalence") == "proved" and given.quality == 0.0
                good = right.passed and right.quality == 1.0 and idle and given.tests_passed == given.tests_total - 1
                known = known.model_copy(update={"verified": {**known.verified, goals[0]: good}})
                self._store.put(known)
        return (problem if known.verified[goals[0]] else None), known

    async def _examine(self, case: Case) -> Measured:
        sandbox = self._free.pop() if self._free else await self._provider.create()
        try:
            found = await examine(case, sandbox)
        except SandboxBroken as error:  # Yosys needed too much memory
            await sandbox.close()
            found = Measured(key=case.key, problem_id=case.problem.id, waste=case.waste, fault=str(error))
        except BaseException:
            await sandbox.close()
            raise
        else:
            self._free.append(sandbox)
        return found.model_copy(update={"image": self._image})

    async def close(self) -> None:
        """End the sandboxes."""
        while self._free:
            await self._free.pop().close()


@asynccontextmanager
async def optimization_maker(
    *, workers: int = 2, store: Store[Measured] | None = None, cache: bool = True
) -> AsyncIterator[OptimizationMaker]:
    """A maker with sandboxes and a scorer, which are closed at the end.

    Args:
        workers: How many designs are examined at the same time.
        store: What is known; None for the user's cache.
        cache: Whether gradings are taken from the cache on disk.
    """
    async with (
        make_provider() as provider,
        Scorer(provider, cache=ScoreCache() if cache else None, waiting=workers) as scorer,
    ):
        maker = OptimizationMaker(provider, scorer, store or measured_store(), workers)
        try:
            yield maker
        finally:
            await maker.close()


async def examine(case: Case, sandbox: Sandbox) -> Measured:
    """What a wasteful design and its reference cost, and whether they behave alike.

    Args:
        case: The design.
        sandbox: Synthesises. It may be used for many designs.

    Raises:
        SandboxError: The machine failed.
    """
    device, (reference, original) = case.device, designs_of(case)
    wanted = {
        "top": device.name,
        "clock": device.clock,
        "reset": device.reset,
        "level": device.reset_level,
        "designs": [reference, original, renamed_inside(original, device)],
    }
    await sandbox.write_files({**{name: template(name) for name in PROGRAMS}, "designs.json": json.dumps(wanted)})
    done = await sandbox.exec(["python3", "synthesis.py"], timeout=_PATIENCE)
    if done.timed_out:
        raise HarnessError(f"an examination of {case.problem.id} did not end in {_PATIENCE} s")
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
        waste=case.waste,
        fault=fault,
        original={goal: min(costs[goal] for costs in wasteful) for goal in GOALS} if wasteful else {},
        reference={goal: lean[goal] for goal in GOALS} if lean else {},
    )
