"""Groups of tinker-cookbook on a Ray cluster, through its `set_rollout_executor`."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
pytest.importorskip("tinker")
from tinker_cookbook.rl.rollouts import (
    do_group_rollout_and_filter_constant_reward,
    set_rollout_executor,
)
from tinker_cookbook.rl.types import TrajectoryGroup

from rtl_agent_gym.cluster.executor import RayExecutor
from rtl_agent_gym.envs import EpisodeConfig
from rtl_agent_gym.envs.tinker_config import TinkerEnvConfig
from rtl_agent_gym.envs.tinker_env import CVDPEnvGroupBuilder
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.sandboxes.daemon import daemon_host
from rtl_agent_gym.transcripts import read_transcript
from tests.cluster.test_cluster import TwoNodes, ray_nodes
from tests.envs.scripted_tinker import END, Sampling, call, solution

pytestmark = [pytest.mark.docker, pytest.mark.daemon, pytest.mark.slow, pytest.mark.timeout(600)]

GROUPS, SIZE = 4, 2


@pytest.fixture
def nodes() -> Iterator[TwoNodes]:
    """Two nodes with room for two groups each. They share this machine's daemon."""
    with ray_nodes(daemon_host(), daemon_host()) as made:
        yield made


def parent(process: int) -> int:
    """The parent of a process; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def raylet(node: Any) -> int:
    [process] = node.all_processes["raylet"]
    return int(process.process.pid)


async def test_groups_of_the_cookbook_are_played_again_when_their_node_is_lost_and_count_once(
    nodes: TwoNodes, tmp_path: Path, arbiter: Problem
) -> None:
    config = TinkerEnvConfig(
        model_name="Qwen/Qwen3-8B", episode=EpisodeConfig(transcript_dir=tmp_path, command_timeout=60.0)
    )
    sampling = Sampling([call("echo begun; sleep 8"), solution(arbiter), f"Done.{END}"])

    async def group(number: int) -> TrajectoryGroup | None:
        builder = CVDPEnvGroupBuilder(arbiter, config, group_size=SIZE, seed=number)
        played: TrajectoryGroup | None = await do_group_rollout_and_filter_constant_reward(
            sampling,
            builder,
            max_tokens=2_000,
            temperature=1.0,
            do_remove_constant_reward_groups=False,
        )
        return played

    async def kill_one() -> None:
        while len(list(tmp_path.glob("*"))) < GROUPS:
            await asyncio.sleep(0.05)
        workers = {worker: parent(worker) for worker in nodes.workers()}
        node = next(node for node in nodes.nodes if raylet(node) in workers.values())
        nodes.kill(node)
        for worker, of in workers.items():  # a machine that is gone takes everything with it
            if of == raylet(node):
                os.kill(worker, signal.SIGKILL)

    with RayExecutor(slots=SIZE) as executor:
        set_rollout_executor(executor)
        try:
            *played, _ = await asyncio.gather(*(group(number) for number in range(GROUPS)), kill_one())
        finally:
            set_rollout_executor(None)
    rewards: list[Any] = [group and group.get_total_rewards() for group in played]
    assert rewards == [[pytest.approx(1.4)] * SIZE] * GROUPS
    ended = [trajectory.transitions[-1] for group in played if group for trajectory in group.trajectories_G]
    used = [str(transition.logs["transcript"]) for transition in ended]
    assert len(set(used)) == GROUPS * SIZE, "an episode was counted twice"
    transcripts = {str(path): read_transcript(path) for path in tmp_path.iterdir()}
    assert all(transcripts[path].complete for path in used)
    lost = set(transcripts) - set(used)
    assert lost, "the node that was killed had no group"
    assert not any(transcripts[path].complete for path in lost)
