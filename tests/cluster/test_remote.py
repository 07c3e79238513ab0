"""Remote sandboxes and their machines, with a real machine in this process and without Ray's processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from rtl_agent_gym import evaluate
from rtl_agent_gym.cluster import machines, node_client
from rtl_agent_gym.cluster.canaries import known
from rtl_agent_gym.cluster.machine import Facts, Machine, Origin
from rtl_agent_gym.cluster.machines import Cluster
from rtl_agent_gym.cluster.node import slots_here
from rtl_agent_gym.cluster.node_client import ObjectCache
from rtl_agent_gym.cluster.ray_cluster import SLOTS
from rtl_agent_gym.cluster.remote import RemoteGrader, RemoteSandboxes
from rtl_agent_gym.errors import DaemonError, ProblemError, SandboxBroken, SandboxError, SandboxLost
from rtl_agent_gym.evaluation import EvaluationConfig
from rtl_agent_gym.logs import logging_as
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.sandboxes import ReadRequest, SandboxSpec, admission
from rtl_agent_gym.sandboxes.admission import Permits, queueing_as, usage
from tests.arbiter import ARBITER
from tests.cluster.actors import FACTS, Actor, Grades, Stub, cluster_of, exceptions
from tests.waiting import soon


@pytest.fixture
async def actor() -> AsyncIterator[Actor]:
    machine = Machine(waiting=0)
    yield Actor(machine)
    await machine.close()


def node_of(node: str, slots: int) -> dict[str, Any]:
    """A node as Ray describes it."""
    where = {"NodeManagerHostname": "b", "NodeManagerAddress": "127.0.0.1"}
    return {"NodeID": node, "Alive": True, "Resources": {SLOTS: slots}, **where}


def listing(monkeypatch: pytest.MonkeyPatch, nodes: Callable[[], Any], free: Callable[[], Any] = dict) -> None:
    """Ray is connected, and lists these nodes and their free slots."""
    monkeypatch.setattr(machines, "connect", lambda address: None)
    monkeypatch.setattr(machines, "nodes_with_slots", nodes)
    monkeypatch.setattr(machines, "free_slots", free)


def reservations(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What is reserved, in the place of Ray's placement groups."""
    held: list[tuple[str, int]] = []

    async def reserve(node: str, slots: int) -> tuple[str, int]:
        held.append((node, slots))
        return node, slots

    monkeypatch.setattr("rtl_agent_gym.cluster.machines.reserve", reserve)
    monkeypatch.setattr("rtl_agent_gym.cluster.node_client.release", held.remove)
    return held


def starting(monkeypatch: pytest.MonkeyPatch, *machines: Any) -> list[Actor]:
    """Ray starts these machines, in this order. Returns the actors that it has ended so far."""
    actors, killed = iter([Actor(machine) for machine in machines]), list[Actor]()
    made = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_, **__: next(actors)))

    async def right(_: object) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr("ray.remote", lambda _: made)
    monkeypatch.setattr("ray.kill", killed.append)
    monkeypatch.setattr("rtl_agent_gym.cluster.machines.canary", right)
    return killed


@pytest.mark.docker
async def test_a_remote_sandbox_does_what_a_sandbox_does(actor: Actor) -> None:
    sandbox = await RemoteSandboxes(cluster_of(actor)).create()
    seen: list[bytes] = []
    await sandbox.write_files({"rtl/a.sv": "text\n", "docs/b": b"\xff"})
    result = await sandbox.run("cd rtl; cat a.sv; false", on_output=seen.append)
    assert (result.output, result.exit_code, seen) == ("text\n", 1, [b"text\n"])
    result = await sandbox.run("echo more >> a.sv; pwd", then_read=ReadRequest(["rtl"]))
    assert (result.output, result.files) == ("/code/rtl\n", {"rtl/a.sv": b"text\nmore\n"})
    assert await sandbox.read_files(["rtl", "docs"], max_file=2) == {"docs/b": b"\xff"}
    assert await sandbox.oom_kills() in (0, None)
    assert sandbox.image_id.startswith("sha256:")
    await sandbox.close()
    await sandbox.close()
    with pytest.raises(SandboxLost, match="closed"):
        await sandbox.ping()


async def test_a_cluster_that_is_closed_while_it_admits_a_node_leaves_no_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    facts_wanted = asyncio.Event()

    class Starting:
        async def facts(self) -> Facts:
            facts_wanted.set()
            await asyncio.sleep(3600)
            return FACTS

    machine = Starting()
    killed = starting(monkeypatch, machine)
    reserved = reservations(monkeypatch)
    cluster = Cluster()
    cluster._watching = asyncio.ensure_future(cluster._admit("ab" * 28, node_of("ab" * 28, 2), free=2))
    await asyncio.wait_for(facts_wanted.wait(), 60)
    assert reserved == [("ab" * 28, 2)]
    await cluster.close()
    assert [actor.machine for actor in killed] == [machine]
    assert reserved == []


async def test_a_node_that_never_answers_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those that are there at the start nor those that come later."""
    ill = SimpleNamespace(facts=asyncio.Event().wait)
    well = SimpleNamespace(facts=AsyncMock(return_value=FACTS), keep=AsyncMock(), close=AsyncMock())
    killed, reserved = starting(monkeypatch, ill, well, well), reservations(monkeypatch)
    first, second, third = (digit * 56 for digit in "123")
    nodes = {node: node_of(node, 2) for node in (first, second)}
    listing(monkeypatch, lambda: dict(nodes))
    monkeypatch.setattr(machines, "REFRESH", 1.0)
    cluster = Cluster()
    await asyncio.wait_for(cluster.open(), 60)
    assert cluster.machines.keys() == {second}
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "machines", {})
        with pytest.raises(DaemonError, match="for the moment"):  # the ill one may still answer
            cluster._best(id)
    nodes[third] = node_of(third, 2)
    await asyncio.wait_for(cluster.refresh(), 60)
    assert await soon(lambda: cluster.machines.keys() == {second, third})
    await cluster.refresh()
    assert reserved == [(node, 2) for node in (first, second, third)], "it is not begun twice"
    assert cluster._slots.capacity == 4
    assert killed == []
    await cluster.close()
    assert [actor.machine for actor in killed] == [ill, well, well]
    assert reserved == []


@pytest.mark.parametrize("error", [DaemonError("no daemon answers"), KeyError("a defect")])
async def test_a_cluster_without_a_usable_node_says_why(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = error
    if isinstance(error, DaemonError):
        expected = SandboxError(f"no node of the Ray cluster can be used: {error}")
        reservations(monkeypatch)
    else:
        monkeypatch.setattr(machines, "reserve", AsyncMock(side_effect=error))
    starting(monkeypatch, SimpleNamespace(facts=AsyncMock(side_effect=error)))
    listing(monkeypatch, lambda: {"1" * 56: node_of("1" * 56, 2)})
    with pytest.raises(type(expected)) as raised:
        await asyncio.wait_for(Cluster().open(), 60)
    assert str(raised.value) == str(expected)
    listing(monkeypatch, dict)
    with pytest.raises(SandboxError, match=r"none reports the resource .*`rtl-agent-gym cluster up`"):
        await asyncio.wait_for(Cluster().open(), 60)


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ({"digest": "y"}, "its image has the digest y, that of the machines in use x"),
        ({"rules": "y"}, "its version of this package grades by the rules y, this one by "),
    ],
)
async def test_machines_that_would_grade_differently_are_not_used(
    others: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if none is in use yet: all of them are looked at together when the cluster is opened."""
    good = replace(FACTS, digest="x")
    facts: list[Any] = [good, replace(good, **others), good]  # type: ignore[arg-type]
    starting(monkeypatch, *(SimpleNamespace(facts=AsyncMock(return_value=found), keep=AsyncMock()) for found in facts))
    caplog.set_level("INFO")
    reserved = reservations(monkeypatch)
    cluster = Cluster()
    await asyncio.gather(*(cluster._admit(digit * 56, node_of(digit * 56, 2), free=2) for digit in "123"))
    assert {node for node, _ in reserved} == set(cluster.machines)
    assert {machine.facts for machine in cluster.machines.values()} == {good}
    assert len(cluster.machines) == 2
    [refused] = [line for line in caplog.messages if "is not used" in line]
    assert reason in refused


@pytest.mark.docker
def test_slots_follow_the_limits_of_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = []
    for memory in ("4G", "8G"):
        monkeypatch.setenv("RTL_GYM_SANDBOX_LIMITS", f"memory={memory}")
        slots.append(slots_here())
    assert slots[0] < slots[1]


@pytest.mark.docker
async def test_a_sandbox_whose_start_is_cancelled_leaves_nothing(actor: Actor) -> None:
    cluster = cluster_of(actor)
    provider = RemoteSandboxes(cluster)
    for pause in (0.0, 0.02, 0.1):
        starting = asyncio.ensure_future(provider.create())
        await asyncio.sleep(pause)
        starting.cancel()
        (started,) = await asyncio.gather(starting, return_exceptions=True)
        if not isinstance(started, BaseException):  # it was faster
            await started.close()
    assert usage()["agent/used"] == 0
    assert cluster.machines["0"].live == 0
    assert not actor.machine._sandboxes


@pytest.mark.docker
async def test_an_evaluation_goes_on_when_a_machine_is_lost(actor: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.put", lambda problem: problem)
    other = Actor(Machine(waiting=0))
    cluster = cluster_of(actor, other)
    config = EvaluationConfig(ids=(ARBITER,), samples=3, concurrency=3, keep=False, longest_pause=0.1)
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


async def test_a_sandbox_that_is_asked_for_twice_is_one(actor: Actor) -> None:
    spec = SandboxSpec()
    first, second = await asyncio.gather(*(actor.machine.create("one", spec) for _ in range(2)))
    assert first == second
    assert usage()["agent/used"] == 48 << 20
    with pytest.raises(SandboxError):
        await actor.machine.create("other", SandboxSpec(image="rtl-gym-no-such-image"))
    report = await actor.machine.report()
    assert (report.sandboxes, report.faults) == (2, {"sandbox: ImageError": 1})


@pytest.mark.docker
async def test_a_machines_work_waits_in_the_queue_of_its_group_and_logs_its_episode(
    actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Origin] = []

    async def noted(self: Permits, amount: float) -> None:
        found.append(Origin.here())
        raise SandboxLost("enough")

    monkeypatch.setattr(Permits, "take", noted)
    problem, right, _ = known()
    with queueing_as("mine"), logging_as("0/1/2"):
        mine = Origin.here()
    for call in (("create", "a", SandboxSpec(), mine), ("score", problem, right, 60.0, None, None, False, mine)):
        with pytest.raises(SandboxLost, match="enough"):
            await getattr(actor.machine, call[0])(*call[1:])
    assert set(found) == {mine} == {Origin("mine", "0/1/2")}


async def test_a_refused_node_is_tried_again_after_longer_and_longer_pauses() -> None:
    cluster, now = Cluster(), asyncio.get_running_loop().time()
    pauses = []
    for _ in range(7):
        cluster._refuse("node", "no daemon")
        pauses.append(cluster._refused["node"].until - now)
    assert pauses == pytest.approx([30, 60, 120, 240, 480, 600, 600], abs=5)
    for _ in range(2000):
        cluster._refuse("node", "no daemon")
    cluster._refuse("node", "it lies", forever=True)
    assert cluster._refused["node"].until == float("inf")


async def test_a_machine_that_graded_a_canary_wrong_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that was in use nor one at its first canary."""
    ill = SimpleNamespace(facts=AsyncMock(return_value=FACTS))
    starting(monkeypatch, ill)
    reservations(monkeypatch)
    monkeypatch.setattr(machines, "canary", AsyncMock(return_value="it passes a wrong design"))
    listing(monkeypatch, lambda: {"0": node_of("0", 2)})
    cluster = cluster_of(Actor(SimpleNamespace(close=AsyncMock())))
    machine = cluster.machines["0"]
    machine.lost, machine.wrong = "it passes a wrong design", True
    await cluster.refresh()
    await asyncio.gather(*cluster._retiring)
    await cluster._admit("1" * 56, node_of("1" * 56, 2), free=2)
    until = {node: refusal.until for node, refusal in cluster._refused.items()}
    assert until == {"0": float("inf"), "1" * 56: float("inf")}


async def place(cluster: Cluster) -> None:
    async with cluster.grading():
        pass


async def test_without_any_machine_work_is_refused_for_the_moment_or_for_good() -> None:
    cluster = Cluster()
    cluster._refuse("node", "no daemon")
    with pytest.raises(DaemonError, match="for the moment: no daemon"):
        await place(cluster)
    cluster._refuse("node", "it lies", forever=True)
    with pytest.raises(SandboxLost, match="any more: it lies"):
        await place(cluster)


async def test_a_cluster_whose_last_machine_is_lost_can_be_used_again() -> None:
    cluster = cluster_of(Actor(None))
    machine = cluster.machines["0"]
    machine.lose("its actor died")  # until the next refresh: then its node is tried again
    with pytest.raises(DaemonError, match="for the moment: its actor died"):
        await place(cluster)
    machine.wrong = True
    with pytest.raises(SandboxLost, match="any more: its actor died"):
        await place(cluster)


async def test_a_machine_that_gets_no_more_work_is_ended_once_it_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "POLL_SECONDS", 0.01)
    closed: list[bool] = []
    killed: list[Any] = []
    actor = Actor(SimpleNamespace(close=AsyncMock(side_effect=lambda: closed.append(True))))
    monkeypatch.setattr("ray.kill", killed.append)
    cluster = cluster_of(actor)
    machine = cluster.machines["0"]
    machine.live = 1
    ending = asyncio.ensure_future(cluster._retire(machine))
    await asyncio.sleep(0.05)
    assert not closed
    machine.live = 0
    await ending
    assert (closed, killed, cluster._admitted) == ([True], [actor], {})


async def test_a_machine_that_is_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of a month loses many: none stays in memory, and no verdict waits for its canaries."""
    killed: list[Any] = []
    monkeypatch.setattr("ray.kill", killed.append)
    listing(monkeypatch, dict)
    actor = Actor(Grades())
    cluster = cluster_of(actor)
    machine = cluster.machines["0"]
    await cluster.confirm(machine)
    machine.live = 1  # its sandboxes are closed later
    await cluster.refresh()
    await asyncio.gather(*cluster._retiring)
    assert killed == [actor]
    assert (cluster.machines, cluster._admitted) == ({}, {})
    with pytest.raises(SandboxLost, match="its node has left the cluster"):
        await cluster.confirm(machine)


async def test_slots_that_others_give_back_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    reserved = reservations(monkeypatch)
    free = {"0": 0}
    listing(monkeypatch, lambda: {"0": node_of("0", 8)}, lambda: dict(free))
    cluster = cluster_of(Actor(None), slots=1)
    cluster._most = 4
    cluster.machines["0"].capacity = 8
    async with cluster.placed():
        waiting = asyncio.ensure_future(cluster.placed().__aenter__())
        await cluster.refresh()
        assert not waiting.done()
        free["0"] = 7
        await cluster.refresh()
        assert (await waiting).slots == 4
    assert reserved == [("0", 3)]


async def test_nothing_is_placed_on_a_full_machine_when_another_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "POLL_SECONDS", 0.01)
    cluster = cluster_of(Actor(None), Actor(None), slots=1)
    async with cluster.placed() as first:
        [other] = [machine for machine in cluster.working if machine is not first]
        other.lost, other.gone = "its node has left the cluster", True
        waiting = asyncio.ensure_future(cluster.placed().__aenter__())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        assert first.live == 1
    assert await waiting is first


async def test_a_problems_files_are_sent_once_and_small_ones_within_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[Any] = []

    def noted(value: Any) -> str:
        put.append(value)
        return f"reference {len(put)}"

    monkeypatch.setattr("ray.put", noted)
    sent = ObjectCache(most=2)
    large = {"rtl/a.sv": "x" * 5_000}
    assert sent.files({"rtl/a.sv": "small"}) == {"rtl/a.sv": "small"}
    assert [sent.files(dict(large)) for _ in range(3)] == ["reference 1"] * 3
    assert sent.files({"rtl/a.sv": b"x" * 5_000}) == "reference 2"  # what is read from it differs
    assert sent.files({"rtl/b.sv": "x" * 5_000}) == "reference 3"
    assert sent.files(large) == "reference 4", "only two are kept"
    assert len(put) == 4
    assert ObjectCache(most_bytes=6_000).files(large) == "reference 5"
    tight = ObjectCache(most_bytes=6_000)
    assert [tight.files(files) for files in (large, {"b": "y" * 5_000}, large)] == [f"reference {n}" for n in (6, 7, 8)]


async def test_a_problem_is_sent_once_and_read_once_and_its_size_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[Any] = []
    read: list[str] = []

    def digest(problem: Problem) -> str:
        read.append(problem.id)
        return f"digest of {problem.id}"

    monkeypatch.setattr("ray.put", put.append)
    monkeypatch.setattr(Problem, "digest", property(digest))
    problem, right, _ = known()
    other = problem.model_copy(update={"id": "other"})
    cluster = cluster_of(Actor(Grades()))
    cluster.sent = ObjectCache(most_bytes=1)
    for sent in (problem, problem, other):
        await RemoteGrader(cluster).score(sent, right)
    assert put == [problem, other]
    assert read == [problem.id, "other"]
    assert [*cluster.sent._references] == ["digest of other"], "there is no room for both"


async def test_a_full_object_store_here_is_no_nodes_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    full = exceptions.OutOfDiskError("Local disk is full")
    monkeypatch.setattr("ray.put", Mock(side_effect=[full, "reference"]))
    problem, right, _ = known()
    cluster = cluster_of(Actor(Grades()))
    score = await RemoteGrader(cluster).score(problem, right)
    assert (score.passed, score.retries) == (True, 1)
    machine = cluster.machines["0"]
    machine.actor = SimpleNamespace(score=SimpleNamespace(remote=Mock(side_effect=full)))
    with pytest.raises(SandboxError, match=r"object store on this machine .*: OutOfDiskError: Local disk is full; "):
        await machine.call("score")
    assert not machine.lost


async def test_a_machine_that_falls_silent_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_client, "ALIVE_SECONDS", 0.01)
    monkeypatch.setattr(node_client, "SILENCE_SECONDS", 0.05)
    monkeypatch.setattr(node_client, "SECOND_WAIT", 0.05)

    class Silent:
        async def score(self) -> None:
            await asyncio.Event().wait()

        alive = score

    cluster = cluster_of(Actor(Silent()))
    machine = cluster.machines["0"]
    found = await asyncio.gather(*(machine.call("score") for _ in range(3)), return_exceptions=True)
    assert [type(error) for error in found] == [SandboxLost] * 3
    assert {str(error) for error in found} == {"machine machine 0 is lost: it has not answered for 0 s"}
    assert machine.gone
    assert cluster.working == []


async def test_a_machine_whose_answer_waits_while_this_process_is_stopped_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_client, "ALIVE_SECONDS", 0.01)
    monkeypatch.setattr(node_client, "SILENCE_SECONDS", 0.5)
    asked, done = asyncio.Event(), asyncio.Event()

    class Well:
        async def alive(self) -> None:
            asked.set()
            await asyncio.to_thread(time.sleep, 0.1)  # Ray's answers come from another thread, too

        async def score(self) -> int:
            await done.wait()
            return 1

    machine = cluster_of(Actor(Well())).machines["0"]
    scoring = asyncio.ensure_future(machine.call("score"))
    await asked.wait()
    time.sleep(1.0)  # as a training step in the event loop's thread, or Ctrl-Z
    await asyncio.sleep(0.1)
    done.set()
    assert await scoring == 1
    assert not machine.lost


async def test_a_machine_that_works_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_client, "ALIVE_SECONDS", 0.01)

    class Slow:
        def __init__(self) -> None:
            self.asked, self.done = 0, asyncio.Event()

        async def alive(self) -> None:
            self.asked += 1
            if self.asked == 2:
                raise KeyError("an answer, too")
            if self.asked == 4:
                self.done.set()

        async def score(self, number: int) -> int:
            await self.done.wait()
            return number

    machine = cluster_of(Actor(Slow())).machines["0"]
    assert await asyncio.gather(*(machine.call("score", number) for number in range(3))) == [0, 1, 2]
    assert not machine.lost


@pytest.mark.docker
async def test_a_machine_keeps_sandboxes_ready_where_the_limits_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_given", {})
    before = usage().get("waiting/granted", 0.0)
    machine = Machine("ready=1", waiting=0)
    try:
        await machine.create("one", SandboxSpec())
        async with asyncio.timeout(60):
            while usage()["waiting/granted"] == before:
                await asyncio.sleep(0.01)
        await machine.create("two", SandboxSpec())
        await machine.on_sandbox("two", "ping", {})
        assert (await machine.report()).sandboxes == 2
    finally:
        await machine.close()
    assert (usage()["agent/used"], usage()["waiting/used"]) == (0, 0)


async def test_errors_of_a_machine_are_its_own() -> None:
    problem, right, _ = known()
    cluster = cluster_of(Actor(Stub(SandboxBroken("by itself"), ProblemError("no tests"), KeyError("a bug"))))
    machine = cluster.machines["0"]
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
    names = [(await each.__aenter__()).name for each in (first, second, third)]
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
        await place(cluster)
