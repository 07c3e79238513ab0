"""The network to the model's endpoint is lost for two minutes: the requests wait, and every episode gets its result."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rtl_agent_gym import EpisodeConfig, evaluate
from rtl_agent_gym.errors import SandboxError
from rtl_agent_gym.evaluation import EvaluationConfig, Observer
from rtl_agent_gym.policies import ModelOptions
from tests.policies.stub_server import ChatServer, call
from tests.switch import Switch

from .moments import Moment

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(1500)]
AWAY = 120.0


async def test_an_endpoint_that_is_away_for_two_minutes_costs_no_episode(tmp_path: Path, moment: Moment) -> None:
    after, pause = moment.number(1, 6), moment.within(0, 2)
    faults: list[SandboxError] = []
    finished = asyncio.Semaphore(0)
    observer = Observer(
        faulted=lambda problem, sample, error: faults.append(error), finished=lambda _: finished.release()
    )
    script = [call("ls"), call("sleep 1"), call("pwd"), {"content": "Done."}]
    with ChatServer(script) as server:
        async with Switch(0, int(server.url.split(":")[2].split("/")[0])) as way:
            config = EvaluationConfig(
                ids=("cvdp_agentic_rtlgym_fixed_priority_arbiter_0001",),
                samples=20,
                concurrency=4,
                policy="chat:org/model",
                model=ModelOptions(base_url=f"http://127.0.0.1:{way.near}/v1"),
                reward="proxy",
                episode=EpisodeConfig(command_timeout=10.0),
                folder=tmp_path,
                cache=False,
            )
            playing = asyncio.ensure_future(evaluate(config, observer=observer))
            try:
                for _ in range(after):
                    await asyncio.wait_for(finished.acquire(), 600)
                await asyncio.sleep(pause)
                await way.off()
                before = len(server.requests)
                await asyncio.sleep(AWAY)
                assert len(server.requests) == before
                await way.on()
                evaluation = await playing
            finally:
                playing.cancel()
                await asyncio.gather(playing, return_exceptions=True)
    print(f"{len(faults)} attempts at an episode were lost")
    assert (evaluation.summary.finished, evaluation.summary.faults) == (20, 0)
    assert {result.turns for result in evaluation.results} == {4}
