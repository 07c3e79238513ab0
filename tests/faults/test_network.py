"""The network to the model's endpoint is lost for two minutes: the requests wait, and every episode gets its result."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rtl_agent_gym import EpisodeConfig
from rtl_agent_gym.evaluation import EvaluationConfig
from rtl_agent_gym.policies import ModelOptions
from tests.arbiter import ARBITER
from tests.policies.stub_server import ChatServer, call
from tests.switch import Switch

from .moments import Moment
from .processes import playing

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(1500)]
AWAY = 120.0


async def test_an_endpoint_that_is_away_for_two_minutes_costs_no_episode(tmp_path: Path, moment: Moment) -> None:
    after, pause = moment.number(1, 6), moment.within(0, 2)
    script = [call("ls"), call("sleep 1"), call("pwd"), {"content": "Done."}]
    with ChatServer(script) as server:
        async with Switch(0, int(server.url.split(":")[2].split("/")[0])) as way:
            config = EvaluationConfig(
                ids=(ARBITER,),
                samples=20,
                concurrency=4,
                policy="chat:org/model",
                model=ModelOptions(base_url=f"http://127.0.0.1:{way.near}/v1"),
                reward="proxy",
                episode=EpisodeConfig(command_timeout=10.0),
                folder=tmp_path,
                cache=False,
            )
            async with playing(config, after, pause) as (task, faults):
                await way.off()
                before = len(server.requests)
                await asyncio.sleep(AWAY)
                assert len(server.requests) == before
                await way.on()
                evaluation = await task
    print(f"{len(faults)} attempts at an episode were lost")
    assert (evaluation.summary.finished, evaluation.summary.faults) == (20, 0)
    assert {result.turns for result in evaluation.results} == {4}
