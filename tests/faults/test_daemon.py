"""The Docker daemon dies under an evaluation and comes back: what was under way is played again."""

from __future__ import annotations

import asyncio
import gc
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rtl_agent_gym.evaluation import EvaluationConfig
from rtl_agent_gym.transcripts import read_transcript
from tests.arbiter import ARBITER
from tests.second_daemon import SecondDaemon, second_daemon

from .moments import Moment, machine_faults
from .processes import playing

pytestmark = [
    pytest.mark.docker,
    pytest.mark.daemon,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    # The Docker SDK drops the sockets of a connection that breaks without closing them.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
IDS = (ARBITER, "cvdp_agentic_rtlgym_gray_counter_0001")
EPISODES = 16


@pytest.fixture
def daemon() -> Iterator[SecondDaemon]:
    with second_daemon() as made:
        yield made


def left_on(daemon: SecondDaemon) -> list[str]:
    """The containers that there are.

    A daemon that was killed while it removed one may list it, as dead and without a name, until its next restart, and
    answers that there is no such container when it is asked for it.
    """
    docker = ["docker", "-H", daemon.host]
    listed = subprocess.run(
        [*docker, "ps", "--all", "--quiet"], capture_output=True, text=True, check=True
    ).stdout.split()
    found = [subprocess.run([*docker, "inspect", name], capture_output=True, text=True) for name in listed]
    assert all(one.returncode == 0 or "No such" in one.stderr for one in found)
    return [one.stdout for one in found if one.returncode == 0]


async def test_a_daemon_that_is_killed_and_started_again_costs_no_episode(
    daemon: SecondDaemon, tmp_path: Path, moment: Moment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", daemon.host)
    after, pause, away = moment.number(1, 8), moment.within(0, 1), moment.within(5, 25)
    before = machine_faults()
    config = EvaluationConfig(ids=IDS, samples=EPISODES // 2, concurrency=4, folder=tmp_path, cache=False)
    async with playing(config, after, pause) as (task, faults):
        daemon.kill()
        await asyncio.sleep(away)
        await asyncio.to_thread(daemon.start)
        evaluation = await task
    gc.collect()
    print(f"{machine_faults() - before:.0f} faults, {len(faults)} of them of episodes; away for {away:.0f} s")
    assert machine_faults() > before, "neither an episode nor a grading was under way"
    assert evaluation.summary.faults == 0
    assert evaluation.summary.passed == EPISODES
    assert evaluation.summary.retries >= 1
    for path in (tmp_path / "transcripts").iterdir():
        read_transcript(path)
    assert not left_on(daemon)
