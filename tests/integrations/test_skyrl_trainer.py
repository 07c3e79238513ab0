"""SkyRL's own trainer accepts the run of the example, and its generator plays real episodes, exact in ids."""

from __future__ import annotations

import os
from typing import Any

import pytest

from rtl_agent_gym.demo.shipped import shipped
from tests.integrations.ecosystem import call_in
from tests.integrations.players import BY_NAME

pytestmark = [pytest.mark.ecosystem, pytest.mark.timeout(1800)]


async def trainer(function: str, *arguments: Any) -> Any:
    """Call a function of the driver where SkyRL's trainer is installed."""
    if not (python := os.environ.get("RTL_GYM_SKYRL_PYTHON", "")):
        pytest.skip("SkyRL's trainer brings several GB of CUDA: RTL_GYM_SKYRL_PYTHON must be a Python that has it")
    return await call_in(python, "skyrl_trainer", function, *arguments)


async def test_skyrl_accepts_the_run_of_the_example() -> None:
    found = await trainer("parsed")
    assert found["environment"] == {"problems": "cvdp", "renderer": "qwen3.5", "max_turns": 50, "command_timeout": 30}
    assert found["other"] == found["environment"] | {"problems": "bundled"}
    assert (found["model"], found["engines"]) == ("Qwen/Qwen3.5-9B", 8)


@pytest.mark.docker
async def test_its_generator_plays_a_real_episode_and_trains_what_was_sampled() -> None:
    found = await trainer("play", BY_NAME["solved"], str(shipped("student")))
    rewards = found["rewards"] if isinstance(found["rewards"], list) else [found["rewards"]]
    assert [reward for reward in rewards if reward] == [1.4]
    sampled = [id_ for turn in found["sampled"] for id_ in turn]
    assert [id_ for id_, mask in zip(found["ids"], found["mask"], strict=True) if mask] == sampled
    logprobs = [logprob for logprob, mask in zip(found["logprobs"], found["mask"], strict=True) if mask]
    assert logprobs == [-0.5] * len(sampled)
    assert found["metrics"]["environment/tests_passed"] == 1.0
