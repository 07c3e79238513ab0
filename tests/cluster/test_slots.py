"""Slots that runs reserve, on a real Ray node: a run gets what others have left, or waits and says why."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.cluster import Cluster, RemoteSandboxes, machines
from rtl_agent_gym.cluster.executor import RayExecutor
from rtl_agent_gym.cluster.node import NodeState, look, reports
from rtl_agent_gym.cluster.node_client import NodeClient
from rtl_agent_gym.cluster.ray_cluster import free_slots
from rtl_agent_gym.sandboxes.daemon import daemon_host
from tests.cluster.test_cluster import TwoNodes, ray_nodes
from tests.waiting import soon

ray = pytest.importorskip("ray")

pytestmark = [pytest.mark.docker, pytest.mark.daemon, pytest.mark.slow, pytest.mark.timeout(600)]

PATIENCE = 90.0


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Callable[[str], Driver]]:
    """Starts other drivers, which end with the test."""
    made: list[Driver] = []

    def start(program: str) -> Driver:
        made.append(Driver(tmp_path / str(len(made)), "-c", program))
        return made[-1]

    yield start
    for driver in made:
        driver.end()


@pytest.fixture
def node() -> Iterator[TwoNodes]:
    """A cluster of one node with four slots."""
    with ray_nodes(daemon_host()) as made:
        yield made


class Driver:
    """Another process that uses the cluster."""

    def __init__(self, folder: Path, *command: str) -> None:
        self.printed, self.error = folder.with_suffix(".out"), folder.with_suffix(".err")
        with self.printed.open("w") as out, self.error.open("w") as error:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                stdout=out,
                stderr=error,
                start_new_session=True,
                env={**os.environ, "RAY_AUTH_MODE": "disabled"},  # as the test's cluster, whatever token this user has
            )

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def says(self, text: str) -> bool:
        return text in self.printed.read_text() + self.error.read_text()


PLAY = """
import asyncio
from rtl_agent_gym.cluster import Cluster, RemoteSandboxes
from rtl_agent_gym.cluster.ray_cluster import connect

async def episode(provider, number):
    sandbox = await provider.create()
    await sandbox.run(f"sleep 0.5; echo {{number}}")
    await sandbox.close()

async def play():
    cluster = Cluster(slots={slots})
    await cluster.open()
    provider = RemoteSandboxes(cluster)
    await asyncio.gather(*(episode(provider, number) for number in range(12)))
    await provider.close()
    await cluster.close()
    print("played")

connect({address!r})
asyncio.run(play())
"""


async def test_two_runs_together_never_have_more_sandboxes_than_the_node_has_slots(
    node: TwoNodes, drivers: Callable[[str], Driver]
) -> None:
    runs = [drivers(PLAY.format(address=node.local.address, slots=slots)) for slots in (3, 2)]
    most, together = 0, False
    while any(run.process.poll() is None for run in runs):
        found = [report for reported in (await reports()).values() for report in reported]
        most = max(most, sum(report.sandboxes for report in found))
        together = together or (all(report.sandboxes for report in found) and len(found) == 2)
        await asyncio.sleep(0.02)
    for run in runs:
        assert run.says("played"), run.error.read_text()
    assert together, "the runs did not use the node at the same time"
    assert most == 4


HOLD = """
import asyncio
from rtl_agent_gym.cluster import Cluster, RemoteSandboxes, machines
from rtl_agent_gym.cluster.ray_cluster import connect

async def hold():
    cluster = Cluster()
    await cluster.open()
    provider = RemoteSandboxes(cluster)
    held = [await provider.create() for _ in range(2)]
    print("holds", flush=True)
    await asyncio.sleep(3600)

connect({address!r})
asyncio.run(hold())
"""


async def test_a_run_waits_for_slots_says_why_and_gets_those_of_a_run_that_is_killed(
    node: TwoNodes, drivers: Callable[[str], Driver], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(machines, "REFRESH", 1.0)
    holder = drivers(HOLD.format(address=node.local.address))
    assert await soon(lambda: holder.says("holds"), PATIENCE)
    state = await one_node()
    assert (state.slots, state.free, state.why) == (4, 0, "")
    [report] = state.runs
    assert (report.sandboxes, report.canaries) == (2, {"right": 1, "wrong": 0})
    cluster = Cluster(slots=3)
    opening = asyncio.ensure_future(cluster.open())
    with RayExecutor(slots=1) as pool:
        task = pool.submit(os.getpid)
        assert await soon(lambda: "all of its 4 slots are reserved" in caplog.text, PATIENCE)
        assert not opening.done()
        assert not task.done()
        holder.end()
        await asyncio.wait_for(opening, PATIENCE)
        assert await asyncio.to_thread(task.result, PATIENCE) > 0
    provider = RemoteSandboxes(cluster)
    try:
        assert await soon(lambda: cluster.working[0].slots == 3, PATIENCE)  # the task had one at first
        made = await asyncio.gather(*(provider.create() for _ in range(3)))
        await asyncio.gather(*(sandbox.ping() for sandbox in made))
        state = await one_node()
        assert (state.free, [report.sandboxes for report in state.runs]) == (1, [3])
    finally:
        await provider.close()
        await cluster.close()
    assert await soon(lambda: list(free_slots().values()).count(4) == 1, PATIENCE)
    assert (await one_node()).runs == []


async def one_node() -> NodeState:
    """The state of the node, asking for which starts no container and reserves nothing."""
    before = free_slots()
    [state] = await look()
    assert free_slots() == before
    assert state.facts is not None
    assert (state.facts.daemon, state.facts.digest[:7]) == (daemon_host(), "sha256:")
    return state


async def test_files_of_a_problem_travel_once_however_many_sandboxes_get_them(
    node: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[Any] = []
    sent: list[int] = []
    put, call = ray.put, NodeClient.call

    async def measured(self: NodeClient, method: str, *arguments: Any) -> Any:
        sent.append(len(ray.cloudpickle.dumps(arguments)))
        return await call(self, method, *arguments)

    def noted(value: Any) -> Any:
        stored.append(value)
        return put(value)

    monkeypatch.setattr(ray, "put", noted)
    cluster = Cluster()
    await cluster.open()
    monkeypatch.setattr(NodeClient, "call", measured)
    provider = RemoteSandboxes(cluster)
    files: dict[str, str | bytes] = {"rtl/a.sv": "// text\n" * 50_000, "docs/b": b"\xff" * 100_000}
    try:
        made = await asyncio.gather(*(provider.create() for _ in range(4)))
        await asyncio.gather(*(sandbox.write_files(dict(files)) for sandbox in made))
        for sandbox in made:
            assert (await sandbox.run("wc -c < rtl/a.sv; wc -c < docs/b")).output.split() == ["400000", "100000"]
        assert await made[3].read_files(["docs"]) == {"docs/b": b"\xff" * 100_000}
    finally:
        await provider.close()
        await cluster.close()
    assert stored == [files]
    assert max(sent) < 10_000
