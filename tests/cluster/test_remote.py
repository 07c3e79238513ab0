"""Remote sandboxes and gradings with a real machine in this process, and without Ray's processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rtl_agent_gym import evaluate
from rtl_agent_gym.cluster.canary import canary, known
from rtl_agent_gym.cluster.machine import Facts, Machine
from rtl_agent_gym.cluster.machines import Cluster, RemoteMachine
from rtl_agent_gym.cluster.remote import RemoteGrader, RemoteSandboxes
from rtl_agent_gym.errors import ProblemError, SandboxBroken, SandboxError, SandboxLost
from rtl_agent_gym.evaluation import EvaluationConfig
from rtl_agent_gym.sandboxes.budget import usage

exceptions = pytest.importorskip("ray.exceptions")

FACTS = Facts("here", "", "sha256:0", 2.0)


class Actor:
    """A machine with Ray's way of calling its methods. `fails` makes every later call raise."""

    def __init__(self, machine: Any) -> None:
        self.machine, self.fails = machine, None

    def __getattr__(self, name: str) -> Any:
        async def remote(*arguments: Any) -> Any:
            if self.fails is not None:
                raise self.fails
            try:
                return await getattr(self.machine, name)(*arguments)
            except Exception as error:
                raise exceptions.RayTaskError(name, "a traceback", error) from error

        return type("Method", (), {"remote": staticmethod(remote)})


def cluster_of(*actors: Actor, slots: int = 2) -> Cluster:
    cluster = Cluster()
    for number, actor in enumerate(actors):
        cluster.machines[str(number)] = RemoteMachine(str(number), f"machine {number}", slots, actor, FACTS)
    cluster._slots.resize(slots * len(actors))
    return cluster


@pytest.fixture
async def actor() -> AsyncIterator[Actor]:
    machine = Machine(waiting=0)
    yield Actor(machine)
    await machine.close()


@pytest.mark.docker
async def test_a_remote_sandbox_does_what_a_sandbox_does(actor: Actor) -> None:
    sandbox = await RemoteSandboxes(cluster_of(actor)).create()
    seen: list[bytes] = []
    await sandbox.write_files({"rtl/a.sv": "text\n", "docs/b": b"\xff"})
    result = await sandbox.run("cd rtl; cat a.sv; false", on_output=seen.append)
    assert (result.output, result.exit_code, seen) == ("text\n", 1, [b"text\n"])
    assert (await sandbox.run("pwd")).output == "/code/rtl\n"
    assert await sandbox.read_files(["rtl", "docs"], max_file=2) == {"docs/b": b"\xff"}
    assert sandbox.image_id.startswith("sha256:")
    await sandbox.close()
    await sandbox.close()
    with pytest.raises(SandboxLost, match="closed"):
        await sandbox.ping()


@pytest.mark.docker
async def test_a_sandbox_whose_start_is_cancelled_leaves_nothing(actor: Actor) -> None:
    cluster = cluster_of(actor)
    provider = RemoteSandboxes(cluster)
    for pause in (0.0, 0.02, 0.1):
        starting = asyncio.ensure_future(provider.create())
        await asyncio.sleep(pause)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
    assert usage()["agent/used"] == 0
    assert cluster.machines["0"].live == 0
    assert not actor.machine._sandboxes


@pytest.mark.docker
async def test_an_evaluation_goes_on_when_a_machine_is_lost(actor: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.put", lambda problem: problem)
    other = Actor(Machine(waiting=0))
    cluster = cluster_of(actor, other)
    config = EvaluationConfig(
        ids=["cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"], samples=3, concurrency=3, keep=False, longest_pause=0.1
    )
    playing = asyncio.ensure_future(
        evaluate(config, provider=RemoteSandboxes(cluster), grader=RemoteGrader(cluster, cached=True))
    )
    while not (actor.machine._sandboxes and other.machine._sandboxes):
        await asyncio.sleep(0.01)
    other.fails = exceptions.ActorDiedError()
    try:
        found = await playing
    finally:
        await other.machine.close()
    assert (found.summary.passed, found.summary.faults) == (3, 0)
    assert cluster.machines["1"].gone
    assert [machine.name for machine in cluster.working] == ["machine 0"]


class Stub:
    """A machine that grades as it is told."""

    def __init__(self, *verdicts: Any) -> None:
        self.verdicts = list(verdicts)

    async def score(self, *_: Any) -> Any:
        verdict = self.verdicts.pop(0)
        if isinstance(verdict, Exception):
            raise verdict
        return type("Score", (), {"passed": verdict, "reason": "because"})


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


async def test_errors_of_a_machine_are_its_own() -> None:
    problem, right, _ = known()
    machine = cluster_of(Actor(Stub(SandboxBroken("by itself"), ProblemError("no tests"), KeyError("a bug")))).machines[
        "0"
    ]
    with pytest.raises(SandboxBroken, match="by itself"):
        await machine.call("score", problem, right)
    with pytest.raises(ProblemError, match="no tests"):
        await machine.call("score", problem, right)
    assert not machine.lost
    with pytest.raises(exceptions.RayTaskError):  # unknown errors are no faults of the machine
        await machine.call("score", problem, right)


async def test_work_goes_where_the_most_room_is_and_waits_where_there_is_none() -> None:
    cluster = cluster_of(Actor(None), Actor(None))
    first, second, third, fourth = [cluster.placed() for _ in range(4)]
    names = [(await one.__aenter__()).name for one in (first, second, third)]
    assert sorted(names[:2]) == ["machine 0", "machine 1"]
    await fourth.__aenter__()
    waiting = asyncio.ensure_future(cluster.placed().__aenter__())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await second.__aexit__(None, None, None)
    assert (await waiting).name == names[1]
    for machine in cluster.machines.values():
        machine.lost = "gone"
    with pytest.raises(SandboxError, match="gone"):
        async with cluster.grading():
            pass
