"""NeMo Gym: the scripts over HTTP with our resources server, and sessions that nobody ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtl_agent_gym.integrations.session import FAULT, OVER
from tests.integrations.conformance import EXPECTED
from tests.integrations.ecosystem import ROOT, call
from tests.integrations.players import compared
from tests.integrations.table import recorded

pytestmark = [pytest.mark.ecosystem, pytest.mark.docker, pytest.mark.timeout(1800)]


async def test_scripts_get_the_verdicts_of_a_session(tmp_path: Path) -> None:
    with recorded("NeMo Gym", EXPECTED) as notes:
        async for script, there, _ in compared("nemo_gym", tmp_path):
            notes.add(script.name, there, observations=there.observations is not None)


async def test_rows_name_the_agent_that_plays_them() -> None:
    agents = await call("nemo_gym", "collected")
    assert agents == ["rtl_simple_agent", "other"]
    assert f"\n{agents[0]}:\n  responses_api_agents:\n" in (ROOT / "docs/integrations.md").read_text()


async def test_a_call_that_waits_for_one_that_ends_the_episode_is_not_run() -> None:
    assert await call("nemo_gym", "together", "end") == sorted(["one\n", OVER])
    assert await call("nemo_gym", "together", "fault") == [FAULT, FAULT]


async def test_an_episode_that_nobody_ends_is_ended() -> None:
    told = await call("nemo_gym", "forgotten")
    assert told["status"] == 400
    assert "call /seed_session first" in told["said"]


async def test_an_episode_is_not_idle_while_it_waits_for_its_sandbox() -> None:
    assert await call("nemo_gym", "waiting") == 2


async def test_a_model_neither_chooses_its_problem_nor_grades_it() -> None:
    assert await call("nemo_gym", "forged") == [403] * 6 + [200]


async def test_an_episode_is_not_replaced_while_it_is_graded() -> None:
    assert await call("nemo_gym", "replaced") == [409, 200]
