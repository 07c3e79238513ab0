"""A container that stands still for 40 seconds while it grades: no verdict is lost to it, and none is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from rtl_agent_gym import Scorer
from rtl_agent_gym.errors import SandboxError
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.sandboxes import DockerSandboxes, Sandbox, SandboxSpec
from rtl_agent_gym.scoring import Score
from tests.sandboxes.providers import ProviderAround

from .moments import Moment

pytestmark = [pytest.mark.docker, pytest.mark.daemon, pytest.mark.slow, pytest.mark.timeout(1500)]
STILL = 40.0

Freeze = Callable[[Any, str], Callable[[], None]]
"""Stops a container by the daemon's client; returns what lets it go on."""


def paused(client: Any, name: str) -> Callable[[], None]:
    client.pause(name)
    return lambda: client.unpause(name)


def stopped(client: Any, name: str) -> Callable[[], None]:
    """Stop every process of a container, as a debugger on the host or a full swap would."""
    pids = [int(row[0]) for row in client.top(name, "-eo pid")["Processes"]]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)

    def go_on() -> None:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue

    return go_on


class Freezing(ProviderAround):
    """A provider whose first container of a grading stands still after some seconds."""

    def __init__(self, provider: DockerSandboxes, freeze: Freeze, after: float) -> None:
        super().__init__(provider)
        self.freeze, self.after = freeze, after
        self.frozen: asyncio.Task[bool] | None = None

    async def create(self, spec: SandboxSpec | None = None) -> Sandbox:
        sandbox: Sandbox = await self.provider.create(spec)
        if self.frozen is None:
            self.frozen = asyncio.ensure_future(self._freeze(sandbox.id))
        return sandbox

    async def _freeze(self, name: str) -> bool:
        """Whether it stood still before its grading was over."""
        await asyncio.sleep(self.after)
        try:
            go_on = await asyncio.to_thread(self.freeze, self.provider._client.docker().api, name)
        except OSError:  # docker-py's errors are of requests
            return False
        await asyncio.sleep(STILL)
        with contextlib.suppress(OSError):  # it was given up and removed
            await asyncio.to_thread(go_on)
        return True


def verdict(score: Score) -> dict[str, Any]:
    return score.model_dump(exclude={"seconds", "retries", "cached"})


@pytest.mark.parametrize("freeze", [paused, stopped])
@pytest.mark.parametrize("right", [True, False])
async def test_a_grading_that_stood_still_has_the_verdict_of_one_that_did_not(
    provider: DockerSandboxes, arbiter: Problem, freeze: Freeze, right: bool, moment: Moment
) -> None:
    if freeze is stopped and os.geteuid() != 0:
        pytest.skip("to stop a container's processes from outside takes root")
    problem, files = begun_late(arbiter), design(arbiter, right)
    async with Scorer(provider) as plain:
        expected = await plain.score(problem, files)
    assert expected.passed == right
    freezing = Freezing(provider, freeze, moment.within(2, 9))
    async with Scorer(freezing) as scorer:
        score = await scorer.score(problem, files)
    assert freezing.frozen is not None
    assert await freezing.frozen, "the grading had ended before"
    print(f"{score.retries} retries, {score.seconds:.0f} s")
    assert verdict(score) == verdict(expected)
    assert score.violations == []


@pytest.mark.parametrize("freeze", [paused, stopped])
async def test_a_wrong_design_that_stood_still_is_a_machine_fault_and_no_verdict(
    provider: DockerSandboxes, arbiter: Problem, freeze: Freeze, moment: Moment
) -> None:
    """Its failed tests may be the standstill's, so without another attempt there is no score."""
    freezing = Freezing(provider, freeze, moment.within(4, 9))
    async with Scorer(freezing, attempts=1) as scorer:
        with pytest.raises(SandboxError):
            await scorer.score(begun_late(arbiter), design(arbiter, False), timeout=300.0)
    assert freezing.frozen is not None
    assert await freezing.frozen


def design(problem: Problem, right: bool) -> dict[str, str]:
    assert problem.golden
    files = dict(problem.golden)
    if not right:
        [path] = problem.targets
        files[path] = files[path].replace("endmodule", "initial $finish;\nendmodule")
    return files


def begun_late(problem: Problem) -> Problem:
    """The problem, whose tests begin after 30 seconds."""
    runner = problem.harness["src/test_runner.py"]
    return problem.model_copy(
        update={"harness": {**problem.harness, "src/test_runner.py": f"import time\ntime.sleep(30)\n{runner}"}}
    )
