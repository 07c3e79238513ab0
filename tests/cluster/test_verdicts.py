"""Verdicts of a cluster's machines, and the canaries that they wait for, without Ray's processes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rtl_agent_gym import retries
from rtl_agent_gym.cluster.canaries import ORIGIN, canary, known
from rtl_agent_gym.cluster.machine import Machine, Origin
from rtl_agent_gym.cluster.remote import RemoteGrader, RemoteSandboxes, runtime_at
from rtl_agent_gym.errors import SandboxError, SandboxLost
from rtl_agent_gym.sandboxes import SandboxSpec
from rtl_agent_gym.sandboxes.admission import queueing_as
from tests.cluster.actors import Actor, Grades, Stub, cluster_of


@pytest.fixture(autouse=True)
def _without_an_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.put", lambda problem: problem)


async def test_a_verdict_is_used_only_after_a_right_canary(caplog: pytest.LogCaptureFixture) -> None:
    good, liar = Grades(), Grades(lies_from=1)
    cluster = cluster_of(Actor(good), Actor(liar))
    problem, right, wrong = known()
    scores = await asyncio.gather(*(RemoteGrader(cluster).score(problem, files) for files in (right, wrong) * 4))
    assert [score.passed for score in scores] == [True, False] * 4
    assert [machine.name for machine in cluster.working] == ["machine 0"]
    assert cluster.machines["1"].wrong
    assert "gave a wrong verdict" in caplog.text
    assert liar.called == ["seal", "drop"]
    assert set(good.called) == {"seal", "keep"}


async def test_work_queues_on_its_machine_as_its_group_and_canaries_as_their_own() -> None:
    """Otherwise a canary would wait behind every submission of its machine, and verdicts with it."""
    seen: list[str] = []

    class Noting(Machine):
        async def score(self, *arguments: Any) -> Any:
            seen.append(arguments[-1].group)
            return SimpleNamespace(passed="~" not in str(arguments[1]), reason="")

        async def create(self, name: str, spec: SandboxSpec, origin: Origin = ORIGIN) -> tuple[str, str]:
            seen.append(origin.group)
            return name, ""

    cluster = cluster_of(Actor(Noting(waiting=0)))
    problem, right, _ = known()
    with queueing_as("step 3 group 1"):
        await (await RemoteSandboxes(cluster).create()).close()
        await RemoteGrader(cluster).score(problem, right)
    assert seen == ["step 3 group 1", "step 3 group 1", "canaries", "canaries"]


async def test_one_canary_confirms_all_verdicts_before_it() -> None:
    good = Grades()
    cluster = cluster_of(Actor(good))
    problem, right, _ = known()
    await asyncio.gather(*(RemoteGrader(cluster).score(problem, right) for _ in range(20)))
    assert good.gradings == 20 + 2


async def test_a_canary_confirms_no_verdict_that_came_after_it_began() -> None:
    begun, resumed = asyncio.Event(), asyncio.Event()

    class Waits(Grades):
        async def score(self, *arguments: Any) -> Any:
            begun.set()
            await resumed.wait()
            return await super().score(*arguments)

    cluster = cluster_of(Actor(Waits(lies_from=2)))
    machine = cluster.machines["0"]
    first = asyncio.ensure_future(cluster.confirm(machine))
    await begun.wait()
    second = asyncio.ensure_future(cluster.confirm(machine))
    await asyncio.sleep(0)  # it waits, too
    resumed.set()
    await first
    with pytest.raises(SandboxLost, match="passes a wrong design"):
        await second


async def test_a_verdict_that_nobody_waits_for_any_more_holds_nothing_up() -> None:
    cluster = cluster_of(Actor(Grades()))
    machine = cluster.machines["0"]
    first, second = (asyncio.ensure_future(cluster.confirm(machine)) for _ in range(2))
    await asyncio.sleep(0)  # both wait, and the canary has not begun
    first.cancel()
    await second
    assert first.cancelled()


async def test_a_machine_that_cannot_grade_its_canary_confirms_nothing() -> None:
    problem, right, _ = known()
    broken = Stub(True, *[SandboxLost("its daemon is gone")] * retries.GRADING.attempts)
    cluster = cluster_of(Actor(broken))
    machine = cluster.machines["0"]
    await machine.call("score", problem, right)
    with pytest.raises(SandboxLost, match="cannot be confirmed: its canary failed: its daemon is gone"):
        await cluster.confirm(machine)
    assert not machine.wrong  # so it is tried again


async def test_the_first_grading_opens_the_cluster_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes of one turn have no sandbox, which would open it otherwise."""
    runtime = runtime_at("here")()
    good = cluster_of(Actor(Grades()))

    async def opened() -> None:
        runtime.cluster.machines.update(good.machines)
        runtime.cluster._admitted.update(good._admitted)

    monkeypatch.setattr("rtl_agent_gym.cluster.machines.connect", lambda address: None)
    monkeypatch.setattr(runtime.cluster, "open", opened)
    problem, right, _ = known()
    assert (await runtime.scorer(None).score(problem, {**right})).passed


@pytest.mark.docker
async def test_a_permanent_fault_is_graded_as_often_as_without_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """And once on each machine, before one of them is asked again."""
    graded: list[Any] = []

    async def fails(submission: Any, services: Any, sandboxes: Any, *_: Any, **__: Any) -> Any:
        graded.append(sandboxes)
        raise SandboxError("the container is silent")

    monkeypatch.setattr("rtl_agent_gym.scoring.scorer.run_harness", fails)
    actors = [Actor(Machine(waiting=0)) for _ in range(3)]
    problem, right, _ = known()
    with pytest.raises(SandboxError, match="the container is silent") as raised:
        await RemoteGrader(cluster_of(*actors)).score(problem, right)
    assert len(graded) == retries.GRADING.attempts
    assert set(graded) == {actor.machine._local.provider for actor in actors}
    assert raised.value.retries == retries.GRADING.attempts - 1
    for actor in actors:
        await actor.machine.close()


@pytest.mark.parametrize(
    ("verdicts", "found"),
    [
        ((True, False), ""),
        ((False,), "it fails a right design: because"),
        ((True, True), "it passes a wrong design: because"),
    ],
)
async def test_a_canary_says_what_a_machine_gets_wrong(verdicts: tuple[bool, ...], found: str) -> None:
    machine = cluster_of(Actor(Stub(*verdicts))).machines["0"]
    assert await canary(machine.call) == found
