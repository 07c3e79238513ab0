"""SkyRL-gym: the scripts, faults that are retried inside, and the registration."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from tests.integrations.conformance import EXPECTED
from tests.integrations.drive_skyrl import SkyrlPlayer
from tests.integrations.ecosystem import ROOT, call, clean, environment
from tests.integrations.players import BY_NAME, compare

pytestmark = [pytest.mark.ecosystem, pytest.mark.timeout(1800)]


@pytest.mark.docker
@pytest.mark.parametrize("name", EXPECTED)
async def test_scripts_get_the_verdicts_of_a_session(name: str, tmp_path: Path) -> None:
    await compare("SkyRL-gym", SkyrlPlayer(), name, tmp_path)


@pytest.mark.docker
async def test_a_fault_is_played_again_and_gets_the_verdict_without_one(tmp_path: Path) -> None:
    played = await SkyrlPlayer(attempts=2).play(BY_NAME["machine fault"], tmp_path)
    assert (played.reward, played.passed) == (0.4, False)
    assert played.observations is not None
    assert len(played.observations) == 3
    assert len(list(tmp_path.iterdir())) == 2  # a transcript of each attempt


@pytest.mark.docker
async def test_after_any_exception_the_sandbox_has_ended() -> None:
    message, ended = await call("skyrl", "step_wrongly")
    assert "an action is the completion's text" in message
    assert ended


PROGRAM = """
import skyrl_gym
from omegaconf import DictConfig
from rtl_agent_gym.errors import SandboxError, UsageError
from rtl_agent_gym.integrations.skyrl import RTLTextEnv, register, rows
from skyrl_gym.metrics import aggregate_for_environment
register()
register()
row = rows()[0]
env = skyrl_gym.make(row["env_class"], env_config=DictConfig({"renderer": "qwen3"}), extras=row | {"max_turns": 7})
assert isinstance(env, RTLTextEnv) and env.max_turns == 7 and env.get_metrics() == {}
env.close()
for row in ({}, {"problem_id": "nosuch"}):
    try:
        skyrl_gym.make("rtl", env_config={}, extras=row)
    except UsageError as error:
        print(error)
ended = [{"reward": 1.0, "stop/completed": 1.0}, {"reward": 0.5, "stop/max_turns": 1.0}, {}]
print(sorted(aggregate_for_environment("rtl", ended).items()))
"""


async def test_it_is_registered_once_and_checks_rows() -> None:
    python = await asyncio.to_thread(environment, "skyrl")
    done = subprocess.run([str(python), "-c", PROGRAM], cwd=ROOT, env=clean(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second, means = done.stdout.splitlines()
    assert "needs the column problem_id" in first
    assert "there is no problem 'nosuch'" in second
    assert means == "[('reward', 0.75), ('stop/completed', 0.5), ('stop/max_turns', 0.5)]"
