"""Two nodes of a real Ray cluster on this machine, each with its own Docker daemon."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym import evaluate
from rtl_agent_gym.cluster import Cluster, RemoteGrader, RemoteSandboxes, node_client, runtime_at
from rtl_agent_gym.cluster import machines as machines_module
from rtl_agent_gym.cluster.canaries import known
from rtl_agent_gym.cluster.ray_cluster import SLOTS
from rtl_agent_gym.episodes.runtime import using
from rtl_agent_gym.evaluation import EvaluationConfig
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.retries import NODE
from rtl_agent_gym.sandboxes.client import OWNER_LABEL
from rtl_agent_gym.sandboxes.daemon import daemon_host
from rtl_agent_gym.transcripts import read_transcript
from tests.faults.moments import Moment, machine_faults
from tests.second_daemon import SecondDaemon, second_daemon
from tests.waiting import soon, until

ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster as LocalCluster  # noqa: E402

pytestmark = [pytest.mark.docker, pytest.mark.daemon, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def daemon() -> Iterator[SecondDaemon]:
    with second_daemon() as made:
        yield made


class TwoNodes:
    """The cluster: its head has no slots, and each of the two nodes a daemon."""

    def __init__(self, hosts: list[str]) -> None:
        self.hosts = hosts
        self.local = LocalCluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        self.nodes = [self.add(host) for host in hosts]
        ray.init(address=self.local.address, log_to_driver=False)

    def add(self, host: str, **variables: str) -> Any:
        return self.local.add_node(num_cpus=2, resources={SLOTS: 4}, env_vars={"DOCKER_HOST": host, **variables})

    def containers(self) -> list[str]:
        """The owners of the containers on both daemons that are a worker of Ray, or gone."""
        shown = ["ps", "--filter", f"label={OWNER_LABEL}", "--format", f'{{{{.Label "{OWNER_LABEL}"}}}}']
        owners = [
            name
            for host in self.hosts
            for name in subprocess.run(["docker", "-H", host, *shown], capture_output=True, text=True).stdout.split()
        ]
        return [owner for owner in owners if not someone_elses(owner)]

    def workers(self) -> list[int]:
        """The workers of Ray that have containers."""
        return sorted({int(owner.rpartition(":")[2]) for owner in self.containers()})

    def no_container_left(self) -> bool:
        return until(lambda: not self.containers())

    def kill(self, node: Any) -> None:
        """Kill a node's raylet, as if its machine had gone."""
        for process in node.all_processes.get("raylet", []):
            os.kill(process.process.pid, signal.SIGKILL)


@contextlib.contextmanager
def ray_nodes(*hosts: str) -> Iterator[TwoNodes]:
    """A cluster with a node for each of these daemons, and none of its containers left at the end.

    One at a time on this machine: a test counts the containers of all workers of Ray on its daemons.
    """
    with (Path(tempfile.gettempdir()) / f"rtl-agent-gym-ray-{os.getuid()}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        made = TwoNodes([*hosts])
        try:
            yield made
        finally:
            ray.shutdown()
            made.local.shutdown()
        assert made.no_container_left()


@pytest.fixture
def nodes(daemon: SecondDaemon) -> Iterator[TwoNodes]:
    with ray_nodes(daemon_host(), daemon.host) as made:
        assert not made.containers()
        yield made


def someone_elses(owner: str) -> bool:
    try:
        return not Path("/proc", owner.rpartition(":")[2], "cmdline").read_bytes().startswith(b"ray::")
    except OSError:
        return False


def verdicts(folder: Path) -> dict[tuple[str, int], tuple[Any, ...]]:
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "problem_id" in row]
    found = {
        (row["problem_id"], row["sample"]): (
            row["score"]["passed"], row["score"]["reward"], row["turns"], row["stop_reason"], row["seed"]
        )
        for row in rows
    }  # fmt: skip
    assert len(found) == len(rows), "an episode was counted twice"
    return found


def right_and_wrong() -> list[Problem]:
    """Two problems, and one whose reference solution is wrong, so that who plays it fails."""
    arbiter, _, wrong = known()
    gray = load_problems("bundled", ids=["cvdp_agentic_rtlgym_gray_counter_0001"])
    return [arbiter, *gray, arbiter.model_copy(update={"id": "cvdp_agentic_wrong_0001", "golden": wrong})]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("victim", ["raylet", "worker", "stopped worker"])
async def test_a_process_of_ray_that_is_killed_or_stopped_costs_nothing(
    nodes: TwoNodes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    victim: str,
    moment: Moment,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(machines_module, "REFRESH", 0.5)
    monkeypatch.setattr(node_client, "ALIVE_SECONDS", 2.0)
    monkeypatch.setattr(node_client, "SILENCE_SECONDS", 20.0)
    config = EvaluationConfig(
        problems=right_and_wrong(), samples=12, concurrency=8, folder=tmp_path / "here", cache=False
    )
    here = await evaluate(config)
    assert (here.summary.passed, here.summary.finished) == (24, 36)
    # Whatever the moment after both are used, they have work: a raylet's workers outlive it for some seconds.
    after, pause = moment.number(1, 12), moment.within(0, 1)

    async def kill_one() -> None:
        while (
            sum("is used, with" in event for event in caplog.messages) < 2
            or len(list((tmp_path / "there" / "transcripts").glob("*"))) < after
        ):
            await asyncio.sleep(0.05)
        await asyncio.sleep(pause)
        if victim == "raylet":
            nodes.kill(nodes.nodes[1])
        else:
            fault = signal.SIGKILL if victim == "worker" else signal.SIGSTOP
            os.kill(moment.draw.choice(nodes.workers()), fault)

    before = machine_faults()
    with using(runtime_at("auto")):
        config = config.with_options(folder=tmp_path / "there", longest_pause=0.1)
        there, _ = await asyncio.gather(evaluate(config), kill_one())
    assert there.summary.faults == 0
    assert machine_faults() > before, "what was killed had neither an episode nor a grading"
    assert verdicts(tmp_path / "there") == verdicts(tmp_path / "here")
    assert nodes.no_container_left()
    for path in (tmp_path / "there" / "transcripts").iterdir():
        read_transcript(path)


async def test_both_nodes_get_work_and_each_sandbox_lives_where_it_was_placed(
    nodes: TwoNodes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    cluster = Cluster()
    await cluster.open()
    provider = RemoteSandboxes(cluster)
    try:
        assert await soon(lambda: len(cluster.working) == 2)
        assert {machine.facts.daemon for machine in cluster.working} == set(nodes.hosts)
        made = await asyncio.gather(*(provider.create() for _ in range(8)))
        assert [machine.live for machine in cluster.working] == [4, 4]
        ninth = asyncio.ensure_future(provider.create())  # every slot is taken
        await asyncio.sleep(0.5)
        assert not ninth.done()
        await made[0].write_files({"rtl/a.sv": "module a; endmodule\n"})
        assert (await made[0].run("cat rtl/a.sv")).output == "module a; endmodule\n"
        assert await made[0].read_files(["rtl"]) == {"rtl/a.sv": b"module a; endmodule\n"}
        assert await made[1].read_files(["rtl"]) == {}
        await made[0].close()
        await (await asyncio.wait_for(ninth, 30)).ping()
    finally:
        await provider.close()
        await cluster.close()
    assert nodes.no_container_left()
    assert any("is used, with 4 slots" in event for event in caplog.messages)


def lie(machine: Any) -> None:
    """In the process of a machine: from now on every design passes."""
    from rtl_agent_gym.scoring import grading, scorer

    judge = grading.judge_run
    scorer.judge_run = lambda *given: judge(*given).model_copy(update={"passed": True, "reason": "a lie"})  # type: ignore[attr-defined]


async def test_what_a_node_that_lies_has_graded_is_graded_again_elsewhere(
    nodes: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(machines_module, "REFRESH", 0.5)
    cache = tmp_path / "cache"
    nodes.local.remove_node(nodes.nodes.pop())
    nodes.nodes.append(nodes.add(nodes.hosts[1], XDG_CACHE_HOME=str(cache)))
    problem, right, wrong = known()

    def design(number: int) -> dict[str, str]:
        files = wrong if number % 2 else right
        return {name: f"{text}\n// {number} of {tmp_path}\n" for name, text in files.items()}

    cluster = Cluster(canary_seconds=2.0)
    await cluster.open()
    try:
        assert await soon(lambda: len(cluster.working) == 2), caplog.text
        grader = RemoteGrader(cluster, cached=True)
        before = await asyncio.gather(*(grader.score(problem, design(number)) for number in range(4)))
        kept = {path.name for path in cache.rglob("*.json")}
        bad = next(machine for machine in cluster.working if machine.facts.daemon == nodes.hosts[1])
        await bad.actor.__ray_call__.remote(lie)
        after = await asyncio.gather(*(grader.score(problem, design(number)) for number in range(4, 12)))
        assert [score.passed for score in [*before, *after]] == [True, False] * 6
        assert "quarantined: it passes a wrong design: a lie" in bad.lost
        assert [machine.facts.daemon for machine in cluster.working] == [nodes.hosts[0]]
        [event] = [event for event in caplog.messages if "quarantined" in event]
        assert re.search(r"; its [1-9] verdicts since", event)
        assert "gave a wrong verdict" in caplog.text
        assert kept, "the node has graded nothing before it lied"
        assert {path.name for path in cache.rglob("*.json")} == kept
        await asyncio.sleep(1.5)
        assert len(cluster.working) == 1  # it is not tried again
    finally:
        await cluster.close()
    assert nodes.no_container_left()


async def test_a_node_whose_daemon_comes_back_is_used(
    nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(machines_module, "REFRESH", 0.2)
    monkeypatch.setattr(machines_module, "NODE", NODE._replace(first=1.0))
    late = Path(tempfile.mkdtemp(dir="/tmp"), "docker.sock")
    nodes.local.remove_node(nodes.nodes.pop())
    nodes.nodes.append(nodes.add(f"unix://{late}"))
    caplog.set_level("INFO")
    cluster = Cluster()
    await cluster.open()
    try:
        assert await soon(
            lambda: any(
                "is not used: no Docker daemon" in event and "tried again" in event for event in caplog.messages
            )
        )
        assert [machine.facts.daemon for machine in cluster.working] == [nodes.hosts[0]]
        late.symlink_to(nodes.hosts[1].removeprefix("unix://"))
        await soon(lambda: len(cluster.working) != 1, 90)
        assert {machine.facts.daemon for machine in cluster.working} == {nodes.hosts[0], f"unix://{late}"}, caplog.text
    finally:
        await cluster.close()
        shutil.rmtree(late.parent)
    assert nodes.no_container_left()
